-- machine: the declared states and moves of one of the user's tables.
--
-- A machine's life in the order of its calls:
--   machine_define   checks the whole definition and stores it in once.machine;
--   machine_guard    puts triggers on the user's tables, which refuse undeclared moves;
--   transition       makes one declared move of one row, or returns the reason why not;
--   machine_check    compares the definition with the tables as they are now;
--   machine_assert   raises an error if a machine has claim states that no sweep covers;
--   machine_drop     deletes the definition; the records of refunds stay.
--
-- Lock order of the whole extension. It binds the users' own transactions, because their statements take the same
-- locks:
--   1. batches by token, 2. keys (sorted by scope and key) and inbox messages, 3. the machine's row (several: by id),
--   4. its lease, 5. items in the order of their keys, 6. wallets likewise, 7. dedupe keys.
-- A machine's row (in the user's table) is locked FOR NO KEY UPDATE. Writers of items lock it FOR KEY SHARE, which does
-- not conflict. Only cancel_finish locks it FOR UPDATE. This lock waits for all writers of items. After it,
-- cancel_finish waits for no lock. A transaction that wrote items should not call cancel_finish. Suppose that two of
-- them wrote items of one row. Each has locked the row FOR KEY SHARE. Each cancel_finish waits for the other
-- transaction, so they deadlock.
-- A session that has locked a machine's row may find that another session has locked the row's lease. action_finish and
-- action_release then wait for the lease. action_claim, action_adopt and sweeps do not wait.

-- The tables are regclass, so they may be renamed, and a dump has their names. Columns and predicates are text, with
-- every name qualified. `definition` lacks the tables' names and the owner, which have columns of their own.
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
COMMENT ON TABLE once.machine IS 'One row per machine. Use the machine_* functions; grant_role gives no right to the table.';
COMMENT ON COLUMN once.machine.machine IS 'Name of the machine, 1 to 100 characters.';
COMMENT ON COLUMN once.machine.revision IS 'Grows with each definition; backends compile a definition once per revision.';
COMMENT ON COLUMN once.machine.relation IS 'The table whose rows move.';
COMMENT ON COLUMN once.machine.items IS 'The table of the items that cancel_refund marks; NULL: no refund.';
COMMENT ON COLUMN once.machine.wallet IS 'The table that cancel_refund credits; NULL: no refund.';
COMMENT ON COLUMN once.machine.guarded IS 'True: machine_guard has turned the guard on, so its triggers should exist.';
COMMENT ON COLUMN once.machine.owner IS 'Only members of this role may use the machine; NULL: no owner. In another incarnation (for example, after a restore) the owner is the role named owner_name; if that role does not exist, only superusers may use the machine.';
COMMENT ON COLUMN once.machine.owner_name IS 'As once.scope.owner_name.';
COMMENT ON COLUMN once.machine.owner_incarnation IS 'As once.scope.owner_incarnation.';
COMMENT ON COLUMN once.machine.definition IS 'The normalised definition: predicates have every name qualified, intervals are stored as text and in microseconds (lease_us, history_us). The tables'' names and the owner are left out.';
COMMENT ON COLUMN once.machine.table_names IS 'The names of relation, items and wallet when the machine was defined; machine_check reports if another table has one of these names now.';
SELECT pg_catalog.pg_extension_config_dump('once.machine', '');

