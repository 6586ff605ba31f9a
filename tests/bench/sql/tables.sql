-- The same table for every side but the lean one: columns, defaults and indexes of once.key. Without its CHECKs, which
-- pg_once's own writes do not evaluate.
CREATE SCHEMA raw;
CREATE TABLE raw.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
-- As a good engineer writes it by hand: ten columns, found by scope and key, deleted by an index on the expiry.
CREATE TABLE raw.lean (
    scope            text        COLLATE "C" NOT NULL,
    key              text        COLLATE "C" NOT NULL,
    fingerprint      bytea       NOT NULL,
    status           text        NOT NULL,
    token            bigint      NOT NULL,
    lease_until      timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL,
    response_code    integer,
    response_body    json,
    response_headers json,
    PRIMARY KEY (scope, key)
);
CREATE INDEX ON raw.lean (expires_at);
CREATE SCHEMA plpgsql;
CREATE TABLE plpgsql.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
CREATE SCHEMA application;
CREATE TABLE application.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
