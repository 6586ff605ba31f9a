-- The examples' tables, scopes and topics that orders.sql, billing.sql, batch_job.sql and docs/how-to/workflow.md lack.
CREATE TABLE ride (ride uuid NOT NULL, customer text NOT NULL, origin text NOT NULL, target text NOT NULL, charge_id text);
SELECT once.scope_set('rides.create', '{"recovery_points": ["created"]}');
SELECT once.topic_set('receipts');

CREATE TABLE account (account text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0));
SELECT once.topic_set('debits');
SELECT once.topic_set('transfers');

CREATE TABLE member (
    member bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email  text   NOT NULL UNIQUE,
    mail   text   NOT NULL DEFAULT 'pending'
);
SELECT once.topic_set('mails');

CREATE TABLE payment_made (payment bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, cents bigint NOT NULL);
