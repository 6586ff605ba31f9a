-- machine: the declared states and moves of one of the user's tables.
--
-- A machine's life in the order of its calls:
--   machine_define   checks the whole definition and stores it in once.machine;
--   machine_guard    puts triggers on the user's tables that refuse whatever is not declared;
--   transition       makes one declared move of one row, or says why not;
--   machine_check    compares the definition with what the tables have become;
--   machine_assert   refuses to go on while a claim state is swept by nobody;
--   machine_drop     forgets the definition; what was refunded stays on record.
--
-- Lock order, of the whole extension; it binds the users' own transactions too, because their statements
-- take the same locks:
--   1. batches by token, 2. keys (sorted by scope and key) and inbox messages, 3. the machine's row (several: by id),
--   4. its lease, 5. items by key, 6. wallets by key, 7. dedupe keys.
-- Everything takes a machine's row FOR NO KEY UPDATE, which item writes (FOR KEY SHARE) pass; cancel_finish
-- alone takes it FOR UPDATE, to see the last of them, and waits for nothing afterwards: a transaction that
-- wrote items should not call it. Whoever holds a machine's row never waits for a lease that is not its own.

-- Tables by regclass (they may be renamed), columns and predicates by name and text with every name
-- qualified: that is what dump and restore carry. `definition` is normalised: without the tables' names and
-- the owner, which stand beside it.
CREATE TABLE once.machine (
    machine       text     COLLATE "C" NOT NULL CONSTRAINT machine_pkey PRIMARY KEY,
    revision      bigint   NOT NULL,
    relation      regclass NOT NULL,
    items         regclass,
    wallet        regclass,
    guarded       boolean  NOT NULL,
    owner         oid,
    owner_name    name,
    owner_incarnation bigint,
    definition    json     NOT NULL,
    table_names   text[]   NOT NULL
);
COMMENT ON TABLE once.machine IS 'One row per machine. Reached through the machine_* functions only.';
COMMENT ON COLUMN once.machine.machine IS 'Name of the machine, 1 to 100 characters.';
COMMENT ON COLUMN once.machine.revision IS 'Grows with each definition; backends compile a definition once per revision.';
COMMENT ON COLUMN once.machine.relation IS 'The table whose rows move.';
COMMENT ON COLUMN once.machine.items IS 'The table of the items that cancel_refund marks.';
COMMENT ON COLUMN once.machine.wallet IS 'The table that cancel_refund credits.';
COMMENT ON COLUMN once.machine.guarded IS 'machine_guard was turned on: the triggers should be there.';
COMMENT ON COLUMN once.machine.owner IS 'Only members of this role may use the machine. Its number counts in the incarnation that wrote it; elsewhere (a restore) it is the role of that name, and where there is none only superusers get in.';
COMMENT ON COLUMN once.machine.owner_name IS 'The owner''s name when it was set; NULL: no owner.';
COMMENT ON COLUMN once.machine.owner_incarnation IS 'As once.scope.owner_incarnation.';
COMMENT ON COLUMN once.machine.definition IS 'What machine_define was given, normalised, without the tables'' names and the owner: predicates with every name qualified, leases as text and in microseconds (lease_us).';
COMMENT ON COLUMN once.machine.table_names IS 'The names of relation, items and wallet (those that there are) when the machine was defined: machine_check tells where another table has such a name now.';
SELECT pg_catalog.pg_extension_config_dump('once.machine', '');

CREATE FUNCTION once.machine_define(definition json)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_define';
COMMENT ON FUNCTION once.machine_define(json) IS
$$Registers a machine over one of the caller's own tables, or replaces its definition atomically; live leases are not altered. Returns the definition as stored. Members:
machine (1 to 100 characters), table, id, status; optional: version (a bigint NOT NULL column; every move adds 1), owner (a role: only its members may use the machine);
status_types (all of them), terminal (no way out);
transitions: [{from: [...], to, when?}]; steps: [{step_key, status, claim_state: {requester: [claim_into, revert_to]}, successful_state: {requester: status}, lease?, action?}] (requester "*": any; action: free JSON);
cancel: {flag, to}; refund: {items, item_id, subject, marker, marked, undecided?, when?, amount, wallet, wallet_id, account, balance}.
when: a predicate over the row's own columns, by the rules of CHECK and with nothing that is not immutable, nor CASE x WHEN; NULL counts as false. A table with a rule (CREATE RULE) is refused.
Errors: ON003 with one DETAIL line per fault, 42501 the table is not the caller's or the machine has an owner, 55006 a live lease uses a status that the new definition removes, or a teardown is under way that it would change, 55P03 as machine_guard. The same definition again writes nothing. A guarded machine's tables are locked, as by machine_guard, where a guard has to be another one.$$;

