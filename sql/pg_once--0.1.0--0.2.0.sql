-- pg_once 0.1.0 -> 0.2.0, run by: ALTER EXTENSION pg_once UPDATE;
--
-- Whoever adds or changes an object in sql/NOUN.sql adds the same here, in the noun's own section; a
-- database that was upgraded is then the same as a new one (tests/e2e/upgrade compares the catalogs).
-- Sessions that have the new library go on with their kept plans, as it served the old schema before this ran:
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
COMMENT ON FUNCTION once.scope_set(text, jsonb) IS
$$Changes the options named in a JSON object and returns them all; null resets one (max_attempts: null means no limit). lease, ttl, max_lease_life: positive intervals as text; gone_for: an interval, 0 makes an expired key new at once; on_expiry: "resume" or "park"; max_attempts: a whole number above 0; keep_request: a boolean; recovery_points: an array of texts, in order; owner: a role, only its members may use the scope then.
Answers follow the options as they are at the call; an answer that a sweep has thrown away under an earlier gone_for, or throws away in a transaction that is still open, does not come back. Waits for open takes of the scope that put keys aside.
Errors: 22023 an unknown option or a bad value, 42501 not a member of the present and the new owner, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;
INSERT INTO once.role_function (kind, function_name) VALUES ('operate', 'key_steps');
COMMENT ON FUNCTION once.sweep_key_tombstone(integer) IS
$$Empties up to max (1 to 1000000) finished keys that are past their ttl: the answer, the state and the steps go, the fingerprint stays until gone_for ends.
It also moves the scopes' bookmarks (once.key_bookmark) up to the oldest key that waits for a completer, so that metrics() tells of that key however many newer ones are finished; up to 10 * max entries are read and max unfinished keys (1000 at most) moved for that, which done does not count. A key that is alive a minute after its first lease has ended is moved once for each of its leases, where a scope has more than 64 keys behind its bookmark; its holder waits for the sweep's transaction then, and one that works in a single transaction above READ COMMITTED may have to run it again (40001).$$;

-- machine, action, cancel ---------------------------------------------------------------------------
-- Guards that are on stay as they are, before the row; machine_guard(machine, true) puts on the present kind.
COMMENT ON FUNCTION once.machine_define(jsonb) IS
$$Registers a machine over one of the caller's own tables, or replaces its definition atomically; live leases are not altered. Returns the definition as stored. Members:
machine (1 to 100 characters), table, id, status; optional: version (a bigint NOT NULL column; every move adds 1), owner (a role: only its members may use the machine);
status_types (all of them), terminal (no way out);
transitions: [{from: [...], to, when?}]; steps: [{step_key, status, claim_state: {requester: [claim_into, revert_to]}, successful_state: {requester: status}, lease?, action?}] (requester "*": any; action: free JSON);
cancel: {flag, to}; refund: {items, item_id, subject, marker, marked, undecided?, when?, amount, wallet, wallet_id, account, balance}.
when: a predicate over the row's own columns, as in a CHECK constraint; NULL counts as false. Where it calls a function that reads tables all the same, the guard asks it once more, and what it finds changed by then is ON002.
Errors: ON003 with one DETAIL line per fault, 42501 the table is not the caller's or the machine has an owner, 55006 a live lease uses a status that the new definition removes, or a teardown is under way that it would change, 40001 a guarded table got another name, or was dropped, while it was waited for, 55P03 open transactions kept the tables from being locked together, 40P01 who keeps one waits for something that the caller's transaction has had from before, for its end (CREATE INDEX CONCURRENTLY), or for its turn in such a call of its own. The same definition again writes nothing. A guarded machine's table is locked exclusively where its guard has to be another one.$$;
COMMENT ON FUNCTION once.machine_check(text) IS
$$What disagrees between a definition and its tables (NULL: of all machines that are open to the caller): columns that were dropped or renamed or do not fit any more, enum labels that no status names, rows in a claim state without a lease, claim states that no sweep covers, a guard that is disabled, missing, or followed by another trigger before the row is written, or of another kind than a partition needs, a missing index, a rule for updates that keeps refund from paying, rows whose cancel flag was set by hand, another machine with the same cancel flag, or with the same items by the same subject and marker. No rows: nothing found. Looks into a table as its owner, for callers who may read it.
Errors: 42704 no such machine.$$;
COMMENT ON FUNCTION once.machine_guard(text, boolean) IS
$$Puts triggers on the machine's table and its items (or takes them off) that refuse with ON002, whoever writes: a status change that is not declared or whose when is false on the old row; leaving a terminal state; entering or leaving a claim state other than by its lease; an INSERT into a claim state or the cancelled state; any change of the cancel flag but cancel_request's; deleting a row that is being cancelled before it is; an undecided item under a cancelled row; a change of a marked item's marker, amount, subject or match of when, and its deletion before the row is cancelled. A write to an item locks its machine's row FOR KEY SHARE.
A row of the machine's table is judged as it was written, whatever BEFORE triggers made of it, at the end of its statement, before its own foreign keys and other AFTER triggers (until then each row that the statement writes takes about 18 bytes of memory). Judged before it is written, after BEFORE triggers whose names sort before the guard's: an item; a row of a partitioned table or a partition; and a row of a machine with a when that names anything of the user's (a function, an operator, a type, a column of such a type), since that may look at the table. Call it again once the machine's table has itself been attached as a partition: until then it lets no row be taken to another one.
It cannot see TRUNCATE, replication, session_replication_role = replica, or an owner who disables it (machine_check reports the last). Lock a guarded row yourself FOR NO KEY UPDATE, never FOR UPDATE: writers of items hold it FOR KEY SHARE.
Waits for one of the tables (or of their partitions) while it has none of the others locked, as long as lock_timeout says, and then for the rest, 1 s and in later tries 4 s at most, until somebody who keeps one of them waits for it: it looks for that every 5 ms (less often where hundreds wait for one row), and so nearly always before a writer is a deadlock's victim. Ten times at least, which takes half a minute where nobody is met, and for 20 s, with pauses between; all of that is shorter where deadlock_timeout is less than 1 s. log_lock_waits says nothing of these waits, and pg_stat_database.deadlocks counts none of them. An autovacuum in the way is cancelled. Where the triggers are as they are to be it waits for no writer; where they are not, claims of the machine answer busy while it waits: set a lock_timeout.
Errors: 42704 no such machine, 42501 a table is not the caller's, 40001 a table got another name, or was dropped, while it was waited for, 55P03 open transactions kept the tables from being locked together, 40P01 who keeps one waits for something that the caller's transaction has had from before, for its end (CREATE INDEX CONCURRENTLY), or for its turn in such a call of its own.$$;
COMMENT ON FUNCTION once.machine_assert() IS
$$Raises ON004 naming every machine (of those open to the caller) and claim state that is not covered; call it when a service boots. Covered: an action_release sweep of the machine (the background worker's, or anybody's) has ended without failure within once.janitor_grace, and could note it: a transaction that has called sweep() and stays open keeps others from that.$$;

