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
CREATE FUNCTION once.key_steps(
    scope text, since timestamptz = NULL, until timestamptz = NULL, in_status text = NULL, max integer = 10000,
    OUT key text, OUT status text, OUT attempt integer, OUT step text, OUT version integer, OUT derived_key text,
    OUT done boolean, OUT result json, OUT begun integer, OUT first_at timestamptz, OUT done_at timestamptz,
    OUT created_at timestamptz, OUT finished_at timestamptz, OUT response_code integer, OUT last_error text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1000 AS 'MODULE_PATHNAME', 'pg_once_key_steps';
COMMENT ON FUNCTION once.key_steps(text, timestamptz, timestamptz, text, integer) IS
$$What the requests of a scope did outside, to be compared with the other side's own ledger (sql/examples/reconcile.md): a row for each step of the keys that were created in [since, until) (NULL: no bound), and one without a step for a key that has none. in_status: only keys that are running, released, parked, finished or gone (NULL: any); parked: what waits for key_resolve. derived_key: what the step's present version sends to the other side; begun: how many attempts began it; done, result: its end, if it was recorded. A key that is gone has no steps to tell any more. Never tells a token. In no order. max (1 to 100000): more rows than that are an error, so that none is missing.
Errors: 22023 bad argument, or more rows than max; 42501 not a member of the scope's owner.$$;
INSERT INTO once.role_function (kind, function_name) VALUES ('operate', 'key_steps');
COMMENT ON TABLE once.key_bookmark IS 'How far the keys of each scope have been passed, by key_take_abandoned and by sweep_key_tombstone.';
COMMENT ON FUNCTION once.sweep_key_tombstone(integer) IS
$$Empties up to max (1 to 1000000) finished keys that are past their ttl: the answer, the state and the steps go, the fingerprint stays until gone_for ends.
It also moves the scopes' bookmarks (once.key_bookmark) up to the oldest key that waits for a completer, so that metrics() tells of that key however many newer ones are finished; up to 10 * max entries are read and max unfinished keys (1000 at most) moved for that, which done does not count. A key that is alive a minute after its first lease has ended is moved once for each of its leases, where a scope has more than 64 keys behind its bookmark; its holder waits for the sweep's transaction then, and one that works in a single transaction above READ COMMITTED may have to run it again (40001).$$;

-- machine, action, cancel ---------------------------------------------------------------------------

-- outbox ------------------------------------------------------------------------------------------
COMMENT ON TABLE once.dead IS 'Dead letters: events that used up their attempts, or were given up (kind never, or missing).';
COMMENT ON COLUMN once.dead.payload IS 'NULL: the event was not stored any more when it was given up (damage, or rows deleted by hand).';
COMMENT ON FUNCTION once.outbox_emit(text, json, text, text, json, interval) IS
$$Emits an event to every subscriber of the topic; it commits or vanishes with the caller's transaction. payload: stored and delivered byte for byte. order_key: 1 to 255 characters; events of one key are delivered in order. dedupe_key: 1 to 255 characters; a second emit of it within the topic's dedupe_for does nothing (emitted false, event_id the first one's), and waits for a transaction that is emitting it. headers: a JSON object for the handler. delay: delivered no sooner; such an emit waits for an open transaction that makes or drops a subscriber of the topic, and it for that.
Errors: 42704 no such topic, 22023 bad argument, delay with order_key, or a topic without subscribers, 42501 the topic has another owner, 40001 above READ COMMITTED where the dedupe_key was emitted after the snapshot, 25006 in a read-only transaction.$$;
COMMENT ON FUNCTION once.subscriber_set(text, text, jsonb) IS
$$Creates a subscriber (1 to 100 characters), which begins with what is emitted after it, or changes the options named; null resets one. A new one waits for open transactions that have emitted delayed events to the topic. max_attempts: failures until an event is dead (default 10). backoff_base (1 s) and backoff_cap (1 hour): see outbox_nack. lease (60 s): of a take that names none. max_lease_life (24 hours): the longest that a batch can be held, and how long an ended token answers repeats.
Errors: 42704 no such topic, 22023 an unknown option or bad value, 42501 the topic has another owner, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;
COMMENT ON FUNCTION once.subscriber_drop(text, text) IS
'Removes a subscriber and discards its backlog, its retries and its dead letters. Waits for open transactions that take, ack or nack for it, or have emitted delayed events to the topic. Errors: 42704 no such topic or subscriber, 42501 the topic has another owner, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.';
COMMENT ON FUNCTION once.outbox_dead(text, text, integer) IS
$$Up to max (1 to 10000) dead letters of a subscriber, the longest dead first. kind: the word of the last outbox_nack; expired: its last lease ran out (nobody nacked it, so no worker was told that it died); missing: the event was not stored any more, by damage or tampering (payload NULL).
Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner.$$;
COMMENT ON FUNCTION once.outbox_redrive(text, text, integer, bigint[]) IS
'Makes up to max (1 to 10000) dead letters due again, the longest dead first or those named; attempts count anew, event_id, emitted_at and delivery_key stay. Those that are not dead any more are passed over. One of kind missing is delivered if its event has been put back into once.event_kept, and dead again otherwise. Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner, 25006 in a read-only transaction.';
COMMENT ON FUNCTION once.sweep_outbox_requeue(integer) IS
'Puts back the events of batches whose lease ran out, batch by batch until max (1 to 1000000) events were put back. outbox_take does so by itself for what it looks at. Batches that somebody has locked wait for the next sweep. One that cannot be put back (a row of it is damaged) is counted as failed and put off, each time twice as long.';
COMMENT ON FUNCTION once.sweep_outbox_retire(integer) IS
$$Gives back what the outbox does not need any more: moves on to an empty segment when the present one is large or idle; copies what a lagging subscriber still needs out of the others (up to max, 1 to 1000000, events) and truncates a segment that nobody needs, once no transaction is left that could miss what was copied; deletes up to max each of copies, batches and failed attempts that are over. done counts all of these. It takes a few calls, each committed, until a segment's space is free: call it again while more. A segment that somebody reads is truncated later (it waits 50 ms); one session at a time does this, others have nothing to do. Commit at once: a truncated segment is locked until then. Failed, and nothing is given back, while an open transaction has made, changed or dropped a subscriber.$$;
-- An ANALYZE of these arrays took seconds, in which no segment could be truncated.
ALTER TABLE once.batch
    ALTER COLUMN event_ids SET STATISTICS 0, ALTER COLUMN seen_from SET STATISTICS 0, ALTER COLUMN seen_to SET STATISTICS 0,
    ALTER COLUMN late SET STATISTICS 0, ALTER COLUMN open SET STATISTICS 0;
ALTER TABLE once.receipt
    ALTER COLUMN event_ids SET STATISTICS 0, ALTER COLUMN attempts SET STATISTICS 0, ALTER COLUMN next_at SET STATISTICS 0,
    ALTER COLUMN dead SET STATISTICS 0;
-- Failed attempts go with the batch in which their event was acked. Those whose batch an earlier version deleted:
DELETE FROM once.delivery d
 WHERE NOT EXISTS (SELECT FROM once.retry r WHERE r.subscriber_id = d.subscriber_id AND r.event_id = d.event_id)
   AND NOT EXISTS (SELECT FROM once.dead x WHERE x.subscriber_id = d.subscriber_id AND x.event_id = d.event_id)
   AND NOT EXISTS (SELECT FROM once.batch b CROSS JOIN LATERAL pg_catalog.unnest(b.event_ids) i (event_id)
                    WHERE b.redelivered AND b.subscriber_id = d.subscriber_id AND i.event_id = d.event_id);
-- Retries of a subscriber that was dropped while somebody emitted a delayed event.
DELETE FROM once.retry r
 WHERE NOT EXISTS (SELECT FROM once.subscriber s WHERE s.subscriber_id = r.subscriber_id);

-- inbox -------------------------------------------------------------------------------------------
COMMENT ON FUNCTION once.inbox_record(text, text, json) IS
$$Stores what the handler answers, for duplicates of the message; only the transaction that accepted the message may. The first verdict stays: repeating it changes nothing, in any transaction. verdict: any JSON, stored byte for byte; not SQL NULL.
Errors: ON001 the message is not accepted (or its ttl is over), or another transaction accepted it and recorded nothing; ON006 another verdict is recorded, 22023 bad argument, 42501 not a member of the scope's owner, 55P03 lock_timeout, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;

-- janitor -----------------------------------------------------------------------------------------
-- The library tolerates a once.janitor without its last column (0.1.0) until this has run.
ALTER TABLE once.janitor ADD COLUMN served_by text;
COMMENT ON FUNCTION once.sweep_action_release(integer, text) IS
$$Reverts up to max (1 to 1000000) rows whose action's lease is overdue (NULL: of all machines), as the owner of their table in a security-restricted operation: pinned search_path, row security off, constraints immediate. Rows and leases that somebody has locked wait for the next sweep; a row that cannot be reverted is counted as failed and put off, each time twice as long. Removes leases that ended 24 hours ago, and teardowns whose row is gone. Functions of triggers on the swept table must qualify their names; a lock they wait for longer than 500 ms is a failure, and one that the parts of a batch which has waited so long wait for longer than 20 ms. A sweep that such a trigger calls reverts nothing. A table that somebody keeps from it (ALTER TABLE, CREATE INDEX) is passed over and no row of it is put off. A table is not swept in a session of an ordinary role with temporary tables.
Sets the caller's deferred constraints to immediate. Errors: 42704 no such machine, 22023 bad argument, 25006 in a read-only transaction.$$;
COMMENT ON TABLE once.janitor IS 'The last run of each sweep task, and of action_release for each machine.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. What action_release did for one machine is counted in that machine''s row only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last run; where there was nothing to do, up to 30 seconds (or a quarter of once.janitor_grace) older.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs: rows and batches each time they were tried, every due row of a table that could not be handled at all, or 1 for the task itself.';
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
CREATE FUNCTION once.metrics(OUT name text, OUT labels jsonb, OUT value double precision, OUT help text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_metrics';
COMMENT ON FUNCTION once.metrics() IS
$$What an exporter asks for: a row for each number, named and labelled as Prometheus does (_total: a counter; _seconds, _bytes: units; *_rate: a share from 0 to 1). help says what it counts, since when and within which bound. Cheap at any depth: nothing that is over is counted. pg_once_claims_total, idempotency_reuse_rate and idempotency_409_rate are counted in shared memory: without shared_preload_libraries = 'pg_once' these rows are absent, and a restart begins at zero.$$;

CREATE FUNCTION once.doctor(OUT level text, OUT problem text, OUT detail text, OUT hint text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_doctor';
COMMENT ON FUNCTION once.doctor() IS
$$What is wrong (level error), what soon will be (warning), and what is good to know (info): who holds back vacuum (old transactions, prepared ones, replication slots, standbys), a janitor that is not running or fails, growing dead letters, unfinished requests that nobody resumes, uncovered claim states and whatever else machine_check tells, rows that a sweep has put off, backends that keep rows locked, missing or invalid indexes, tables full of dead rows, a pretended clock, synchronous_commit off, owners that do not exist, claims that are not counted, SQL and library of different versions. Nothing but info: all is well. Writes nothing; works in a READ ONLY transaction and on a standby.$$;
INSERT INTO once.role_function (kind, function_name) VALUES
    ('observe', 'metrics'), ('observe', 'doctor'), ('operate', 'metrics'), ('operate', 'doctor');

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
        SELECT format('ALTER %s OWNER TO %s', o.object, o.extowner::regrole)
          FROM objects o
         WHERE o.owner <> o.extowner
        UNION ALL
        SELECT format('REVOKE ALL ON %s FROM %s', o.object,
                      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
          FROM objects o, aclexplode(o.acl) a
         WHERE a.grantee <> o.owner
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
