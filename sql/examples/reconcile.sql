-- Compares our keys with the other side's ledger and lists the differences. docs/how-to/reconcile.md explains the use.
-- This file makes the table and the functions, in the schema of your choice (search_path). The code between the
-- lines "yours" is about the table `orders` of the order service: put your own code there.
--
-- For each key, `wanted` is the amount that should have moved, and `moved` the amount in the other side's ledger. A
-- parked key is judged by `moved` alone. If `wanted` and `moved` of a finished key differ, somebody must act. The next
-- day's ledger shows the result.

-- The other side's ledger, from its statement, export or API. Refunds are negative.
CREATE TABLE reconcile_ledger (
    line            text        PRIMARY KEY,
    idempotency_key text,
    reference       text,
    amount_cents    bigint      NOT NULL,
    at              timestamptz NOT NULL
);
CREATE INDEX ON reconcile_ledger (idempotency_key);
CREATE INDEX ON reconcile_ledger (reference);
COMMENT ON TABLE reconcile_ledger IS 'The other side''s ledger, loaded by hand or by a job.';
COMMENT ON COLUMN reconcile_ledger.idempotency_key IS 'The idempotency key that we sent: a step''s derived key.';
COMMENT ON COLUMN reconcile_ledger.reference IS 'Our own key (of a refund: its refund_key), if the other side returns it. Identifies an entry that has no idempotency_key.';

-- Compares the keys created in [since, until) with their entries in the ledger, and lists entries of that time that
-- belong to no key. The ledger must reach beyond `until`, by one or two times the scope's lease. Keys whose work is
-- under way are not listed.
CREATE FUNCTION reconcile(in_scope text, since timestamptz, until timestamptz)
RETURNS TABLE (finding text, key text, attempt integer, charge_key text, refund_key text,
               wanted_cents bigint, moved_cents bigint, lines text[], to_do text)
LANGUAGE sql STABLE AS $$
WITH keys AS (
    SELECT DISTINCT k.key, k.status, k.attempt,
           once.key_derive(in_scope, k.key, 'charge') AS charge_key,
           once.key_derive(in_scope, k.key, 'refund') AS refund_key
      FROM once.key_list(in_scope, since, until, max => 100000) k
), ours AS (
    SELECT k.*,
           -- yours: how much this key should have moved, if it has ended
           (SELECT coalesce(sum(o.amount_cents), 0) FROM orders o WHERE o.idempotency_key = k.key)::bigint AS wanted
           -- yours
      FROM keys k
), compared AS (
    SELECT o.*, coalesce(sum(l.amount_cents), 0)::bigint AS moved,
           coalesce(array_agg(l.line ORDER BY l.at, l.line) FILTER (WHERE l.line IS NOT NULL), '{}') AS lines
      FROM ours o
      LEFT JOIN reconcile_ledger l ON l.idempotency_key IN (o.charge_key, o.refund_key)
                                   OR l.idempotency_key IS NULL AND l.reference IN (o.key, o.refund_key)
     GROUP BY o.key, o.status, o.attempt, o.charge_key, o.refund_key, o.wanted
)
SELECT f.finding, c.key, c.attempt, c.charge_key, c.refund_key, c.wanted, c.moved, c.lines, f.to_do
  FROM compared c
  CROSS JOIN LATERAL (SELECT
        CASE WHEN c.status = 'parked' AND c.moved > 0 THEN 'parked, and they did it'
             WHEN c.status = 'parked' THEN 'parked, and they did not'
             WHEN c.status IN ('running', 'released') THEN NULL
             WHEN c.moved > c.wanted THEN 'they have too much'
             WHEN c.moved < c.wanted THEN 'they have too little' END,
        CASE WHEN c.status = 'parked' AND c.moved > 0 THEN 'reconcile_accept, or reconcile_refuse and send it back'
             WHEN c.status = 'parked' THEN 'reconcile_refuse, once no line can still come'
             WHEN c.moved > c.wanted THEN 'send the difference back, with refund_key as the Idempotency-Key'
             ELSE 'ask them: we have their answer, and they have no entry' END) f (finding, to_do)
 WHERE f.finding IS NOT NULL