-- The moves of machines whose definition says how long to keep moves (`history`). n orders the moves of a row: the
-- server's clock in microseconds since 2000, but at least the session's last number plus one. If a definition loses
-- `history`, the sweep task history_reap deletes the machine's rows from this table.
CREATE TABLE once.machine_move (
    n           bigint      NOT NULL,
    at          timestamptz NOT NULL,
    id          uuid        NOT NULL,
    machine     text        COLLATE "C" NOT NULL,
    row_id      text        COLLATE "C" NOT NULL,
    from_status text        COLLATE "C" NOT NULL,
    to_status   text        COLLATE "C" NOT NULL,
    how         text        COLLATE "C" NOT NULL,
    requester   text        COLLATE "C",
    holder      text        COLLATE "C",
    role        text        COLLATE "C" NOT NULL,
    CONSTRAINT machine_move_pkey PRIMARY KEY (id, n)
);
CREATE INDEX machine_move_at ON once.machine_move (machine, at);
COMMENT ON TABLE once.machine_move IS 'Moves of machines whose definition says how long to keep moves (history). Read by machine_history.';
COMMENT ON COLUMN once.machine_move.n IS 'Order of the moves of a row.';
COMMENT ON COLUMN once.machine_move.at IS 'When the move was made, before its transaction committed.';
COMMENT ON COLUMN once.machine_move.id IS 'First 16 bytes of SHA-256(machine, 0x00, row_id), the texts in UTF-8.';
COMMENT ON COLUMN once.machine_move.machine IS 'Name of the machine.';
COMMENT ON COLUMN once.machine_move.row_id IS 'Id of the machine''s row, as text.';
COMMENT ON COLUMN once.machine_move.from_status IS 'The status before the move.';
COMMENT ON COLUMN once.machine_move.to_status IS 'The new status.';
COMMENT ON COLUMN once.machine_move.how IS 'transition, claim, finish, release, sweep, cancel or by_hand.';
COMMENT ON COLUMN once.machine_move.requester IS 'The requester of the transition or claim; for a move that ended a claim, the requester of that claim; NULL: none.';
COMMENT ON COLUMN once.machine_move.holder IS 'The holder of the lease; NULL: none.';
COMMENT ON COLUMN once.machine_move.role IS 'The calling role (current_user).';
SELECT pg_catalog.pg_extension_config_dump('once.machine_move', '');

CREATE FUNCTION once.machine_define(definition json)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_define';
COMMENT ON FUNCTION once.machine_define(json) IS
$$Defines a machine on your table; returns what is stored. Members (?: optional): machine, table, id, status, version?, owner?, module?, history?, status_types, terminal?, transitions? [{from [...], to, when?, emit?}], steps? [{step_key, status, claim_state? {requester: [claim_into, revert_to]}, successful_state {requester: status}, lease?, emit?}], cancel? {flag, to}, refund? {items, item_id, subject, marker, marked, undecided?, when?, amount, wallet, wallet_id, account, balance}.
Errors: ON003 faults (DETAIL: all); 42501 not allowed; 55006 a lease or teardown forbids it; 55P03 lock timeout.$$;

