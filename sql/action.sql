-- action: work on one row, under a lease, by a worker that may die half-way.
--
-- The calls of an action; one of the last three ends the action:
--   action_claim     moves the row from its step's status to claim_into and hands out a token (one row in
--                    once.action_lease, state h);
--   action_extend    a heartbeat that also reports a cancellation (a job with many items calls it in the transaction
--                    of each item);
--   action_finish    claim_into -> successful_state, in the transaction of the action's writes (state f);
--   action_release   claim_into -> revert_to after a failure (state l);
--   sweep (task action_release): claim_into -> revert_to for an expired lease, for example after a crash (state s).
-- An ended lease stays for 24 hours, or until the next claim, so that a repeated call is recognised. If a release is
-- repeated, it gets the same answer. If a finish is repeated in a later transaction, it gets ON006. The lease stores
-- the row's next statuses, so the user's table needs no column for them.

-- Finish and release change no indexed column, so they can be HOT updates. Sweeps read a lease from look_at on. A
-- claim sets look_at to the end of the lease. A heartbeat that shortens the lease below look_at sets look_at to the
-- new end. All other heartbeats leave look_at as it is, so they can be HOT updates, too. action_expire and
-- action_adopt set look_at to now. A sweep sets it to a later time. If the lease was renewed, this is the new end of
-- the lease. If a revert has failed, it is the time of the next try. If the lease has ended, it is the time at which
-- the lease is to be deleted.
CREATE TABLE once.action_lease (
    token            bigint      NOT NULL,
    lease_until      timestamptz NOT NULL,
    look_at          timestamptz NOT NULL,
    ended_at         timestamptz,
    last_call        bigint      NOT NULL,
    ended_version    bigint,
    failures         integer     NOT NULL,
    attempts         integer     NOT NULL,
    state            "char"      NOT NULL CHECK (state IN ('h', 'f', 'l', 's')),
    id               uuid        NOT NULL,
    machine          text        COLLATE "C" NOT NULL,
    row_id           text        COLLATE "C" NOT NULL,
    claim_into       text        COLLATE "C" NOT NULL,
    revert_to        text        COLLATE "C" NOT NULL,
    step_key         text        COLLATE "C",
    step_status      text        COLLATE "C",
    successful_state text        COLLATE "C",
    requester        text        COLLATE "C",
    holder           text        COLLATE "C",
    note             text,
    finished_tokens  bytea,
    CONSTRAINT action_lease_pkey PRIMARY KEY (id)
) WITH (fillfactor = 90);
CREATE INDEX action_lease_look ON once.action_lease (machine, look_at);
COMMENT ON TABLE once.action_lease IS 'The last lease of each machine row that was claimed or adopted. Only functions of the extension read and write it.';
COMMENT ON COLUMN once.action_lease.token IS 'The server''s clock at the claim, in microseconds since 2000, but at least the previous token plus one.';
COMMENT ON COLUMN once.action_lease.lease_until IS 'End of the lease: from then on a sweep may revert the row, or another claim may take the row over. Finish, release and sweep do not change this time.';
COMMENT ON COLUMN once.action_lease.look_at IS 'The time from which a sweep (task action_release) looks at the lease.';
COMMENT ON COLUMN once.action_lease.ended_at IS 'When the lease was finished, released or swept; the lease is kept for 24 hours after that. NULL: held.';
COMMENT ON COLUMN once.action_lease.last_call IS 'First 8 bytes of SHA-256 over the arguments of the action_finish that ended the lease. 0: no action_finish has ended it.';
COMMENT ON COLUMN once.action_lease.ended_version IS 'The row''s version after the move that ended the lease.';
COMMENT ON COLUMN once.action_lease.failures IS 'Consecutive reverts that failed. The first failure is always counted, and the next try is 10 s later. Each further failure is counted and doubles the wait, up to an hour. A further failure by a lock timeout is the exception: it is not counted, and the wait stays the same.';
COMMENT ON COLUMN once.action_lease.attempts IS 'Consecutive claims of this step without a finish; 0 for an adopted row.';
COMMENT ON COLUMN once.action_lease.state IS 'h held, f finished, l released, s swept.';
COMMENT ON COLUMN once.action_lease.id IS 'First 16 bytes of SHA-256(machine, 0x00, row_id), the texts in UTF-8.';
COMMENT ON COLUMN once.action_lease.machine IS 'Name of the machine.';
COMMENT ON COLUMN once.action_lease.row_id IS 'Id of the machine''s row, as text.';
COMMENT ON COLUMN once.action_lease.claim_into IS 'The status that the row has while the lease is held.';
COMMENT ON COLUMN once.action_lease.revert_to IS 'The status that a release or a sweep puts the row back into.';
COMMENT ON COLUMN once.action_lease.step_key IS 'The step that the row was claimed for; NULL if action_adopt adopted the row.';
COMMENT ON COLUMN once.action_lease.step_status IS 'The status that the step began in; NULL: the same as revert_to.';
COMMENT ON COLUMN once.action_lease.successful_state IS 'The status that action_finish moves the row into; NULL if action_adopt adopted the row.';
COMMENT ON COLUMN once.action_lease.requester IS 'The requester that action_claim was given; NULL: none was given, or action_adopt adopted the row.';
COMMENT ON COLUMN once.action_lease.holder IS 'The holder that action_claim was given; NULL: none was given, or action_adopt adopted the row.';
COMMENT ON COLUMN once.action_lease.note IS 'The error that action_release was given, or the error of the last failed revert.';
COMMENT ON COLUMN once.action_lease.finished_tokens IS 'The last eight tokens that finished an action of this row, the oldest first, 8 bytes each, big-endian; NULL: none.';
SELECT pg_catalog.pg_extension_config_dump('once.action_lease', '');