UNION ALL
SELECT 'not of ours', l.reference, NULL, l.idempotency_key, NULL, NULL, l.amount_cents, ARRAY[l.line],
       'find out who sent it; an older derived key of a rotated step looks like this, too'
  FROM reconcile_ledger l
 WHERE l.at >= since AND l.at < until
   AND NOT EXISTS (SELECT FROM keys k WHERE l.idempotency_key IN (k.charge_key, k.refund_key)
                                         OR l.idempotency_key IS NULL AND l.reference IN (k.key, k.refund_key))
   -- The entry does not belong to a key of another day, either.
   AND CASE WHEN length(l.reference) BETWEEN 1 AND 255
            THEN NOT EXISTS (SELECT FROM once.key_get(in_scope, l.reference)
                              WHERE l.idempotency_key IS NULL
                                 OR l.idempotency_key IN (once.key_derive(in_scope, l.reference, 'charge'),
                                                          once.key_derive(in_scope, l.reference, 'refund')))
            ELSE true END;
$$;
COMMENT ON FUNCTION reconcile(text, timestamptz, timestamptz) IS
'Lists the differences between the other side''s ledger and our keys; no rows: there are none.';

-- For a parked key whose charge was made: completes the key with the row and the answer that the request would have
-- stored, in one transaction. The scope must keep requests (scope_set, keep_request). The order_id is a pure function
-- of the key: a second call makes no second order and raises ON006. charge: the id of the charge.
CREATE FUNCTION reconcile_accept(in_scope text, in_key text, in_attempt integer, charge text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- yours: the HTTP layer of the order service stores {"target": ..., "body": ...}
    request json := (SELECT k.request -> 'body' FROM once.key_get(in_scope, in_key) k);
    -- yours
    answer  json;
BEGIN
    IF request IS NULL THEN
        RAISE EXCEPTION 'the request of key "%" is not kept', in_key
              USING HINT = 'Let the scope keep requests (keep_request), or make the row by hand and resolve the key.';
    END IF;
    -- yours: the answer and the row of a success
    answer := json_build_object('order_id', once.key_derive(in_scope, in_key, 'order'), 'charge_id', charge,
                                'customer', request ->> 'customer', 'amount_cents', request -> 'amount_cents');
    PERFORM once.key_resolve(in_scope, in_key, in_attempt, 'complete', 201, answer);
    INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents, charge_id, made_by)
    VALUES (answer ->> 'order_id', in_key, request ->> 'customer', request ->> 'item',
            (request ->> 'amount_cents')::bigint, charge, 'reconciler')
    ON CONFLICT (order_id) DO NOTHING;
    -- yours
END $$;
COMMENT ON FUNCTION reconcile_accept(text, text, integer, text) IS
'Completes a parked key: stores the row that the request would have made, and its answer.';

-- For a parked key whose charge was not made, or whose order is no longer wanted: ends the key with a refusal, which
-- later claims replay, and emits the compensations that the key's steps have registered (on_abort).
CREATE FUNCTION reconcile_refuse(in_scope text, in_key text, in_attempt integer)
RETURNS void LANGUAGE sql AS $$
SELECT once.key_resolve(in_scope, in_key, in_attempt, 'abort', 402,
                        '{"title": "the order was not made; what was charged goes back"}');
$$;
COMMENT ON FUNCTION reconcile_refuse(text, text, integer) IS
'Aborts a parked key; a charge that was made is refunded by a compensation.';

-- Compares the dead letters of a subscriber with the receiver's ledger. A message may arrive while the answer to it is
-- lost. Its event may then be a dead letter. final_after: for how long after an event's death its message may still be
-- added to the ledger. The payload's member "reference" names the message: put the name of your own member there.
CREATE FUNCTION reconcile_dead(in_topic text, in_subscriber text, final_after interval DEFAULT '3 days')
RETURNS TABLE (finding text, event_id bigint, reference text, died_at timestamptz, to_do text)
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN l.line IS NULL THEN 'dead, and they do not have it' ELSE 'dead, and they have it' END,
       d.event_id, d.payload ->> 'reference', d.died_at,
       CASE WHEN l.line IS NOT NULL THEN 'nothing: leave it dead'
            WHEN d.died_at > now() - final_after THEN 'wait: their line may still come'
            ELSE 'outbox_redrive' END
  FROM once.outbox_dead(in_topic, in_subscriber, max => 10000) d
  LEFT JOIN reconcile_ledger l ON d.payload ->> 'reference' IN (l.reference, l.idempotency_key);
$$;
COMMENT ON FUNCTION reconcile_dead(text, text, interval) IS
'Shows which dead letters have arrived, and which to send again.';