CREATE FUNCTION once.machine_drop(machine text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_drop';
COMMENT ON FUNCTION once.machine_drop(text) IS
$$Deletes a machine's definition and removes its guard from the tables. The records of its refunds stay.
Errors: 42704 no such machine; 42501 not yours; 55006 one of its rows is leased; 55P03, 40P01, 40001: run the whole transaction again.$$;

CREATE FUNCTION once.machine_get(machine text)
RETURNS json LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_get';
COMMENT ON FUNCTION once.machine_get(text) IS
$$Returns the stored definition with the present names of the tables. machine_define accepts it again.
Errors: 42704 no such machine; 42501 not yours.$$;

CREATE FUNCTION once.machine_check(machine text = NULL, OUT machine text, OUT problem text, OUT hint text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_machine_check';
COMMENT ON FUNCTION once.machine_check(text) IS
$$Reports problems of one machine (NULL: of all): tables, columns, types, indexes, enum labels and rules that do not fit the definition; rows in a claim state without a lease; flags that were set by hand; claim states that no sweep covers; a cancellable machine without claim states; an emit to a topic without subscribers; a guard that is missing or disabled; a BEFORE trigger that fires after the guard; a partition whose guard refuses every UPDATE that moves a row to another partition. No rows: nothing found. Reads a table as its owner.
Errors: 42704 no such machine.$$;

CREATE FUNCTION once.machine_assert()
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_assert';
COMMENT ON FUNCTION once.machine_assert() IS
$$Call it when a service boots. It raises ON004 if a machine that the caller may use has claim states that no sweep covers; the error names these machines and their claim states. A machine is covered if an action_release sweep of it, by any session, ended without failure within the last once.janitor_grace.
Errors: ON004.$$;

CREATE FUNCTION once.machine_guard(machine text, enabled boolean)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard';
COMMENT ON FUNCTION once.machine_guard(text, boolean) IS
$$Puts triggers on a machine's table and items, or removes them. Outside pg_once's calls they refuse with ON002:
Table: an undeclared move; a move into or out of a claim state; inserting a claimed, cancelled or flagged row; changing such a row's id; changing the flag; DELETE during a teardown.
Items: marking an item; changing a marked item's marker, amount or row id; deleting a marked item before its row is cancelled; an undecided item (marker NULL or refund.undecided) for a cancelled row.
Errors: 42704 no such machine; 42501 a table is not yours; 55P03, 40P01, 40001: run the transaction again.$$;

-- The guard's two trigger functions; the argument of their triggers is the machine's name.
CREATE FUNCTION once.machine_guard_row()
RETURNS trigger LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard_row';
COMMENT ON FUNCTION once.machine_guard_row() IS 'The function of the guard''s triggers on a machine''s table. machine_guard creates the triggers.';

CREATE FUNCTION once.machine_guard_item()
RETURNS trigger LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_guard_item';
COMMENT ON FUNCTION once.machine_guard_item() IS 'The function of the guard''s triggers on a machine''s items. machine_guard creates the triggers.';

CREATE FUNCTION once.transition(
    machine text, id text, to_status text, from_status text[] = NULL, patch json = NULL, requester text = NULL,
    version bigint = NULL,
    OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition';
COMMENT ON FUNCTION once.transition(text, text, text, text[], json, text, bigint) IS
$$Makes one declared move: a transition, or a step with no claim state for the requester. from_status: only from these (NULL: any); patch: a JSON object of other columns to set; requester: who makes the move; version: only at this version. reason: NULL if moved, else not_found, status, guard (the move's when is not true), version, claimed (in a claim state), cancelling (its cancel flag is set).
Errors: ON002 no such move is declared, or a trigger or policy suppresses the update; 42704 no such machine; 22023 bad argument; 42501 no right to update the table; 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.transition(
    machine text, id "any", to_status text, from_status text[] = NULL, patch json = NULL, requester text = NULL,
    version bigint = NULL,
    OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition';
COMMENT ON FUNCTION once.transition(text, "any", text, text[], json, text, bigint) IS
'The same transition for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.transition_many(
    machine text, ids text[], to_status text, from_status text[] = NULL, requester text = NULL,
    OUT id text, OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_transition_many';
COMMENT ON FUNCTION once.transition_many(text, text[], text, text[], text) IS
$$transition for up to 10000 ids; a repeated id counts once. Locks the rows in id order. Returns a row for each id, as transition does, and raises the same errors.$$;

CREATE FUNCTION once.machine_list(
    OUT machine text, OUT "table" text, OUT guarded boolean, OUT module text, OUT owner text, OUT states text[])
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_machine_list';
COMMENT ON FUNCTION once.machine_list() IS
'A row for each machine: its table''s present name (for a dropped table, its OID), whether its guard is on, module and owner of the definition, its statuses. Does not check owners. Writes nothing.';

CREATE FUNCTION once.machine_diagram(machine text)
RETURNS text LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_machine_diagram';
COMMENT ON FUNCTION once.machine_diagram(text) IS
$$The machine as a mermaid stateDiagram-v2: statuses, moves with their conditions (when), steps with their requesters. Claim states are dashed; terminal statuses have a thick border. Does not check owners.
Errors: 42704 no such machine.$$;

CREATE FUNCTION once.machine_history(
    machine text, id text, max integer = 1000,
    OUT at timestamptz, OUT from_status text, OUT to_status text, OUT how text, OUT requester text, OUT holder text,
    OUT role text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_machine_history';
COMMENT ON FUNCTION once.machine_history(text, text, integer) IS
$$Lists up to max (1 to 100000) recorded moves of a row, the newest first. Moves are recorded only if the definition says how long to keep them (history). how: transition, claim, finish, release, sweep, cancel, or by_hand (any other UPDATE, while the guard is on). Does not check owners.
Errors: 42704 no such machine, 22023 bad argument.$$;

CREATE FUNCTION once.machine_history(
    machine text, id "any", max integer = 1000,
    OUT at timestamptz, OUT from_status text, OUT to_status text, OUT how text, OUT requester text, OUT holder text,
    OUT role text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_machine_history';
COMMENT ON FUNCTION once.machine_history(text, "any", integer) IS
'The same machine_history for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';
