-- janitor: bounded passes that push forward what time has made due.
--
-- Every task takes its rows with SKIP LOCKED, at most max of them, in the caller's transaction, and may
-- run from many sessions at once. Under the same options no answer of the API but key_take_abandoned's depends on a
-- sweep having run: they only give back space. Times come from the one clock of the extension (pg_once_clock).
-- sql/examples/janitor.md has a table of the tasks.

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
COMMENT ON COLUMN once.janitor.task IS 'action_release, key_abandon, key_reap, key_tombstone, outbox_requeue, inbox_reap, dedupe_reap or outbox_retire.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. What action_release did for one machine is counted in that machine''s row only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last run; where there was nothing to do, older by up to 30 seconds (or a quarter of once.janitor_grace) and the pause between two runs.';
COMMENT ON COLUMN once.janitor.good_end IS 'End of the last run in which nothing failed.';
COMMENT ON COLUMN once.janitor.done IS 'Rows of all runs; not of one that ended while another session''s open transaction had noted its own.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs: rows each time they were tried, every due row of a table that could not be handled at all, a subscriber, or 1 for the task itself.';
COMMENT ON COLUMN once.janitor.last_error IS 'What the last failure said.';
COMMENT ON COLUMN once.janitor.served_by IS 'Who ran it last: "pg_once janitor" (the background worker), else the role and its application_name.';
SELECT pg_catalog.pg_extension_config_dump('once.janitor', '');

CREATE FUNCTION once.sweep(
    max integer = 1000, task text = NULL, machine text = NULL,
    OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 7 AS 'MODULE_PATHNAME', 'pg_once_sweep';
COMMENT ON FUNCTION once.sweep(integer, text, text) IS
$$One bounded pass: up to max (1 to 1000000) rows of each task, or of the named one. A row for each: done, failed, whether more is waiting. Also of one task, what raises is rolled back and counted as failed; janitor_status() tells the error. Waits for each lock up to once.sweep_lock_timeout; skips locked rows. machine goes with action_release alone, which sets the caller's deferred constraints to immediate. Commit at once: a truncated segment stays locked until then.
Errors: 22023 bad argument, unknown task; 42704 no such machine; 25006 read-only; 40001 a lost race above READ COMMITTED.$$;

CREATE PROCEDURE once.sweep_all(max integer = 1000)
LANGUAGE c AS 'MODULE_PATHNAME', 'pg_once_sweep_all';
COMMENT ON PROCEDURE once.sweep_all(integer) IS
$$Every sweep task, again and again until nothing more is waiting, and a commit after each batch of max (1 to 1000000) rows: CALL once.sweep_all(). A NOTICE for each task that did something, and every five seconds. A task that raises is counted as failed, and the others go on. It ends after 20 rounds where rows become due all the time. May run from many sessions at once.
Errors: 2D000 inside a transaction block, a function or an atomic DO (SELECT * FROM once.sweep() works there), 22023 bad argument, 25006 in a read-only session, 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.janitor_status(
    OUT task text, OUT machine text, OUT due bigint, OUT oldest interval, OUT last_end timestamptz, OUT done bigint,
    OUT failed bigint, OUT last_error text, OUT served_by text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_janitor_status';
COMMENT ON FUNCTION once.janitor_status() IS
$$A row for each task, and of action_release for each machine; changes nothing, also READ ONLY and on a standby. due: what a sweep would do now, 10000 at most (machine NULL: of all machines); NULL: its table is locked, so nobody can see. oldest: for how long the first has been due (outbox_retire: since its first event). last_end: may be 30 seconds old where nothing was due. done, failed: of all runs (machine NULL: but for those of machines). last_error: of the last failure. served_by: "pg_once janitor" is the background worker, else the role and its application_name.$$;
