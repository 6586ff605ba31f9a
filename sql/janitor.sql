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
$$Empties up to max (1 to 1000000) finished keys that are past their ttl: the answer, the state and the steps go, the fingerprint stays until gone_for ends.
It also moves the scopes' bookmarks (once.key_bookmark) up to the oldest key that waits for a completer, so that metrics() tells of that key however many newer ones are finished; up to 10 * max entries are read and max unfinished keys (1000 at most) moved for that, which done does not count. A key that is alive a minute after its first lease has ended is moved once for each of its leases, where a scope has more than 64 keys behind its bookmark; its holder waits for the sweep's transaction then, and one that works in a single transaction above READ COMMITTED may have to run it again (40001).$$;

CREATE FUNCTION once.sweep_outbox_requeue(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_outbox_requeue';
COMMENT ON FUNCTION once.sweep_outbox_requeue(integer) IS
$$Puts back the events of batches whose lease expired, batch by batch until max (1 to 1000000) events were put back. outbox_take does so by itself for what it looks at. Batches that somebody has locked wait for the next sweep. A subscriber whose batches cannot be put back counts as one failure and stops no other.$$;

CREATE FUNCTION once.sweep_inbox_reap(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_inbox_reap';
COMMENT ON FUNCTION once.sweep_inbox_reap(integer) IS
'Deletes up to max (1 to 1000000) messages and steps of sagas whose ttl is over (inbox_accept, inbox_barrier).';

CREATE FUNCTION once.sweep_dedupe_reap(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_dedupe_reap';
COMMENT ON FUNCTION once.sweep_dedupe_reap(integer) IS
'Deletes up to max (1 to 1000000) dedupe_keys whose topic''s dedupe_for is over (outbox_emit).';

CREATE FUNCTION once.sweep_outbox_retire(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_outbox_retire';
COMMENT ON FUNCTION once.sweep_outbox_retire(integer) IS
$$Gives back what the outbox does not need any more: moves on to an empty segment when the present one is large or idle; copies what a lagging subscriber still needs out of the others (up to max, 1 to 1000000, events) and truncates a segment that nobody needs; deletes up to max each of copies, batches and failed attempts that are over. done counts all of these. It takes a few calls, each committed, until a segment's space is free. Commit at once: a truncated segment is locked until then. One session at a time does this. A segment that somebody reads (a dump) waits for a later call, without a failure. Fails, and is undone as a whole, while an open transaction has made, changed or dropped a subscriber.$$;

-- When each task last ran, and for each machine; machine_assert asks whether a claim state is covered. A run
-- that found nothing to do is written at most every 30 seconds, so that an idle janitor hardly writes.
CREATE TABLE once.janitor (
    task       text        COLLATE "C" NOT NULL,
    machine    text        COLLATE "C" NOT NULL,
    last_end   timestamptz,
    good_end   timestamptz,
    done       bigint      NOT NULL,
    failed     bigint      NOT NULL,
    last_error text,
    served_by  text,
    CONSTRAINT janitor_pkey PRIMARY KEY (task, machine)
) WITH (fillfactor = 50);
COMMENT ON TABLE once.janitor IS 'The last run of each sweep task, and of action_release for each machine.';
COMMENT ON COLUMN once.janitor.task IS 'action_release, key_reap, key_tombstone, outbox_requeue, inbox_reap, dedupe_reap or outbox_retire.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. What action_release did for one machine is counted in that machine''s row only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last run; where there was nothing to do, older by up to 30 seconds (or a quarter of once.janitor_grace) and the pause between two runs.';
COMMENT ON COLUMN once.janitor.good_end IS 'End of the last run in which nothing failed.';
COMMENT ON COLUMN once.janitor.done IS 'Rows of all runs; not of one that ended while another session''s open transaction had noted its own.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs: rows each time they were tried, every due row of a table that could not be handled at all, a subscriber, or 1 for the task itself.';
COMMENT ON COLUMN once.janitor.last_error IS 'What the last failure said.';
COMMENT ON COLUMN once.janitor.served_by IS 'Who ran it last: "pg_once janitor" (the background worker), else the role and its application_name.';
SELECT pg_catalog.pg_extension_config_dump('once.janitor', '');

CREATE FUNCTION once.sweep_action_release(
    max integer = 1000, machine text = NULL, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_sweep_action_release';
COMMENT ON FUNCTION once.sweep_action_release(integer, text) IS
$$Reverts up to max (1 to 1000000) rows whose action's lease expired (NULL: of all machines), as the owner of their table in a security-restricted operation: pinned search_path, row security off, constraints immediate. Rows and leases that somebody has locked wait for the next sweep; a row that cannot be reverted counts as failed and is tried again with backoff. Removes leases that ended 24 hours ago, and teardowns whose row is gone. Sets the caller's deferred constraints to immediate. Errors: 42704 no such machine, 22023 bad argument, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.sweep(max integer = 1000, OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 7 AS 'MODULE_PATHNAME', 'pg_once_sweep';
COMMENT ON FUNCTION once.sweep(integer) IS
$$One bounded pass of every sweep task, max (1 to 1000000) rows per task; a row for each: what was done, what failed, whether more is waiting. Each task is in a subtransaction of its own: one that raises is rolled back and counted as failed (janitor_status tells what it said), and the others go on. It waits for each lock up to once.sweep_lock_timeout; locked rows are skipped, and a table that it cannot lock is left for the next sweep and counts as failed. For schedulers that cannot CALL once.sweep_all().
Errors: 22023 bad argument, 25006 in a read-only transaction, 40001 a lost race above READ COMMITTED.$$;

CREATE PROCEDURE once.sweep_all(max integer = 1000)
LANGUAGE c AS 'MODULE_PATHNAME', 'pg_once_sweep_all';
COMMENT ON PROCEDURE once.sweep_all(integer) IS
$$Every sweep task, again and again until nothing more is waiting, and a commit after each batch of max (1 to 1000000) rows: CALL once.sweep_all(). A NOTICE for each task that did something, and every five seconds. A task that raises is counted as failed, and the others go on. It ends after 20 rounds where rows become due all the time. May run from many sessions at once.
Errors: 2D000 inside a transaction block, a function or an atomic DO (SELECT * FROM once.sweep() works there), 22023 bad argument, 25006 in a read-only session, 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.sweep_preview(OUT task text, OUT due bigint, OUT oldest interval)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 7 AS 'MODULE_PATHNAME', 'pg_once_sweep_preview';
COMMENT ON FUNCTION once.sweep_preview() IS
$$What a sweep would do now, changing nothing; a row for each task, also in a READ ONLY transaction and on a standby. due: action_release: rows whose action's lease is overdue; key_reap, inbox_reap, dedupe_reap: what is to be deleted; key_tombstone: keys to be emptied; outbox_requeue: events of batches whose lease ran out; outbox_retire: segments to be emptied. Bounded: only the first 10000 rows that the sweep would look at are looked at (of each machine), so 10000 means at least so many. oldest: for how long the first of them has been due (outbox_retire: since its first event was emitted); NULL: nothing is due.$$;

CREATE FUNCTION once.janitor_status(
    OUT task text, OUT machine text, OUT last_end timestamptz, OUT done bigint, OUT failed bigint, OUT last_error text,
    OUT served_by text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_janitor_status';
COMMENT ON FUNCTION once.janitor_status() IS
$$When each sweep task last ran, and action_release for each machine (machine NULL: the task as a whole; it counts no rows of machines). last_end: where there was nothing to do it may be up to 30 seconds old. done, failed: of all runs. last_error: what the last failure said. served_by: "pg_once janitor" is the background worker, otherwise the role and its application_name.$$;
