-- inbox: messages and saga steps that are handled once, however often they are delivered.
--
-- A message's life, call by call, all in the handler's own transaction:
--   inbox_accept   inserts one row in once.inbox (status m): this transaction may handle the message;
--   inbox_record   stores the handler's verdict in that row;
--   commit         the message and its handler's writes become visible together;
--   inbox_accept   for a duplicate: waits for a transaction that is still handling the message. Then it returns the
--                  verdict, or accepts the message if that transaction was rolled back (also to a savepoint);
--   (ttl ends)     the message counts as new, and the sweep task inbox_reap deletes the row.
-- A step of a saga has one row for its action and its compensation (inbox_barrier, modelled on the "sub-transaction
-- barrier" of DTM):
--   status a       the action ran;
--   status c       the action ran and was compensated;
--   status s       the compensation came before the action: neither runs until the ttl ends.
-- No answer depends on whether a sweep has run.
--
-- Lock order: see machine.sql. A transaction with several messages must accept them in the order of scope and name.
-- inbox_accept waits for an open transaction that has accepted the same message. In another order, two transactions can
-- accept one message each, and then wait for each other's message. The server ends one of them with a deadlock error.

-- `id` is a hash of the names: an index on texts would be larger. fillfactor leaves room on the page for the verdict.
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

COMMENT ON TABLE once.inbox IS 'One row per message accepted and per step of a saga. Use the inbox_* functions; grant_role gives no right to the table.';
COMMENT ON COLUMN once.inbox.expires_at IS 'End of the ttl: after it the message or step counts as new.';
COMMENT ON COLUMN once.inbox.status IS 'm: a message; a: a step''s action ran; c: the action ran and was compensated; s: the compensation came before the action.';
COMMENT ON COLUMN once.inbox.id IS 'First 16 bytes of SHA-256 over "inbox" or "barrier", then scope, name and (for a step of a saga) step, in UTF-8; a NUL byte precedes each text.';
COMMENT ON COLUMN once.inbox.scope IS 'The consumer: the namespace of its messages and sagas, 1 to 100 characters.';
COMMENT ON COLUMN once.inbox.name IS 'The message_id of a message, or the saga of a step.';
COMMENT ON COLUMN once.inbox.step IS 'Name of the saga''s step; NULL: a message.';
COMMENT ON COLUMN once.inbox.verdict IS 'The verdict that inbox_record stored; NULL: none.';
SELECT pg_catalog.pg_extension_config_dump('once.inbox', '');

CREATE FUNCTION once.inbox_accept(
    scope text, message_id text, ttl interval = NULL, OUT accepted boolean, OUT verdict json)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_accept';
COMMENT ON FUNCTION once.inbox_accept(text, text, interval) IS
$$Accepts a message once, in the caller's transaction. scope: the consumer, 1 to 100 characters; message_id: 1 to 255. accepted: handle it in this transaction. Not accepted: a duplicate; verdict: as the first handler recorded it (NULL: none). Waits for a transaction that is handling the message. ttl: how long the message is remembered (30 days); after that it counts as new.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 another transaction accepted it after this snapshot, 25006 read-only, ON007 another shard's message.$$;

CREATE FUNCTION once.inbox_record(scope text, message_id text, verdict json)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_record';
COMMENT ON FUNCTION once.inbox_record(text, text, json) IS
$$Stores the handler's verdict, which inbox_accept returns to duplicates of the message. Call it in the accepting transaction. verdict: any JSON, stored byte for byte; not SQL NULL.
Errors: ON001 the message is not accepted (or its ttl is over), or another transaction accepted it and recorded nothing; ON006 a verdict is recorded already; 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 a lost race, 25006 read-only, ON007 another shard's message.$$;

CREATE FUNCTION once.inbox_barrier(
    scope text, saga text, step text, operation text, ttl interval = NULL, OUT outcome text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_inbox_barrier';
COMMENT ON FUNCTION once.inbox_barrier(text, text, text, text, interval) IS
$$Lets each step of a saga run once and be compensated once, in whatever order its calls arrive. Call it in the handler's transaction, before its writes. saga: 1 to 255 characters; step: 1 to 100; operation: action or compensation.
outcome: run (write only then); duplicate (this operation has run); skipped (a compensation before its action: nothing to undo); refused (an action after its compensation). ttl (30 days): must outlast the saga.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 a lost race, 25006 read-only, ON007 another shard's saga.$$;
