-- The tables, scopes and machine of the cases in conformance.json. A superuser runs this file before the cases;
-- running it again does no harm.

CREATE TABLE IF NOT EXISTS conformance_row (made_for text NOT NULL, made_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS conformance_job (
    id        text    PRIMARY KEY,
    status    text    NOT NULL DEFAULT 'queued',
    cancelled boolean NOT NULL DEFAULT false,
    version   bigint  NOT NULL DEFAULT 0,
    note      text
);
CREATE TABLE IF NOT EXISTS conformance_item (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job     text   NOT NULL REFERENCES conformance_job,
    points  bigint NOT NULL,
    settled text
);
CREATE TABLE IF NOT EXISTS conformance_wallet (id text PRIMARY KEY, points bigint NOT NULL);
GRANT SELECT, INSERT ON conformance_row TO PUBLIC;
GRANT SELECT, INSERT, UPDATE ON conformance_job TO PUBLIC;

SELECT once.scope_set('conformance', '{"ttl": "1 hour", "gone_for": "10 years"}');
SELECT once.scope_set('conformance.points', '{"recovery_points": ["charged", "shipped"]}');
SELECT once.machine_define('{
  "machine": "conformance", "table": "conformance_job", "id": "id", "status": "status", "version": "version",
  "status_types": ["queued", "running", "done", "cancelled"], "terminal": ["done", "cancelled"], "transitions": [],
  "steps": [{"step_key": "run", "status": "queued", "claim_state": {"worker": ["running", "queued"]},
             "successful_state": {"worker": "done", "clerk": "done"}, "lease": "1 minute"}],
  "cancel": {"flag": "cancelled", "to": "cancelled"},
  "refund": {"items": "conformance_item", "item_id": "id", "subject": "job", "marker": "settled", "marked": "returned",
             "amount": "points", "wallet": "conformance_wallet", "wallet_id": "id", "account": "id", "balance": "points"}
}');