CREATE FUNCTION once.machine_drop(machine text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_drop';
COMMENT ON FUNCTION once.machine_drop(text) IS
$$Forgets a machine and takes its guard off the tables. What was refunded stays on record.
Errors: 42704 no such machine, 42501 not yours, 55006 one of its rows is leased, 55P03 as machine_guard.$$;

CREATE FUNCTION once.machine_get(machine text)
RETURNS json LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_get';
COMMENT ON FUNCTION once.machine_get(text) IS
$$The definition as stored, with the tables' present names; it can be given to machine_define again. Errors: 42704 no such machine, 42501 not yours.$$;

CREATE FUNCTION once.machine_check(machine text = NULL, OUT machine text, OUT problem text, OUT hint text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_machine_check';
COMMENT ON FUNCTION once.machine_check(text) IS
$$What disagrees between a definition and its tables (NULL: of all machines that are open to the caller): columns that were dropped or renamed or do not fit any more, enum labels that no status names, rows in a claim state without a lease, claim states that no sweep covers, running statuses that are no claim states where a row can be cancelled, a guard that is disabled, missing, or followed by another trigger before the row is written, or of another kind than a partition needs, a missing index, a rule, rows whose cancel flag was set by hand. No rows: nothing found. Looks into a table as its owner, for callers who may read it.
Errors: 42704 no such machine.$$;

CREATE FUNCTION once.machine_assert()
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_assert';
COMMENT ON FUNCTION once.machine_assert() IS
$$Raises ON004 naming every machine (of those open to the caller) and claim state that is not covered; call it when a service boots. Covered: an action_release sweep of the machine (the background worker's, or anybody's) has ended without failure within once.janitor_grace, and could note it: a transaction that has called sweep() and stays open keeps others from that.$$;

CREATE FUNCTION once.machine_guard(machine text, enabled boolean)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard';
COMMENT ON FUNCTION once.machine_guard(text, boolean) IS
$$Puts triggers on the machine's table and its items, or takes them off. They refuse with ON002, whoever writes: a status change that is not declared or whose when is false on the old row; leaving a terminal state; entering or leaving a claim state other than by its lease; an INSERT into a claim state or the cancelled state; any change of the cancel flag but cancel_request's; deleting a row that is being cancelled; an undecided item under a cancelled row; a change of a marked item's marker, amount, subject or match of when, and its deletion before the row is cancelled.
Not seen: TRUNCATE, replication, session_replication_role = replica, an owner who disables it (machine_check reports that). Call it again once the machine's table has been attached as a partition.
Errors: 42704 no such machine, 42501 a table is not the caller's, 55P03 the table that it names could not be locked in time, 40P01 a deadlock, 40001 a table got another name meanwhile: call it again.$$;

-- The triggers' function; the machine's name is its argument. Not for calling.
CREATE FUNCTION once.machine_guard_row()
RETURNS trigger LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard_row';
COMMENT ON FUNCTION once.machine_guard_row() IS 'The guard''s trigger on a machine''s table. Made by machine_guard.';

CREATE FUNCTION once.machine_guard_item()
RETURNS trigger LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard_item';
COMMENT ON FUNCTION once.machine_guard_item() IS 'The guard''s trigger on a machine''s items. Made by machine_guard.';

CREATE FUNCTION once.transition(
    machine text, id text, to_status text, from_status text[] = NULL, patch json = NULL, requester text = NULL,
    version bigint = NULL,
    OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition';
COMMENT ON FUNCTION once.transition(text, text, text, text[], json, text, bigint) IS
$$Makes one declared move by one conditional UPDATE with the caller's rights. from_status: only from these (NULL: from wherever a move to to_status is declared); patch: other columns of the row to set, a JSON object; requester: whose moves of steps without a claim state count too; version: only at this version.
reason: NULL when moved, else not_found, status, guard (the move's when is false), version, claimed (the row is in a claim state), cancelling (its cancel flag is set). Under READ COMMITTED a lost race is one of these, never an error.
For work that can die half-way use action_claim.
Where nothing of the table's own takes part in the update (status is a text, varchar or enum; no trigger but foreign keys' and the machine's guard, rule, policy, generated column, child table; CHECK constraints are evaluated), no condition and no patch is asked for, it is written without the server's executor: the same in every effect, but hooks of the executor (auto_explain, pg_stat_statements.track = all) see no UPDATE.
Errors: ON002 no declared move leads there, or something of the table (a trigger, a rule, a policy) keeps the row back, 42704 no such machine, 22023 bad argument, 42501 no right to update the table, 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.transition(
    machine text, id "any", to_status text, from_status text[] = NULL, patch json = NULL, requester text = NULL,
    version bigint = NULL,
    OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition';
COMMENT ON FUNCTION once.transition(text, "any", text, text[], json, text, bigint) IS
'transition for an id of any other type that prints as one value: bigint, numeric, uuid, ... An array or a row is 22023.';

CREATE FUNCTION once.transition_many(
    machine text, ids text[], to_status text, from_status text[] = NULL, requester text = NULL,
    OUT id text, OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition_many';
COMMENT ON FUNCTION once.transition_many(text, text[], text, text[], text) IS
$$transition for up to 10000 rows in one statement: each id once, locked in id order. A row for each id, as transition answers.$$;
