-- pg_once 0.1.0 -> 0.2.0, run by: ALTER EXTENSION pg_once UPDATE;
--
-- Whoever adds or changes an object in sql/NOUN.sql adds the same here, in the noun's own section; a
-- database that was upgraded is then the same as a new one (tests/e2e/upgrade compares the catalogs).
-- Old sessions go on with their kept plans and the new library served the old schema before this ran:
-- tables only gain columns, at their end, and no function loses an argument, a column or its symbol.
--
-- Run it in a session that began after the new library was installed (and, where the library is preloaded,
-- after a restart of the server): an older one has not the functions that this script names, and refuses it
-- as a whole.
--
-- Locks: what is created is new to everybody; an ALTER TABLE here waits for the transactions that use the
-- table, and they for it. Set lock_timeout before the update on a busy database, and repeat it.

\echo Use "ALTER EXTENSION pg_once UPDATE TO '0.2.0'" to load this file. \quit

-- Names and operators of this script are the server's own, whoever made objects of the same name elsewhere.
SET LOCAL search_path = pg_catalog, pg_temp;

-- key ---------------------------------------------------------------------------------------------

-- machine, action, cancel ---------------------------------------------------------------------------

-- outbox ------------------------------------------------------------------------------------------

-- inbox -------------------------------------------------------------------------------------------

-- janitor -----------------------------------------------------------------------------------------
-- The library tolerates a once.janitor without its last column (0.1.0) until this has run.
ALTER TABLE once.janitor ADD COLUMN served_by text;
COMMENT ON TABLE once.janitor IS 'The last run of each sweep task, and of action_release for each machine.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. What action_release did for one machine is counted in that machine''s row only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last run; where there was nothing to do, up to 30 seconds (or a quarter of once.janitor_grace) older.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs: rows, batches, tables or the task itself.';
COMMENT ON COLUMN once.janitor.last_error IS 'What the last failure said.';
COMMENT ON COLUMN once.janitor.served_by IS 'Who ran it last: "pg_once janitor" (the background worker), else the role and its application_name.';
COMMENT ON FUNCTION once.sweep(integer) IS
$$One bounded pass of every sweep task, max (1 to 1000000) rows per task; a row for each: what was done, what failed, whether more is waiting. Each task is in a subtransaction of its own: one that raises is rolled back and counted as failed (janitor_status tells what it said), and the others go on. So it is with each sweep_<task> alone. For schedulers that cannot CALL once.sweep_all().
Errors: 22023 bad argument, 25006 in a read-only transaction, 40001 a lost race above READ COMMITTED.$$;

CREATE PROCEDURE once.sweep_all(max integer = 1000)
LANGUAGE c AS 'MODULE_PATHNAME', 'pg_once_sweep_all';
COMMENT ON PROCEDURE once.sweep_all(integer) IS
$$Every sweep task, again and again until nothing more is waiting, and a commit after each batch of max (1 to 1000000) rows: CALL once.sweep_all(). A NOTICE for each task that did something, and every five seconds. A task that raises is counted as failed, and the others go on. May run from many sessions at once.
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
$$When each sweep task last ran, and action_release for each machine (machine NULL: the task as a whole; it counts no rows of machines). last_end: NULL: never; where there was nothing to do it may be up to 30 seconds old. done, failed: of all runs. last_error: what the last failure said. served_by: "pg_once janitor" is the background worker, otherwise the role and its application_name.$$;
INSERT INTO once.role_function (kind, function_name) VALUES
    ('observe', 'janitor_status'), ('observe', 'sweep_preview'),
    ('operate', 'janitor_status'), ('operate', 'sweep_preview'), ('operate', 'sweep_all');

-- metrics, doctor ---------------------------------------------------------------------------------

-- role (the last section: the rights of everything above) -------------------------------------------

-- What this script made belongs to the extension's owner, whoever ran it, and to nobody else: PUBLIC may
-- execute a new function, and somebody's ALTER DEFAULT PRIVILEGES may have opened more. (The membership of
-- what was made now is as new as the extension's version.) The rights on older objects are not touched: here
-- that would make them the extension's own, which pg_dump leaves out.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        WITH made AS (
            SELECT d.objid, e.extowner FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE e.extname = 'pg_once' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
               AND d.xmin = e.xmin),
        objects (object, acl, owner, extowner) AS (
            SELECT 'TABLE ' || c.oid::regclass, c.relacl, c.relowner, m.extowner
              FROM made m JOIN pg_class c ON c.oid = m.objid AND c.relnamespace = 'once'::regnamespace
            UNION ALL
            SELECT 'ROUTINE ' || p.oid::regprocedure, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner,
                   m.extowner
              FROM made m JOIN pg_proc p ON p.oid = m.objid AND p.pronamespace = 'once'::regnamespace)
        SELECT format('REVOKE ALL ON %s FROM %s', o.object,
                      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
          FROM objects o, aclexplode(o.acl) a
         WHERE a.grantee <> o.owner
        UNION ALL
        SELECT format('ALTER %s OWNER TO %s', o.object, o.extowner::regrole)
          FROM objects o
         WHERE o.owner <> o.extowner
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;

-- operate: everything that observe opens, too.
INSERT INTO once.role_function (kind, function_name)
    SELECT 'operate', function_name FROM once.role_function WHERE kind = 'observe'
    ON CONFLICT DO NOTHING;

-- Who was granted a kind may call its new functions, too. A role that has not the schema any more was shut out
-- by hand (DROP OWNED BY does that); a row of another cluster means the role of that name.
SELECT once.grant_role(r.oid, g.kind)
  FROM once.role_grant g JOIN pg_roles r
       ON CASE WHEN g.cluster = (SELECT system_identifier FROM pg_control_system())
               THEN g.role = r.oid ELSE g.role_name = r.rolname END
 WHERE EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
                WHERE n.nspname = 'once' AND a.grantee = r.oid AND a.privilege_type = 'USAGE');
