-- janitor: bounded passes that push forward what time has made due.
--
-- Every task takes its rows with SKIP LOCKED, at most max of them, in the caller's transaction, and may
-- run from many sessions at once. Under the same options no answer of the API depends on a sweep
-- having run: they only give back space. Times come from the one clock of the extension (pg_once_clock).

CREATE FUNCTION once.sweep_key_reap(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_key_reap';
COMMENT ON FUNCTION once.sweep_key_reap(integer) IS
'Deletes up to max (1 to 1000000) keys that are finished and past ttl and gone_for, each with its steps, in one statement. Never an unfinished key.';

CREATE FUNCTION once.sweep_key_tombstone(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_key_tombstone';
COMMENT ON FUNCTION once.sweep_key_tombstone(integer) IS
'Empties up to max (1 to 1000000) finished keys that are past their ttl: the answer, the state and the steps go, the fingerprint stays until gone_for ends.';

CREATE FUNCTION once.sweep(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'pg_once_sweep';
COMMENT ON FUNCTION once.sweep(integer) IS
'One bounded pass of every sweep task, max rows per task; a row for each: what was done, what failed, whether more is waiting. Errors: 22023 bad argument, 25006 in a read-only transaction.';