COMMENT ON FUNCTION once.transition(text, text, text, text[], jsonb, text, bigint) IS
$$Makes one declared move by one conditional UPDATE with the caller's rights. from_status: only from these (NULL: from wherever a move to to_status is declared); patch: other columns of the row to set, a JSON object; requester: whose moves of steps without a claim state count too; version: only at this version.
reason: NULL when moved, else not_found, status, guard (the move's when is false), version, claimed (the row is in a claim state), cancelling (its cancel flag is set). Under READ COMMITTED a lost race is one of these, never an error.
For work that can die half-way use action_claim.
Where nothing of the table's own takes part in the update (status is a text, varchar or enum; no trigger but the machine's guard, rule, policy, generated column, child table; CHECK constraints are evaluated), no condition and no patch is asked for, it is written without the server's executor: the same in every effect, but hooks of the executor (auto_explain, pg_stat_statements.track = all) see no UPDATE.
Errors: ON002 no declared move leads there, or something of the table (a trigger, a rule, a policy) keeps the row back, 42704 no such machine, 22023 bad argument, 42501 no right to update the table, 40001 a lost race above READ COMMITTED, or a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.action_claim(text, text, text, text, interval, text, bigint) IS
$$Claims one row for one step's action. requester: whose claim state (NULL: that of "*"); lease: a positive interval (default: the step's, then once.action_lease); holder: a fresh UUID per attempt, so that a lost answer can be asked for again; version: only at this version.
outcome: claimed (the row wears claim_into now; commit before any foreign call), busy (somebody has it; try again after retry_after), cancelling (its cancel flag is set and nobody has it: tear down), refused (not in the step's status or not at this version, or the step names no such requester), not_found, unclaimed (no claim state for this requester: end it with transition). Waits for no row and no lease, only for whoever locks the whole table.
Errors: 42704 no such machine, 22023 bad argument or unknown step_key, ON002 something of the table keeps the row back, 42501 no right to update the table, 40001 a lost race above READ COMMITTED, or a table that it waited for has changed (its name, or a column of the definition).
A transient claim status that a sweep reverts is an old pattern of workflow engines; here it is a lease with a token.$$;
COMMENT ON FUNCTION once.machine_drop(text) IS
$$Forgets a machine and takes its guard off the tables. What was refunded stays on record.
Errors: 42704 no such machine, 42501 not yours, 55006 one of its rows is leased, 40001 a guarded table got another name, or was dropped, while it was waited for, 55P03 open transactions kept the tables from being locked together, 40P01 who keeps one waits for something that the caller's transaction has had from before, for its end (CREATE INDEX CONCURRENTLY), or for its turn in such a call of its own.$$;
COMMENT ON FUNCTION once.action_extend(text, text, bigint, interval) IS
$$A heartbeat: the lease counts from now. cancelling: the row's cancel flag is set; roll back, release, tear down. It locks the lease to the end of the transaction: called in the transaction of an item's writes it keeps the item of a lost lease from committing.
Errors: ON001 the lease is lost, ON006 the action is finished, 22023 bad argument, 42704 no such machine, 42501 no right to update the table, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.action_finish(text, text, bigint, jsonb) IS
$$Ends an action that succeeded, in the transaction of its writes; call it first there (the machine's row is locked before the items). patch: other columns of the row to set. outcome: finished (claim_into -> successful_state), or cancelling (nothing changed: roll back this transaction's writes, then release and tear down). Repeating it with the same arguments gives the same answer until the next claim, or for 24 hours.
Errors: ON001 the lease is lost, ON006 it is finished with another patch, 22023 bad argument, 42704 no such machine, 42501 no right to update the table, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.action_release(text, text, bigint, text) IS
$$Gives a row back after a failure, or for a teardown: claim_into -> revert_to. error: kept with the lease. Repeating it gives the same answer until the next claim, or for 24 hours.
Errors: ON001 the lease is lost, ON006 the action is finished, 22023 bad argument, 42704 no such machine, 42501 no right to update the table, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.action_adopt(text, integer) IS
$$Gives up to max (1 to 1000000) rows that wear a claim state without a lease (loaded, replicated, there before the definition) an overdue one, so that the next sweep reverts them; and begins the teardown of rows whose cancel flag was set by hand, so that cancel_pending lists them. Returns how many. Skips rows that somebody has locked.
Errors: 42704 no such machine, 42501 no right to update the table, 22023 bad argument, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.cancel_request(text, text) IS
$$Sets the row's cancel flag. outcome: teardown (nobody is at it and nobody can start now: tear down), accepted (it is in a claim state: its holder sees cancelling, releases and tears down; should it die, the sweep reverts the row and cancel_pending lists it), done (already cancelled), too_late (another terminal state), not_found.
Errors: 42704 no such machine, 22023 the machine declares no cancel, ON002 something of the table keeps the row back, 42501 no right to update the table, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.refund(text, text, integer) IS
$$Marks every undecided item (max_items: at most so many, by key) and credits the amounts of those that match the definition's when, in one statement with the caller's rights. items, amount: this call's; remaining: some are still undecided; pass: for cleanup_confirm. Running it again adds nothing twice.
Errors: ON002 the flag is not set, a lease is on the row, it is in another terminal state, or something of the items table (a trigger, a policy) keeps an item back or changes what it costs, or of the wallet's (a trigger, a policy) what it gets or its key, or the table of either has a rule for updates (AFTER triggers are not looked at); 22023 an amount that is NULL, negative, NaN or infinite; 23503 no such wallet; 22003 an overflow; 42704 no such machine; 40001 a lost race above READ COMMITTED, the wallet was deleted and put there anew while it waited (ON002 where its table has triggers, policies or partitions), or a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.cleanup_items(text, text, text, integer) IS
$$All items of the row that carry the marker, by key order, every time, as committed now at every isolation level: delete their artifacts. after_id: the last item_id of the previous page; max: 1 to 100000.
Errors: 42704 no such machine, 22023 bad argument, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.cleanup_confirm(text, text, bigint) IS
$$Says that everything listed after refund returned pass is deleted (deleting a missing artifact is success). false: a later refund marked more, list again.
Errors: ON002 as refund, 22023 a pass that no refund returned, 42704 no such machine, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.cancel_finish(text, text, jsonb) IS
$$The terminal move of a teardown. patch: other columns of the row to set. Takes the row FOR UPDATE and then looks at what is committed, at every isolation level; a transaction that wrote items should not call it: who has the row may wait for one of them, which ends the call after half a second. Once cancelled it is a no-op.
Errors: ON005 an item is undecided or the last pass is not confirmed, ON002 as refund, 42704 no such machine, 40P01 who has the row waits for this transaction, 55P03 the row was not to be had within lock_timeout, 40001 a lost race above READ COMMITTED, or a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.cancel_pending(text, integer) IS
$$What a teardown worker takes up: rows whose flag is set, that nobody has leased and that are not finished, oldest request first. max: 1 to 100000.
Errors: 42704 no such machine, 22023 bad argument, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;
COMMENT ON FUNCTION once.refund_audit(text, text) IS
$$Rows of the machine (NULL: all) where the sum of the marked items that match when and the recorded refunds disagree; no rows is the proof. difference: refunded_amount - marked_amount. A row of the machine that is gone is not audited. Reads the items with the caller's rights.
Errors: 42704 no such machine, 42501 no right to read the items, or the machine's table where there is a difference, 40001 a table that it waited for has changed (its name, or a column of the definition).$$;

-- outbox ------------------------------------------------------------------------------------------
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
'Puts back the events of batches whose lease ran out, batch by batch until max (1 to 1000000) events were put back. outbox_take does so by itself for what it looks at. Batches that somebody has locked wait for the next sweep; while somebody keeps a table of the outbox locked (a segment that is being truncated, too) nothing is done and that counts as one failure. A batch that cannot be put back (a row of it is damaged) is counted as failed and put off, each time twice as long; a lock that a trigger still waits for 500 ms after the call''s begin is a failure, and then, for a quarter of a second, one that what is left waits for longer than 5 ms.';
COMMENT ON FUNCTION once.sweep_outbox_retire(integer) IS
$$Gives back what the outbox does not need any more: moves on to an empty segment when the present one is large or idle; copies what a lagging subscriber still needs out of the others (up to max, 1 to 1000000, events) and truncates a segment that nobody needs, once no transaction is left that could miss what was copied; deletes up to max each of copies, batches and failed attempts that are over. done counts all of these. It takes a few calls, each committed, until a segment's space is free: call it again while more. Whatever lock_timeout says, it waits 200 ms for who changes once.subscriber and 50 ms for who reads a segment, which is truncated later then; one session at a time does this, others have nothing to do and note no run. Commit at once: a truncated segment is locked until then. Failed, and nothing is given back, while an open transaction has made, changed or dropped a subscriber, or keeps a table of the outbox locked.$$;
-- An ANALYZE of these arrays, and of those of once.batch, took seconds, in which no segment could be truncated.
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
-- The library tolerates these two without their last columns (0.1.0) until this has run. In this order: a sweep wants
-- once.janitor first.
ALTER TABLE once.janitor ADD COLUMN served_by text, ADD COLUMN reached text;
ALTER TABLE once.batch ADD COLUMN failures integer NOT NULL DEFAULT 0,
    ALTER COLUMN event_ids SET STATISTICS 0, ALTER COLUMN seen_from SET STATISTICS 0, ALTER COLUMN seen_to SET STATISTICS 0,
    ALTER COLUMN late SET STATISTICS 0, ALTER COLUMN open SET STATISTICS 0;
COMMENT ON COLUMN once.batch.failures IS 'Takes and sweeps in a row that could not put it back when its lease had run out; each gives it a longer one.';
COMMENT ON FUNCTION once.sweep_action_release(integer, text) IS
$$Reverts up to max (1 to 1000000) rows whose action's lease is overdue (NULL: of all machines), as the owner of their table in a security-restricted operation: pinned search_path, row security off, constraints immediate. Rows and leases that somebody has locked wait for the next sweep; a row that cannot be reverted is counted as failed and put off, each time twice as long. Removes leases that ended 24 hours ago, and teardowns whose row is gone. Functions of triggers on the swept table must qualify their names; a lock they still wait for 500 ms after the call's begin (or for longer than lock_timeout) is a failure, and then, for a quarter of a second, one that what is left waits for longer than 5 ms; after that the rest waits for the next call. A sweep that such a trigger calls reverts nothing. A table that somebody keeps from it (ALTER TABLE, CREATE INDEX) is passed over and no row of it is put off. A table is not swept in a session of an ordinary role with temporary tables.
Sets the caller's deferred constraints to immediate. Errors: 42704 no such machine, 22023 bad argument, 25006 in a read-only transaction, 55P03 somebody keeps once.machine and a machine was named.$$;
COMMENT ON TABLE once.janitor IS 'The last run of each sweep task, and of action_release for each machine.';
COMMENT ON COLUMN once.janitor.task IS 'action_release, key_reap, key_tombstone, outbox_requeue, inbox_reap, dedupe_reap or outbox_retire.';
COMMENT ON COLUMN once.janitor.machine IS 'Empty: the task as a whole. What action_release did for one machine is counted in that machine''s row only.';
COMMENT ON COLUMN once.janitor.last_end IS 'End of the last run that came to its end; where there was nothing to do, older by up to 30 seconds (or a quarter of once.janitor_grace) and the pause between two runs.';
COMMENT ON COLUMN once.janitor.good_end IS 'End of the last run that failed nowhere and left nothing untried.';
COMMENT ON COLUMN once.janitor.done IS 'Rows of all runs; not of one that ended while another session''s open transaction had noted its own.';
COMMENT ON COLUMN once.janitor.failed IS 'Failures of all runs: rows and batches each time they were tried, every due row of a table that could not be handled at all, or 1 for the task itself.';
COMMENT ON COLUMN once.janitor.last_error IS 'What the last failure said.';
COMMENT ON COLUMN once.janitor.served_by IS 'Who ran it last: "pg_once janitor" (the background worker), else the role and its application_name.';
COMMENT ON COLUMN once.janitor.reached IS 'Where the next pass goes on, after one that met rows which cannot be changed and ended early: which rows, when the last one was due (microseconds since 2000), where it is. NULL: at the oldest.';
COMMENT ON FUNCTION once.sweep(integer) IS
$$One bounded pass of every sweep task, max (1 to 1000000) rows per task; a row for each: what was done, what failed, whether more is waiting. Each task is in a subtransaction of its own: one that raises is rolled back and counted as failed (janitor_status tells what it said), and the others go on. So it is with each sweep_<task> alone. They wait for locks until 500 ms after the call's begin, and 5 ms each after that (or lock_timeout, where that is shorter; outbox_retire has its own: up to 200 ms; what the caller has deferred waits as long as the caller would): a table that somebody keeps is its task's failure, and so is a run that cannot be noted in once.janitor (what was done stays done). A pass of key_reap, key_tombstone, inbox_reap or dedupe_reap in which as many rows failed as were done does not say more for what it left: the next call goes on there, but nobody is to come back at once. Where somebody has put triggers or foreign keys on pg_once's tables, the caller's deferred constraints are set to immediate. For schedulers that cannot CALL once.sweep_all().
Errors: 22023 bad argument, 25006 in a read-only transaction, 40001 a lost race above READ COMMITTED.$$;

CREATE PROCEDURE once.sweep_all(max integer = 1000)
LANGUAGE c AS 'MODULE_PATHNAME', 'pg_once_sweep_all';
COMMENT ON PROCEDURE once.sweep_all(integer) IS
$$Every sweep task, again and again until nothing more is waiting, and a commit after each batch of max (1 to 1000000) rows: CALL once.sweep_all(). A NOTICE for each task that did something, and every five seconds. A task that raises is counted as failed, and the others go on. It ends where rows become due all the time (after 20 rounds) and, for a task, after five passes in a row over rows that fail; the next call goes on. May run from many sessions at once.
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
$$When each sweep task last ran, and action_release for each machine (machine NULL: the task as a whole; it counts no rows of machines). last_end: NULL: none has come to its end; where there was nothing to do it may be up to 30 seconds old. done, failed: of all runs. last_error: what the last failure said. served_by: "pg_once janitor" is the background worker, otherwise the role and its application_name.$$;
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

-- comments ----------------------------------------------------------------------------------------
-- Of tables and columns that were there without one, or with another. COMMENT ON would lock each table against
-- VACUUM, and wait for one; these rows are what it writes.
WITH told AS MATERIALIZED (
    SELECT c.oid AS relation, COALESCE(a.attnum, 0) AS attnum, t.description
      FROM (VALUES
      ('key_bookmark', NULL, 'How far the keys of each scope have been passed, by key_take_abandoned and by sweep_key_tombstone.'),
      ('key', 'scope', 'The namespace of the key and of its options, 1 to 100 characters.'),
      ('key', 'key', 'The caller''s idempotency key, 1 to 255 characters.'),
      ('key', 'recovery_point', 'Where the next attempt goes on: as the last key_advance said; "started" before the first.'),
      ('key', 'holder', 'Who made the present or last attempt, as its claim said; NULL: it did not, or a tombstone.'),
      ('key', 'state', 'What key_advance stored for the next attempt; NULL: nothing, or a tombstone.'),
      ('key', 'finished_at', 'When it was completed or aborted; its ttl counts from here. NULL: unfinished.'),
      ('key', 'response_code', 'The answer''s code, as key_complete, key_abort or key_resolve stored it; NULL: unfinished, or a tombstone.'),
      ('key', 'response_body', 'The answer''s body, byte for byte; NULL: none, unfinished, or a tombstone.'),
      ('key', 'response_headers', 'The answer''s headers, byte for byte; NULL: none, unfinished, or a tombstone.'),
      ('key', 'request', 'The request of the first claim, where the scope has keep_request; NULL: not kept, none, given as a hash only, or a tombstone.'),
      ('key', 'resolved_attempt', 'The parked attempt that the last key_resolve gave a verdict on; NULL: none yet.'),
      ('key', 'resolved_verdict', 'That verdict: r retry, c complete, a abort; NULL: none yet.'),
      ('key_step', 'key_id', 'The request that it belongs to: once.key.id.'),
      ('key_step', 'step', 'Name of the step, 1 to 100 characters.'),
      ('key_step', 'done_at', 'When its end was recorded; NULL: not recorded; once it was begun, the other side may have acted.'),
      ('key_step', 'done_token', 'Token of the attempt that recorded its end; NULL: not recorded.'),
      ('key_step', 'result', 'What key_step_done was given; NULL: nothing, or its end is not recorded.'),
      ('scope', 'scope', 'Name of the scope; its options count for once.key, its owner for once.inbox, too.'),
      ('scope', 'lease_us', 'Lease of a claim, an advance or an extend that names none, in microseconds; NULL: once.key_lease.'),
      ('scope', 'ttl_us', 'How long an answer is replayed where the first claim does not say, in microseconds; NULL: once.key_ttl.'),
      ('scope', 'gone_for_us', 'How long a key stays gone after its ttl, in microseconds; 0: it is new at once; NULL: 24 hours.'),
      ('scope', 'max_lease_life_us', 'The longest that one attempt can hold a key, counted from its claim, in microseconds; NULL: 24 hours.'),
      ('scope', 'on_expiry', 'What becomes of a key whose lease ran out: resume (the next claim goes on) or park (it waits for key_resolve); NULL: resume.'),
      ('scope', 'keep_request', 'True: the request of a first claim is kept in once.key; false or NULL: it is not.'),
      ('scope', 'recovery_points', 'The points that key_advance takes, in the order in which a key passes them; NULL: any point, in any order.'),
      ('scope', 'owner_cluster', 'System identifier of the cluster where the owner was set; NULL: no owner.'),
      ('key_bookmark', 'scope', 'Name of the scope.'),
      ('key_bookmark', 'upto', 'The scope''s keys with look_at up to here are finished or were moved forward; -infinity: nothing is passed yet.'),
      ('key_bookmark', 'next_upto', 'Where upto may move once the transactions before next_xid have ended; 5 seconds before the time at which it was noted.'),
      ('key_bookmark', 'next_xid', 'The next full transaction id when next_upto was noted; 0: those before have ended, and the key behind upto waits for a completer.'),
      ('machine', 'machine', 'Name of the machine, 1 to 100 characters.'),
      ('machine', 'owner_name', 'The owner''s name when it was set; NULL: no owner.'),
      ('machine', 'owner_cluster', 'System identifier of the cluster where the owner was set; NULL: no owner.'),
      ('machine', 'definition', 'What machine_define was given, normalised, without the tables'' names and the owner: predicates with every name qualified, leases as text and in microseconds (lease_us).'),
      ('action_lease', 'lease_until', 'End of the lease; from then on a sweep may revert the row, or another claim take it. Of an ended lease: what it was.'),
      ('action_lease', 'ended_at', 'When it was finished, released or swept; remembered for 24 hours from here. NULL: held.'),
      ('action_lease', 'id', 'First 16 bytes of SHA-256(machine, 0x00, row_id), the texts in UTF-8.'),
      ('action_lease', 'machine', 'Name of the machine.'),
      ('action_lease', 'row_id', 'Id of the machine''s row, as text.'),
      ('action_lease', 'claim_into', 'The status that the row wears while the lease is held.'),
      ('action_lease', 'revert_to', 'The status that a release or a sweep puts the row back into.'),
      ('action_lease', 'successful_state', 'The status that action_finish moves the row into; NULL, with step_key: adopted by action_adopt.'),
      ('action_lease', 'holder', 'Who has or had it, as action_claim was told; NULL: it was not, or adopted by action_adopt.'),
      ('cancel', 'machine', 'Name of the machine.'),
      ('cancel', 'row_id', 'Id of the machine''s row, as text.'),
      ('cancel', 'requested_at', 'When the teardown began: by cancel_request, or when a flag set by hand was noticed.'),
      ('cancel', 'finished_at', 'When cancel_finish made the terminal move; NULL: it has not.'),
      ('cancel', 'open', 'True: the teardown is under way. False: it is finished, or its row is gone.'),
      ('refund', 'machine', 'Name of the machine.'),
      ('refund', 'row_id', 'Id of the machine''s row, as text.'),
      ('refund', 'pass', 'Number of the refund within its teardown, as once.cancel.pass was then.'),
      ('refund', 'at', 'When the refund ran.'),
      ('refund', 'wallet', 'Id of the wallet that was credited, as text; NULL: none, the amount was 0.'),
      ('dead', NULL, 'Dead letters: events that used up their attempts, or were given up (kind never, or missing).'),
      ('dead', 'payload', 'NULL: the event was not stored any more when it was given up (damage, or rows deleted by hand).'),
      ('series', 'series', 'Number of the series, from 1; events, batches and subscribers carry it.'),
      ('topic', 'topic_id', 'Number of the topic, from once.outbox_id; never used again.'),
      ('topic', 'lanes', 'Lanes of events with an order_key, 1 to 1000; NULL: 16.'),
      ('topic', 'dedupe_for_us', 'How long a dedupe_key counts, in microseconds; NULL: 24 hours.'),
      ('topic', 'owner', 'Only members of this role may use the topic; NULL: no owner. Its number counts in the cluster that wrote it; elsewhere (a restore) it is the role of that name, and where there is none only superusers get in.'),
      ('topic', 'owner_name', 'The owner''s name when it was set; NULL: no owner.'),
      ('topic', 'owner_cluster', 'System identifier of the cluster where the owner was set; NULL: no owner.'),
      ('topic', 'topic', 'Name of the topic, 1 to 100 characters.'),
      ('subscriber', 'subscriber_id', 'Number of the subscriber, from once.outbox_id; never used again.'),
      ('subscriber', 'topic_id', 'Number of its topic.'),
      ('subscriber', 'start_series', 'The series of its creation: it begins there, behind start_seen.'),
      ('subscriber', 'max_attempts', 'Failures until an event is dead; NULL: 10.'),
      ('subscriber', 'backoff_base_us', 'Wait after the first failure, in microseconds, doubled with each further one; NULL: 1 second.'),
      ('subscriber', 'backoff_cap_us', 'The longest such wait, in microseconds; NULL: 1 hour.'),
      ('subscriber', 'lease_us', 'Lease of a take that names none, in microseconds; NULL: 60 seconds.'),
      ('subscriber', 'max_lease_life_us', 'The longest that a batch can be held, and how long an ended token answers repeats, in microseconds; NULL: 24 hours.'),
      ('subscriber', 'subscriber', 'Name of the subscriber, 1 to 100 characters, within its topic.'),
      ('segment', 'segment', 'Number of the segment, 0 to 3: that of the table once.event_0 to once.event_3.'),
      ('event_0', 'xid', 'The emitting transaction, with its epoch; counts in the cluster of its series.'),
      ('event_0', 'lane', '1 to the topic''s lanes: with order_key; 0 and -2 to -8: without; -1: delayed or redriven.'),
      ('event_0', 'event_id', 'Number of the event, from once.event_id; events of one order_key are delivered in this order.'),
      ('event_0', 'emitted_at', 'When it was emitted; its transaction was committed later.'),
      ('event_0', 'topic_id', 'Number of its topic.'),
      ('event_0', 'series', 'The series that it was emitted in (once.series).'),
      ('event_0', 'order_key', 'As given to outbox_emit, or by a step; NULL: none, delivered in any order.'),
      ('event_0', 'headers', 'As given to outbox_emit; NULL: none.'),
      ('event_0', 'payload', 'As given to outbox_emit, or by a step, byte for byte.'),
      ('batch', 'token', 'The lease: the server''s clock in microseconds since 2000, or the next larger number that is free. The same in each row of a batch.'),
      ('batch', 'taken_at', 'When it was taken; max_lease_life counts from that of the row with the lowest lane.'),
      ('batch', 'subscriber_id', 'Number of the subscriber that took it.'),
      ('batch', 'lane', 'The lane that these events were taken from.'),
      ('batch', 'last_id', 'Everything of the window with an event_id up to this one has been handed out, or put behind an earlier one of its order_key; 0: nothing yet.'),
      ('batch', 'event_ids', 'The events that it took from this lane, ascending; empty: none, it only put some behind others of their order_key.'),
      ('batch', 'seen_from', 'The snapshot that the window begins after, written as seen_to. Of the window (seen_from, seen_to] everything up to last_id has been handed out.'),
      ('batch', 'seen_to', 'The snapshot that the window ends with: {xmax, next xid, own xid or 0, event id that later transactions are above, last event id, running xids ...}. Zeros: before the first event of a series; the largest bigint: all of a series that is over.'),
      ('receipt', 'subscriber_id', 'Number of the subscriber.'),
      ('receipt', 'n', 'Number of the receipt among those of its batch, from 1.'),
      ('receipt', 'token', 'Token of the batch.'),
      ('receipt', 'at', 'When the events left.'),
      ('receipt', 'last_call', 'First 8 bytes of SHA-256 over the outbox_nack and its arguments: tells a repeated call from a new one. 0: not a nack.'),
      ('receipt', 'next_at', 'For n: when each event may be taken again; infinity: it is dead, or waits behind an earlier one of its order_key. NULL: not a nack.'),
      ('receipt', 'dead', 'For n: which of the events are dead now. NULL: not a nack.'),
      ('retry', 'event_id', 'The event, which is in one of once.event_0 to once.event_3 or in once.event_kept.'),
      ('retry', 'subscriber_id', 'Number of the subscriber.'),
      ('retry', 'topic_id', 'Number of the topic.'),
      ('retry', 'lane', 'The lane that hands it out: 1 to the topic''s lanes for an order_key, else 0 or -2 to -8. A delayed or redriven event itself is stored in lane -1.'),
      ('retry', 'order_key', 'The event''s order_key; NULL: none.'),
      ('retry', 'kind', 'Why the last attempt that counted failed: the kind of outbox_nack, or expired (the lease ran out); of a redriven event that of its death. NULL: no failure yet.'),
      ('retry', 'error', 'The error that came with that kind; NULL: none.'),
      ('dead', 'subscriber_id', 'Number of the subscriber.'),
      ('dead', 'topic_id', 'Number of the topic.'),
      ('dead', 'event_id', 'The event.'),
      ('dead', 'xid', 'The emitting transaction, with its epoch; counts in the cluster of its series. 0: not known (kind missing).'),
      ('dead', 'emitted_at', 'When it was emitted; of kind missing: when it was given up.'),
      ('dead', 'died_at', 'When it was given up.'),
      ('dead', 'lane', 'The lane that handed it out last.'),
      ('dead', 'series', 'The series that it was emitted in (once.series). 0: not known (kind missing).'),
      ('dead', 'attempts', 'Attempts that counted, since it was emitted or last redriven.'),
      ('dead', 'redriven', 'How often it had been dead and redriven before.'),
      ('dead', 'kind', 'Why it was given up: the kind of outbox_nack (never: at once), expired (its last lease ran out) or missing (not stored any more).'),
      ('dead', 'error', 'The error that outbox_nack was given when it died; of kind missing a fixed text; NULL: none.'),
      ('dead', 'order_key', 'The event''s order_key; NULL: none.'),
      ('dead', 'headers', 'The event''s headers; NULL: none, or not known (kind missing).'),
      ('delivery', 'subscriber_id', 'Number of the subscriber.'),
      ('delivery', 'attempt', 'Number of the attempt among those that counted, 1 for the first; begins anew after a redrive.'),
      ('delivery', 'event_id', 'The event.'),
      ('delivery', 'at', 'When the attempt ended.'),
      ('delivery', 'kind', 'The kind of outbox_nack, or expired: the lease ran out.'),
      ('delivery', 'error', 'The error that outbox_nack was given; NULL: none.'),
      ('dedupe', 'topic_id', 'Number of the topic.'),
      ('dedupe', 'event_id', 'The event that was emitted with the key.'),
      ('dedupe', 'until', 'From then on the key may be emitted again.'),
      ('dedupe', 'id', 'First 16 bytes of SHA-256 of the dedupe_key, in UTF-8.'),
      ('inbox', 'scope', 'The consumer: the namespace of its messages and sagas, 1 to 100 characters.'),
      ('inbox', 'step', 'Name of the saga''s step; NULL: a message.'),
      ('role_function', 'kind', 'use, operate or observe, as grant_role takes it.'),
      ('role_function', 'function_name', 'Name of a function or procedure of the schema once; all of that name are meant.'),
      ('role_grant', 'role', 'Number of the role, which counts in that cluster; elsewhere (a restore) role_name counts.'),
      ('role_grant', 'role_name', 'The role''s name, brought up to date by each grant_role and revoke_role in that cluster.'),
      ('role_grant', 'cluster', 'System identifier of the cluster where it was granted.'),
      ('role_grant', 'kind', 'What was granted: use, operate or observe.')) AS t (table_name, column_name, description)
      JOIN pg_class c ON c.relnamespace = 'once'::regnamespace
           -- The other tables of events have the columns of the first.
           AND (c.relname = t.table_name
                OR t.table_name = 'event_0' AND c.relname IN ('event_1', 'event_2', 'event_3', 'event_kept'))
      LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = t.column_name
     WHERE a.attnum > 0 OR t.column_name IS NULL),
changed AS (
    UPDATE pg_description d SET description = told.description FROM told
     WHERE d.objoid = told.relation AND d.classoid = 'pg_class'::regclass AND d.objsubid = told.attnum)
INSERT INTO pg_description (objoid, classoid, objsubid, description)
SELECT told.relation, 'pg_class'::regclass, told.attnum, told.description
  FROM told LEFT JOIN pg_description d
       ON d.objoid = told.relation AND d.classoid = 'pg_class'::regclass AND d.objsubid = told.attnum
 WHERE d.objoid IS NULL;

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
