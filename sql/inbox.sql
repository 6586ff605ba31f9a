-- inbox: messages and saga steps that are handled once, however often they are delivered.
--
-- A message's life in the order of its calls, all in the handler's own transaction:
--   inbox_accept   inserts one row in once.inbox (status m): the message is this transaction's;
--   inbox_record   stores the verdict of the handler beside it (one HOT update);
--   commit         the message and what its handler wrote become visible together;
--   inbox_accept   by a duplicate: it waits for a transaction that is still handling the message, then gets the
--                  verdict, or the message itself if that transaction was rolled back (to a savepoint, too);
--   ttl after it was accepted the message counts as new, and the sweep task inbox_reap deletes the row.
-- A step of a saga has one row for its action and its compensation (inbox_barrier):
--   status a       the action ran;
--   status c       it ran and was compensated;
--   status s       its compensation came first: neither ever runs.
-- Answers depend on the clock and these columns alone, never on whether a sweep has run.
--
-- Lock order (binds callers too): keys and inbox messages first, several of them sorted by scope and name. An
-- accept waits for an open transaction with the same message, so two transactions that accept the same messages
-- in different orders end in a deadlock error.

-- `id` is a hash of the names, as in once.key. fillfactor leaves room for the verdict on the row's own page.
CREATE TABLE once.inbox (
    expires_at timestamptz NOT NULL,
    status     "char"      NOT NULL CHECK (status IN ('m', 'a', 'c', 's')),
    id         uuid        NOT NULL,
    scope      text        COLLATE "C" NOT NULL,
    name       text        COLLATE "C" NOT NULL,
    step       text        COLLATE "C",
    verdict    json,
    CONSTRAINT inbox_pkey PRIMARY KEY (id)
) WITH (fillfactor = 90);
CREATE INDEX inbox_reap ON once.inbox (expires_at);

COMMENT ON TABLE once.inbox IS 'One row per message accepted and per step of a saga. Reached through the inbox_* functions only.';
COMMENT ON COLUMN once.inbox.expires_at IS 'From then on the message or step counts as new.';
COMMENT ON COLUMN once.inbox.status IS 'm message; a step whose action ran, c and was compensated, s compensated before its action came.';
COMMENT ON COLUMN once.inbox.id IS 'First 16 bytes of SHA-256 over "inbox" or "barrier" and the names, in UTF-8, each after a NUL byte.';
COMMENT ON COLUMN once.inbox.scope IS 'The consumer: the namespace of its messages and sagas, 1 to 100 characters.';
COMMENT ON COLUMN once.inbox.name IS 'message_id, or saga.';
COMMENT ON COLUMN once.inbox.step IS 'Name of the saga''s step; NULL: a message.';
COMMENT ON COLUMN once.inbox.verdict IS 'What the handler recorded; NULL: nothing.';
SELECT pg_catalog.pg_extension_config_dump('once.inbox', '');

CREATE FUNCTION once.inbox_accept(
    scope text, message_id text, ttl interval = NULL, OUT accepted boolean, OUT verdict json)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_accept';
COMMENT ON FUNCTION once.inbox_accept(text, text, interval) IS
$$Takes a message for the caller's transaction, once. scope: the consumer, 1 to 100 characters (its messages are apart from keys); message_id: 1 to 255 characters. accepted: handle it in this transaction, which takes the message along wherever it is rolled back. Not accepted: a duplicate; verdict is what the first handler recorded (NULL: nothing), and nothing is written. A transaction that is handling the same message is waited for; lock_timeout bounds the wait. ttl: how long the message is remembered, from now (default 30 days); after it the message counts as new.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 accepted by another transaction after the snapshot, above READ COMMITTED, 25006 a new message in a read-only transaction.$$;

CREATE FUNCTION once.inbox_record(scope text, message_id text, verdict json)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_record';
COMMENT ON FUNCTION once.inbox_record(text, text, json) IS
$$Stores what the handler answers, for duplicates of the message; only the transaction that accepted the message may. The first verdict stays. verdict: any JSON, stored byte for byte; not SQL NULL.
Errors: ON001 the message is not accepted (or its ttl is over), or another transaction accepted it and recorded nothing; ON006 a verdict is recorded already, 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.inbox_barrier(
    scope text, saga text, step text, operation text, ttl interval = NULL, OUT outcome text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_barrier';
COMMENT ON FUNCTION once.inbox_barrier(text, text, text, text, interval) IS
$$Lets each step of a saga act once and be compensated once, in whatever order and how often its calls arrive. scope: 1 to 100 characters; saga: 1 to 255; step: 1 to 100; operation: action or compensation. Call it in the handler's transaction, before its writes; only run lets them happen.
outcome: run; duplicate (this operation has run); skipped (a compensation whose action never ran: nothing to undo, and from now on the action is refused); refused (an action after its compensation). A transaction that is at the same step is waited for; lock_timeout bounds the wait. ttl: how long the step is remembered, from its last run or skip (default 30 days); it must outlast the saga, because after it the step counts as new.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction where something would run or be skipped.
After the "sub-transaction barrier" of DTM.$$;
