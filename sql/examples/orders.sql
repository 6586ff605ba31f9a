-- The table, scope, topic and rights for the programs in python/, node/ and java/: orders are charged at a bank and
-- reported to a webhook. A superuser runs this file once, in a database with the extension: psql -f orders.sql.
-- The services connect as the role shop (createuser shop), which gets only the rights granted here.

CREATE TABLE orders (
    order_id        uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    idempotency_key text        NOT NULL, -- <user>/<Idempotency-Key>; not unique, so that a duplicate would be visible
    customer        text        NOT NULL,
    item            text        NOT NULL,
    amount_cents    bigint      NOT NULL CHECK (amount_cents > 0),
    status          text        NOT NULL DEFAULT 'new' CHECK (status IN ('new', 'paid', 'refused')),
    charge_id       text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE ON orders TO shop;

SELECT once.grant_role('shop', 'use');
-- When a process has died, its lease expires, and another process can continue. A working process extends its lease.
SELECT once.scope_set('orders.create', '{"lease": "30 s", "recovery_points": ["created", "charged"]}');
SELECT once.topic_set('orders', '{"subscribers": ["webhooks"]}');
SELECT once.subscriber_set('orders', 'webhooks', '{"max_attempts": 12, "backoff_cap": "30 min"}');
