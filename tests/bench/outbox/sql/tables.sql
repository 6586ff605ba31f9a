-- An event by hand, in a table with the columns and indexes of a segment of the log.
CREATE TABLE raw.event (LIKE once.event_0 INCLUDING ALL EXCLUDING CONSTRAINTS);
CREATE SEQUENCE raw.event_id;
-- The smallest table that an outbox by hand can have.
CREATE TABLE raw.outbox (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    topic      text        NOT NULL,
    payload    json        NOT NULL
);
