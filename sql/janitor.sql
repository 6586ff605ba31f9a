-- janitor: bounded passes over rows that are due.
--
-- A run of a task handles about `max` rows in the caller's transaction and skips locked rows. Many sessions may sweep
-- at once. action_release, key_abandon and outbox_requeue make abandoned work available; the other tasks free space.
-- Times come from the extension's one clock (pg_ext/src/clock.rs). docs/how-to/schedule.md has a table of the tasks.

-- The last run of each task, and of action_release for each machine; machine_assert reads these rows to find claim
-- states that no sweep covers. Most runs with nothing to do are not recorded: see the comment of last_end.
CREATE TABLE once.janitor (
    task          text        COLLATE "C" NOT NULL,
    machine       text        COLLATE "C" NOT NULL,
    last_end      timestamptz,
    good_end      timestamptz,
    done          bigint      NOT NULL,
    failed        bigint      NOT NULL,
    last_error    text,
    last_error_at timestamptz,
    served_by     text,
    CONSTRAINT janitor_pkey PRIMARY KEY (task, machine)
) WITH (fillfactor = 50);
COMMENT ON TABLE once.janitor IS 'A row for each sweep task, and one for each machine that action_release sweeps: the last run, and totals of all runs.';
COMMENT ON COLUMN once.janitor.task IS 'action_release, key_abandon, key_reap, key_tombstone, outbox_requeue, inbox_reap, dedupe_reap, dead_reap, history_reap or outbox_retire.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. Rows that action_release handles are counted in the row of their machine only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last recorded run. After a recorded good run, further good runs with nothing to do are not recorded for 30 seconds, or for a quarter of once.janitor_grace if that is shorter. A run with another served_by is recorded. So the age of last_end is normally at most 30 seconds plus the pause between two runs. In an idle database the pause can be five minutes.';
COMMENT ON COLUMN once.janitor.good_end IS 'End of the last recorded run in which nothing failed.';
COMMENT ON COLUMN once.janitor.done IS 'Rows handled by all runs. A run is not counted if another session''s open transaction had this row locked when the run ended.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs. Each of these counts 1: a failed try of a row; a due row whose table is gone or cannot be locked or read; a subscriber whose expired batches outbox_requeue could not put back; a machine with teardowns of deleted rows that could not be closed; a task that failed as a whole.';
COMMENT ON COLUMN once.janitor.last_error IS 'Message of the last failure. It stays after good runs.';
COMMENT ON COLUMN once.janitor.last_error_at IS 'Time of the last failure.';
COMMENT ON COLUMN once.janitor.served_by IS 'Session of the last run: "pg_once janitor" (a background worker), else the role and its application_name.';
SELECT pg_catalog.pg_extension_config_dump('once.janitor', '');

CREATE FUNCTION once.sweep(
    max integer = 1000, task text = NULL, machine text = NULL,
    OUT task text, OUT done bigint, OUT failed bigint, OUT more boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_sweep';
COMMENT ON FUNCTION once.sweep(integer, text, text) IS
$$One bounded pass: about max (1 to 1000000) rows of each task, or of the named one. Returns a row for each task: rows done, failures, whether more is waiting. A task that fails is rolled back and counted as failed; janitor_status() shows why. Skips locked rows; waits for any other lock up to once.sweep_lock_timeout. machine: for action_release only. action_release sets the caller's deferred constraints to immediate. Commit at once: outbox_retire locks segments until then.
Errors: 22023 bad argument, unknown task; 42704 no such machine; 25006 read-only; 40001 a lost race above READ COMMITTED.$$;

CREATE PROCEDURE once.sweep_all(max integer = 1000)
LANGUAGE c AS 'MODULE_PATHNAME', 'pg_once_sweep_all';
COMMENT ON PROCEDURE once.sweep_all(integer) IS
$$Runs every sweep task until nothing more is waiting, and commits after each batch of about max (1 to 1000000) rows: CALL once.sweep_all(). Sends a NOTICE for each task with work, for a long task also every five seconds. A failed task is counted, and the others go on. Ends after 20 rounds at most, even if rows are due again. Many sessions may call it at once.
Errors: 2D000 inside a transaction block, a function or an atomic DO (SELECT * FROM once.sweep() works there); 22023 bad argument; 25006 in a read-only session; 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.janitor_status(
    OUT task text, OUT machine text, OUT due bigint, OUT oldest interval, OUT last_end timestamptz, OUT done bigint,
    OUT failed bigint, OUT last_error text, OUT last_error_at timestamptz, OUT served_by text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_janitor_status';
COMMENT ON FUNCTION once.janitor_status() IS
$$A row for each task, and for each machine that action_release sweeps. due: rows that a sweep would handle, 10000 at most (outbox_retire: old segments with events); NULL: a table is locked. oldest: time since the first row became due (outbox_retire: age of the oldest event). last_end: end of the last recorded run; later runs without work are not recorded for 30 s. done, failed: totals; a machine's rows count in its row only. last_error, last_error_at: the last failure, also after good runs. served_by: "pg_once janitor" (a worker), or role and application_name. Works READ ONLY and on a standby.$$;