CREATE FUNCTION once.action_claim(
    machine text, id text, step_key text, requester text = NULL, lease interval = NULL, holder text = NULL,
    version bigint = NULL,
    OUT outcome text, OUT token bigint, OUT status text, OUT version bigint, OUT lease_left interval,
    OUT retry_after interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_claim';
COMMENT ON FUNCTION once.action_claim(text, text, text, text, interval, text, bigint) IS
$$Claims a row for a step; waits for no row or lease. requester: selects the claim state; lease: by default the step's, else the setting once.action_lease; holder: a UUID per attempt; version: required row version. outcome: claimed (commit before foreign calls), in_progress (retry after retry_after), cancelling (tear down), refused (wrong status, version or requester), not_found, unclaimed (no claim state: use transition).
Errors: 42704 no such machine; 22023 bad argument; ON002 a trigger or policy suppresses the update; 42501 no right to update the table; 40001 a lost race above READ COMMITTED.$$;

CREATE FUNCTION once.action_claim(
    machine text, id "any", step_key text, requester text = NULL, lease interval = NULL, holder text = NULL,
    version bigint = NULL,
    OUT outcome text, OUT token bigint, OUT status text, OUT version bigint, OUT lease_left interval,
    OUT retry_after interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_claim';
COMMENT ON FUNCTION once.action_claim(text, "any", text, text, interval, text, bigint) IS
'The same action_claim for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_extend(
    machine text, id text, token bigint, lease interval = NULL, OUT lease_left interval, OUT cancelling boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_extend';
COMMENT ON FUNCTION once.action_extend(text, text, bigint, interval) IS
$$A heartbeat: renews the lease. cancelling: the row's cancel flag is set; roll back, release, tear down. The lease stays locked to the end of the transaction, so no other worker and no sweep can take the row before the transaction commits its writes.
Errors: ON001 the lease is lost; ON006 the action is finished; 22023 bad argument; 42704 no such machine; 42501 no right to update the table.$$;

CREATE FUNCTION once.action_extend(
    machine text, id "any", token bigint, lease interval = NULL, OUT lease_left interval, OUT cancelling boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_extend';
COMMENT ON FUNCTION once.action_extend(text, "any", bigint, interval) IS
'The same action_extend for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_finish(
    machine text, id text, token bigint, patch json = NULL, OUT outcome text, OUT status text, OUT version bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_finish';
COMMENT ON FUNCTION once.action_finish(text, text, bigint, json) IS
$$Ends an action that succeeded. Call it in the transaction of the action's writes, before those writes. patch: a JSON object of other columns to set. outcome: finished (claim_into -> successful_state), or cancelling (nothing changed: roll back this transaction's writes, release, tear down).
Errors: ON001 the lease is lost: delete what the action made outside the database, unless the HINT says to look first; ON006 this token has finished the action already; ON002 a trigger or policy suppresses the update; 22023 bad argument; 42704 no such machine; 42501 no right to update the table.$$;

CREATE FUNCTION once.action_finish(
    machine text, id "any", token bigint, patch json = NULL, OUT outcome text, OUT status text, OUT version bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_finish';
COMMENT ON FUNCTION once.action_finish(text, "any", bigint, json) IS
'The same action_finish for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_release(
    machine text, id text, token bigint, error text = NULL, OUT status text, OUT version bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_release';
COMMENT ON FUNCTION once.action_release(text, text, bigint, text) IS
$$Gives a row back after a failure or for a teardown: claim_into -> revert_to. error: stored with the lease. A repeated call gets the same answer until the next claim, for at most 24 hours.
Errors: ON001 the lease is lost; ON006 the action is finished; ON002 a trigger or policy suppresses the update; 22023 bad argument; 42704 no such machine; 42501 no right to update the table.$$;

CREATE FUNCTION once.action_release(
    machine text, id "any", token bigint, error text = NULL, OUT status text, OUT version bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_release';
COMMENT ON FUNCTION once.action_release(text, "any", bigint, text) IS
'The same action_release for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_expire(machine text, id text)
RETURNS boolean LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_expire';
COMMENT ON FUNCTION once.action_expire(text, text) IS
$$Makes a lease expire now, for example because its holder is dead or a clock was wrong. The next sweep reverts the row, or the next claim takes it over. Until then a holder that is alive may write; afterwards the holder gets ON001. If a sweep could not revert the row and has deferred the next try, this call ends the delay: the next sweep tries again. false: there was no live lease and no deferred revert. Waits for a transaction that has the lease locked.
Errors: 42704 no such machine, 22023 bad argument, 42501 not a member of the machine's owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.action_expire(machine text, id "any")
RETURNS boolean LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_expire';
COMMENT ON FUNCTION once.action_expire(text, "any") IS
'The same action_expire for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_adopt(machine text, max integer = 1000)
RETURNS integer LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_action_adopt';
COMMENT ON FUNCTION once.action_adopt(text, integer) IS
$$Adopts up to max (1 to 1000000) orphaned rows and returns their number. A row that is in a claim state but has no lease (it was loaded, replicated, or is older than the definition) gets an overdue lease, so the next sweep reverts it. A row whose cancel flag was set by hand gets a teardown, so cancel_pending can list it. Skips locked rows.
Errors: 42704 no such machine; 42501 no right to update the table; 22023 bad argument; 55006 the machine is being defined.$$;

CREATE FUNCTION once.action_get(
    machine text, id text,
    OUT status text, OUT step_key text, OUT requester text, OUT holder text, OUT claimed_at timestamptz,
    OUT lease_left interval, OUT attempts integer, OUT last_error text, OUT cancelling boolean, OUT next text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'pg_once_action_get';
COMMENT ON FUNCTION once.action_get(text, text) IS
$$Shows a row's status, its holder, the rest of the lease (lease_left, negative after the lease expired) and the last error. next: what happens next, and by whom. attempts: consecutive claims of this step without a finish. If no lease is held, holder, claimed_at and lease_left are NULL; for an unknown id no row is returned. Does not check owners or rights on the table. Writes nothing.
Errors: 42704 no such machine, 22023 bad argument.$$;

CREATE FUNCTION once.action_get(
    machine text, id "any",
    OUT status text, OUT step_key text, OUT requester text, OUT holder text, OUT claimed_at timestamptz,
    OUT lease_left interval, OUT attempts integer, OUT last_error text, OUT cancelling boolean, OUT next text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'pg_once_action_get';
COMMENT ON FUNCTION once.action_get(text, "any") IS
'The same action_get for an id of another type than text, for example bigint or uuid. An array or a row raises 22023.';

CREATE FUNCTION once.action_list(
    machine text = NULL, max integer = 1000,
    OUT machine text, OUT id text, OUT status text, OUT step_key text, OUT requester text, OUT holder text,
    OUT claimed_at timestamptz, OUT lease_left interval, OUT attempts integer, OUT last_error text,
    OUT cancelling boolean, OUT next text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_action_list';
COMMENT ON FUNCTION once.action_list(text, integer) IS
$$Lists up to max (1 to 10000) held leases, alive or overdue, of one machine or of all (NULL). Each lease has a time from which a sweep looks at it, usually near the end of the lease; the leases of a machine are sorted by this time. Of each machine only the first million leases are read, ended ones included. Columns as in action_get. Does not check owners or rights on the tables. Writes nothing.
Errors: 42704 no such machine, 22023 bad argument.$$;
