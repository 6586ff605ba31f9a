-- key: one logical request, one execution.
--
-- A key's life in the order of its calls:
--   key_claim      inserts one row in once.key (status r, running) and hands out a token;
--   key_step       records in once.key_step that a foreign call begins; key_step_done records that it ended;
--   key_advance    moves the recovery point in the transaction of the phase's own writes;
--   key_complete   stores the answer (status c; key_abort: a), which later claims replay;
--   key_release    gives the key back for a retry (status l); key_park parks it for a verdict (status p);
--   key_claim      after the lease expired: the same row, a larger token, attempt + 1; the sweep task key_abandon
--                  finds keys whose first lease expired, for completers (key_take_abandoned);
--   (ttl ends)     the key is gone (410); a row with a large answer, state or request is emptied by the sweep task
--                  key_tombstone (status g);
--   (gone_for ends) the key is new again, and the sweep task key_reap deletes the row and its steps.
-- A claim's answer depends on the clock, the scope's options and the key's row, never on whether a sweep has run.
--
-- Lock order (binds the users' transactions, too): the key's row, then its steps; several keys in one transaction:
-- sorted by scope and key. A claim never waits for a locked key.

-- Names and operators in this script resolve to pg_catalog, even if another schema has the same names.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The schema belongs to the extension: DROP EXTENSION drops it and the rights on it.
CREATE SCHEMA once;
COMMENT ON SCHEMA once IS 'pg_once: retries that converge. \df+ once.* is the manual.';

-- One row per logical request. While a key is in lane 0 (see look_lane), the updates by key_advance, key_extend,
-- key_complete and key_abort can be HOT. They change indexed columns in two cases only. key_complete and key_abort
-- change reap_stage and reap_at if state, request and answer have over 800 bytes. key_advance and key_extend change
-- look_at if the new end of the lease is before look_at. fillfactor leaves room for the new version on the page: 97 to
-- 100 % of the measured updates were HOT (with fillfactor 60: 98.6 to 100 %, in a table 1.5 times as large).
-- `id` is the first 16 bytes of SHA-256(scope, 0x00, key) in UTF-8: an index on the two texts is three times as large.
-- If the key ends in a UUIDv7 or ULID, the time in it gives the id's first 4 bytes, so that new rows share index pages.
CREATE TABLE once.key (
    token            bigint      NOT NULL,
    lease_until      timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    look_at          timestamptz NOT NULL,
    reap_at          timestamptz NOT NULL,
    ttl_us           bigint      NOT NULL,
    attempt          integer     NOT NULL,
    attempt_base     integer     NOT NULL,
    status           "char"      NOT NULL CHECK (status IN ('r', 'l', 'p', 'c', 'a', 'g')),
    reap_stage       "char"      NOT NULL CHECK (reap_stage IN ('0', '1')),
    look_lane        "char"      NOT NULL CHECK (look_lane IN ('0', '1')),
    emits            boolean     NOT NULL,
    advanced         "char"      NOT NULL CHECK (advanced IN ('0', '1', '2')),
    id               uuid        NOT NULL,
    scope            text        COLLATE "C" NOT NULL,
    key              text        COLLATE "C" NOT NULL,
    recovery_point   text        COLLATE "C" NOT NULL,
    fingerprint      bytea,
    holder           text        COLLATE "C",
    state            json,
    finished_at      timestamptz,
    response_code    integer,
    response_body    json,
    response_headers json,
    note             text,
    request          json,
    resolved_attempt integer,
    resolved_verdict "char",
    CONSTRAINT key_pkey PRIMARY KEY (id)
) WITH (fillfactor = 90);

CREATE INDEX key_look ON once.key (scope, look_lane, look_at);
CREATE INDEX key_reap ON once.key (reap_stage, reap_at);

COMMENT ON TABLE once.key IS 'One row per logical request: its lease, its recovery point and, when finished, its answer. Use the key_* functions; grant_role gives no right to the table.';
COMMENT ON COLUMN once.key.token IS 'Token of the last claim, or a larger one that key_resolve has set since. A new token is the server''s clock in microseconds since 2000, but at least the previous token plus one. Tokens grow until the key is deleted.';
COMMENT ON COLUMN once.key.lease_until IS 'While running: end of the lease. While released: the earliest time of the next claim.';
COMMENT ON COLUMN once.key.claimed_at IS 'When the present or last attempt claimed the key; max_lease_life counts from then.';
COMMENT ON COLUMN once.key.created_at IS 'When the key was first claimed.';
COMMENT ON COLUMN once.key.look_at IS 'In lane 0: from this time on, the sweep key_abandon moves an unfinished key to lane 1. The first claim sets look_at to the end of its lease. Later calls may change that end. If the new end is after look_at, look_at stays. If the new end is before look_at, look_at becomes the new end or the present time, whichever is later. A key that finishes in lane 1 moves to lane 0, and its look_at becomes its finished_at. In lane 1: key_take_abandoned reads the key from this time on (infinity: parked by key_park).';
COMMENT ON COLUMN once.key.reap_at IS 'A sweep reads the key from this time on. In reap_stage 0, key_reap deletes a key whose gone_for has ended, and sets a later reap_at for any other. In reap_stage 1 (key_tombstone): the end of the ttl.';
COMMENT ON COLUMN once.key.ttl_us IS 'How long the answer is replayed after the finish, in microseconds; fixed by the first claim.';
COMMENT ON COLUMN once.key.attempt IS 'Number of the present or last attempt, from 1.';
COMMENT ON COLUMN once.key.attempt_base IS 'The last parked attempt for which key_resolve was given the verdict retry; 0: none. max_attempts counts the attempts after this one.';
COMMENT ON COLUMN once.key.status IS 'r running, l released, p parked by key_park, c completed, a aborted, g tombstone (emptied).';
COMMENT ON COLUMN once.key.reap_stage IS '0: key_reap deletes the row; 1: the key was finished with more than 800 bytes of state, request and answer, and key_tombstone empties the row after the ttl.';
COMMENT ON COLUMN once.key.look_lane IS 'Lane 0 has the finished keys, and the keys in their first lease. From look_at on, the sweep key_abandon moves an unfinished key to lane 1. Lane 1 has the unfinished keys that a sweep has moved, and those that were claimed again, released or parked by key_park. Completers read only lane 1.';
COMMENT ON COLUMN once.key.emits IS 'True: a step has registered an event. The call that finishes the key then reads the steps and emits their events.';
COMMENT ON COLUMN once.key.advanced IS 'Whether the present token has advanced the key. 0: no. 1: yes, in the transaction that wrote this row version. 2: yes, in an earlier transaction. For all later transactions, 1 means the same as 2.';
COMMENT ON COLUMN once.key.id IS 'First 16 bytes of SHA-256(scope, 0x00, key), the texts in UTF-8. If the key ends in a UUIDv7 or ULID, the first 4 bytes are the upper 32 bits of the 48-bit time in it.';
COMMENT ON COLUMN once.key.scope IS 'The scope: the namespace of the key, 1 to 100 characters. scope_set sets options for a scope.';
COMMENT ON COLUMN once.key.key IS 'The caller''s idempotency key, 1 to 255 characters.';
COMMENT ON COLUMN once.key.recovery_point IS 'Where the next attempt goes on: the point of the last key_advance; "started" before the first.';
COMMENT ON COLUMN once.key.fingerprint IS 'Scheme byte (1: canonical jsonb, 2: the caller''s own hash) and SHA-256; NULL: claimed without a request.';
COMMENT ON COLUMN once.key.holder IS 'The holder that the present or last claim named; NULL: none, or a tombstone.';
COMMENT ON COLUMN once.key.state IS 'The state that key_advance stored for the next attempt; NULL: none, or a tombstone.';
COMMENT ON COLUMN once.key.finished_at IS 'When the key was completed or aborted; its ttl counts from then. NULL: unfinished.';
COMMENT ON COLUMN once.key.response_code IS 'The answer''s code, as key_complete, key_abort or key_resolve stored it; NULL: unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.response_body IS 'The answer''s body, byte for byte; NULL: none, unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.response_headers IS 'The answer''s headers, byte for byte; NULL: none, unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.note IS 'The error of the last key_release or the reason of the last key_park, whichever is newer; NULL: none, or a tombstone.';
COMMENT ON COLUMN once.key.request IS 'The request of the first claim, where the scope has keep_request; NULL: not kept, none, or a tombstone.';
COMMENT ON COLUMN once.key.resolved_attempt IS 'The parked attempt that the last key_resolve decided on; NULL: none yet.';
COMMENT ON COLUMN once.key.resolved_verdict IS 'The verdict of the last key_resolve: r retry, c complete, a abort; NULL: none yet.';

-- A foreign call inside a request. Deleted with its key, or when key_tombstone empties the key.
CREATE TABLE once.key_step (
    key_id      uuid        NOT NULL,
    step        text        COLLATE "C" NOT NULL,
    version     integer     NOT NULL,
    begun       integer     NOT NULL,
    begun_no    integer,
    done_no     integer,
    begun_token bigint,
    first_at    timestamptz,
    done_at     timestamptz,
    done_token  bigint,
    result      json,
    on_complete json,
    on_abort    json,
    CONSTRAINT key_step_pkey PRIMARY KEY (key_id, step)
);
COMMENT ON TABLE once.key_step IS 'Foreign calls of a request: how often each began, and its result.';
COMMENT ON COLUMN once.key_step.key_id IS 'The key of the step: once.key.id.';
COMMENT ON COLUMN once.key_step.step IS 'Name of the step, 1 to 100 characters.';
COMMENT ON COLUMN once.key_step.version IS 'Version of the step''s derived key; key_rotate adds 1.';
COMMENT ON COLUMN once.key_step.begun IS 'Number of attempts that began this version of the step.';
COMMENT ON COLUMN once.key_step.begun_no IS 'Number of the step in the order in which the key''s steps began; key_abort emits the on_abort events in the reverse order.';
COMMENT ON COLUMN once.key_step.done_no IS 'Number of the step in the order in which the steps with an on_complete event ended; key_complete emits these events in this order; NULL: this step has no such event.';
COMMENT ON COLUMN once.key_step.begun_token IS 'Token of the last attempt that began this version; NULL: none.';
COMMENT ON COLUMN once.key_step.first_at IS 'When the step was first begun with the present version of its derived key; NULL: not begun with it.';
COMMENT ON COLUMN once.key_step.done_at IS 'When the end of the call was recorded; NULL: not recorded, but the other side may have acted.';
COMMENT ON COLUMN once.key_step.done_token IS 'Token of the attempt that recorded the end of the call; NULL: not recorded.';
COMMENT ON COLUMN once.key_step.result IS 'The result given to key_step_done; NULL: none, or the end of the call is not recorded.';
COMMENT ON COLUMN once.key_step.on_complete IS 'Event that key_complete emits, as registered: topic, payload, order_key.';
COMMENT ON COLUMN once.key_step.on_abort IS 'Event that key_abort emits, as registered.';

-- Options of a scope; a scope without a row has the defaults. NULL: the once.* setting or the default.
-- Durations are microseconds: a day counts 24 hours and a month 30 days, for claims and sweeps alike.
CREATE TABLE once.scope (
    scope             text     COLLATE "C" NOT NULL CONSTRAINT scope_pkey PRIMARY KEY,
    lease_us          bigint,
    ttl_us            bigint,
    gone_for_us       bigint,
    max_lease_life_us bigint,
    retry_after_us    bigint,
    on_expiry         text,
    max_attempts      integer,
    keep_request      boolean,
    recovery_points   text[]   COLLATE "C",
    owner             oid,
    owner_name        name,
    owner_incarnation bigint
);
COMMENT ON TABLE once.scope IS 'Options set by scope_set.';
COMMENT ON COLUMN once.scope.scope IS 'Name of the scope. Its options apply to once.key, its owner also to once.inbox.';
COMMENT ON COLUMN once.scope.lease_us IS 'Default lease of a claim, advance or extend, in microseconds; NULL: once.key_lease.';
COMMENT ON COLUMN once.scope.ttl_us IS 'How long an answer is replayed if the first claim names no ttl, in microseconds; NULL: once.key_ttl.';
COMMENT ON COLUMN once.scope.gone_for_us IS 'How long a key stays gone after its ttl, in microseconds; 0: it is new at once; NULL: 24 hours.';
COMMENT ON COLUMN once.scope.max_lease_life_us IS 'Upper limit of the time that one attempt can hold a key, counted from its claim, in microseconds; NULL: 24 hours.';
COMMENT ON COLUMN once.scope.retry_after_us IS 'Upper limit of the retry_after that a claim gets while another attempt has the lease, in microseconds; NULL: once.retry_after.';
COMMENT ON COLUMN once.scope.on_expiry IS 'What happens to a key whose lease expired: resume (the next claim resumes it) or park (it waits for key_resolve); NULL: resume.';
COMMENT ON COLUMN once.scope.max_attempts IS 'Attempts until a key is parked; NULL: 25; 0: no limit.';
COMMENT ON COLUMN once.scope.keep_request IS 'True: once.key keeps the request of the first claim; false or NULL: it does not.';
COMMENT ON COLUMN once.scope.recovery_points IS 'The points that key_advance accepts, in the order in which a key passes them; NULL: any point, in any order.';
COMMENT ON COLUMN once.scope.owner IS 'Only members of this role may use the scope; NULL: no owner. The oid is valid in the incarnation that wrote it. In another incarnation (for example, after a restore) the owner is the role named owner_name; if that role does not exist, only superusers may use the scope.';
COMMENT ON COLUMN once.scope.owner_name IS 'The owner''s name, brought up to date by sweeps and by calls that set options or rights; NULL: no owner.';
COMMENT ON COLUMN once.scope.owner_incarnation IS 'The incarnation in which the owner''s oid is valid: once.incarnation() combined with the system identifier; NULL: no owner.';

-- key_mark and key_locked: the progress of the sweep task key_abandon (key/abandon.rs). A dump omits their rows.
-- If there are no rows, the task reads all keys from the beginning.
CREATE TABLE once.key_mark (
    waits_for text        COLLATE "C" NOT NULL CONSTRAINT key_mark_pkey PRIMARY KEY,
    look_at   timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE once.key_mark IS 'How far key_abandon has read once.key, in the order of look_at.';
COMMENT ON COLUMN once.key_mark.waits_for IS 'Empty: this row is the mark. Otherwise a transaction (pg_locks.virtualtransaction) that was open when a run of key_abandon began, and that may have claimed keys.';
COMMENT ON COLUMN once.key_mark.look_at IS 'In the mark''s row: key_abandon has read lane 0 of once.key up to this look_at, and moved the unfinished keys to lane 1. Two kinds of unfinished key may be left in lane 0. Keys of the first kind were locked; their ids are in once.key_locked. Keys of the second kind got their look_at in a transaction that had not ended; this transaction has a row here. In a transaction''s row: after the transaction has ended, key_abandon reads lane 0 again, from this look_at up to the mark.';

CREATE TABLE once.key_locked (id uuid NOT NULL CONSTRAINT key_locked_pkey PRIMARY KEY);
COMMENT ON TABLE once.key_locked IS 'Keys that key_abandon could not move because they were locked; each sweep tries them again.';
COMMENT ON COLUMN once.key_locked.id IS 'The key: once.key.id.';

SELECT pg_catalog.pg_extension_config_dump('once.key', '');
SELECT pg_catalog.pg_extension_config_dump('once.key_step', '');
SELECT pg_catalog.pg_extension_config_dump('once.scope', '');

CREATE FUNCTION once.key_claim(
    scope text, key text, request json = NULL, lease interval = NULL, ttl interval = NULL, holder text = NULL,
    fingerprint bytea = NULL,
    OUT outcome text, OUT token bigint, OUT attempt integer, OUT recovery_point text, OUT state json,
    OUT response_code integer, OUT response_body json, OUT response_headers json,
    OUT lease_left interval, OUT retry_after interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_claim';
COMMENT ON FUNCTION once.key_claim(text, text, json, interval, interval, text, bytea) IS
$$Claims one logical request. scope: 1 to 100 characters; key: 1 to 255; request (compared as jsonb) or fingerprint (32 bytes); holder: a fresh UUID text per attempt.
outcome: claimed (run it), resumed (go on from recovery_point), replayed (return response_*), in_progress (try again after retry_after; lease_left: rest of the lease), mismatched (another request), gone (past its ttl), parked (needs key_resolve).
Errors: 22023 bad argument, 42501 the scope has another owner, 40001 a lost race above READ COMMITTED, 25006 a claim in a read-only transaction, ON007 a key of another shard.$$;

CREATE FUNCTION once.key_advance(
    scope text, key text, token bigint, recovery_point text, state json = NULL, lease interval = NULL,
    OUT lease_left interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_advance';
COMMENT ON FUNCTION once.key_advance(text, text, bigint, text, json, interval) IS
$$Moves the recovery point and renews the lease; call it in the transaction of the phase's writes. state: NULL keeps it; lease: NULL renews by the scope's lease, unless the present end is later. In one transaction, a second call in a row with the same point and state does nothing.
Errors: ON001 the lease is lost; ON006 this token has finished the key, or its last key_advance set this point and state in an earlier transaction; 22023 the point is called started or finished, is not in the scope's recovery_points, or stands there before the present point; 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_complete(
    scope text, key text, token bigint, response_code integer, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_complete';
COMMENT ON FUNCTION once.key_complete(text, text, bigint, integer, json, json) IS
$$Stores the final answer and emits the steps' on_complete events, in the order in which the steps ended. Later claims replay the answer byte for byte until the ttl ends. An event whose topic is gone or has no subscriber is discarded with a WARNING.
Errors: ON001 the lease is lost, ON006 this token has finished the key already, 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_abort(
    scope text, key text, token bigint, response_code integer, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_abort';
COMMENT ON FUNCTION once.key_abort(text, text, bigint, integer, json, json) IS
$$Stores the final answer of a failure and emits the on_abort events of all steps, with or without a recorded end, from the last begun step back to the first. Later claims replay the answer. An event whose topic is gone or has no subscriber is discarded with a WARNING.
Errors: ON001 the lease is lost, ON006 this token has finished the key already, 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_release(scope text, key text, token bigint, error text = NULL, retry_after interval = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_release';
COMMENT ON FUNCTION once.key_release(text, text, bigint, text, interval) IS
$$Gives the key back after a failure that is worth a retry, and ends the token. After retry_after (NULL: at once) the next claim resumes from the recovery point; if max_attempts are used up, the key is parked instead.
Errors: ON001 the lease is lost, ON006 this token has finished the key, 22023 bad argument, 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_park(scope text, key text, token bigint, reason text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_park';
COMMENT ON FUNCTION once.key_park(text, text, bigint, text) IS
$$Parks the key and ends the token: for a foreign call whose outcome is unknown (a timeout). Claims answer parked until key_resolve. reason: the first 10,000 characters are kept.
Errors: ON001 the lease is lost, ON006 this token has finished the key, 22023 bad argument, 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_resolve(
    scope text, key text, attempt integer, verdict text, response_code integer = NULL, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_resolve';
COMMENT ON FUNCTION once.key_resolve(text, text, integer, text, integer, json, json) IS
$$Decides on a parked key. attempt: as key_claim and key_get return it; verdict: retry (the next claim resumes, and max_attempts counts anew), complete or abort (give response_code and the answer; the steps' events are emitted as by key_complete or key_abort).
Errors: 55006 the key is not parked; ON001 there is no such key, another attempt is parked, or this attempt has another verdict; ON006 this attempt has this verdict already; 22023 bad argument; 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_extend(scope text, key text, token bigint, lease interval = NULL, OUT lease_left interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_extend';
COMMENT ON FUNCTION once.key_extend(text, text, bigint, interval) IS
$$A heartbeat: renews the lease from now, but never beyond max_lease_life after the claim. lease_left: the time until the lease ends.
Errors: ON001 the lease is lost, ON006 this token has finished the key, 22023 bad argument, 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_step(
    scope text, key text, token bigint, step text, on_abort json = NULL,
    OUT done boolean, OUT result json, OUT attempted integer, OUT first_at timestamptz, OUT derived_key text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_step';
COMMENT ON FUNCTION once.key_step(text, text, bigint, text, json) IS
$$Records that a foreign call begins; commit before the call. If done, the call ended with this result: do not repeat it. attempted: how many earlier attempts have no recorded end; in each, the other side may have acted. first_at: when the first of them began. derived_key: idempotency key to send.
on_abort: {"topic": ..., "payload": ..., "order_key": ...}, event that key_abort emits to undo the call; NULL: no change.
Errors: ON001 the lease is lost, ON006 this token finished the key, 22023 bad argument or a topic without subscribers, 42704 no such topic, 42501 scope or topic has another owner.$$;

CREATE FUNCTION once.key_step_done(
    scope text, key text, token bigint, step text, result json = NULL, on_complete json = NULL, on_abort json = NULL,
    OUT recorded boolean, OUT result json)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_step_done';
COMMENT ON FUNCTION once.key_step_done(text, text, bigint, text, json, json, json) IS
$$Records that a foreign call ended, and its result. recorded: false if the end was recorded by another attempt or with other arguments; result: as stored. Raises a WARNING if this transaction began the step: commit after key_step.
on_complete, on_abort: {"topic": ..., "payload": ..., "order_key": ...}, events that key_complete and key_abort emit; on_abort NULL keeps key_step's event.
Errors: ON001 the lease is lost, ON006 this token has recorded this end or finished the key, 22023 bad argument or a topic without subscribers, 42704 no such topic, 42501 the scope or a topic has another owner.$$;

CREATE FUNCTION once.key_derive(scope text, key text, step text)
RETURNS text LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_derive';
COMMENT ON FUNCTION once.key_derive(text, text, text) IS
$$The idempotency key that this step sends to the other side: 69 ASCII characters, a pure function of scope, key, step and the step's version. Needs no lease and no existing key.
Errors: 22023 bad argument, 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.key_rotate(scope text, key text, token bigint, step text, from_version integer, OUT version integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_rotate';
COMMENT ON FUNCTION once.key_rotate(text, text, bigint, text, integer) IS
$$Gives one step a new derived key, after the other side has cached a validation error under the old one. from_version: the version to replace; the first is 1. A repeated call does nothing.
Errors: ON001 the lease is lost; ON006 this token has finished the key; 22023 the step is done, or from_version is neither the present version nor the one before; 42501 the scope has another owner.$$;

CREATE FUNCTION once.key_take_abandoned(
    scope text, max integer = 10, lease interval = NULL, holder text = NULL,
    OUT outcome text, OUT token bigint, OUT attempt integer, OUT recovery_point text, OUT state json,
    OUT response_code integer, OUT response_body json, OUT response_headers json,
    OUT lease_left interval, OUT retry_after interval, OUT key text, OUT request json)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_key_take_abandoned';
COMMENT ON FUNCTION once.key_take_abandoned(text, integer, interval, text) IS
$$For completers: claims up to max (1 to 10000) unfinished keys of the scope, the oldest first: released keys that are due, and keys whose lease expired. A key whose first lease has expired is found after the next sweep (key_abandon). The call skips parked and locked keys; above READ COMMITTED also keys changed since the snapshot. request is filled if the scope has keep_request. If holder has live leases from an earlier call, the call returns their keys again, and no others.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.key_get(
    scope text, key text,
    OUT status text, OUT attempt integer, OUT holder text, OUT recovery_point text, OUT state json, OUT steps json,
    OUT response_code integer, OUT response_body json, OUT response_headers json, OUT request json,
    OUT last_error text, OUT created_at timestamptz, OUT lease_left interval,
    OUT finished_at timestamptz, OUT gone_at timestamptz, OUT next text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'pg_once_key_get';
COMMENT ON FUNCTION once.key_get(text, text) IS
$$Shows one key, without its token; no row if there is no such key. status: running, released, parked, finished or gone; steps: an array of {step, done, result, version, begun, first_at, done_at, derived_key}; lease_left: negative after the lease expired; next: one sentence on what happens next, and by whom.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, ON007 a key of another shard.$$;

CREATE FUNCTION once.key_list(
    scope text, since timestamptz = NULL, until timestamptz = NULL, in_status text = NULL, max integer = 10000,
    OUT key text, OUT status text, OUT attempt integer, OUT step text, OUT version integer, OUT derived_key text,
    OUT done boolean, OUT result json, OUT begun integer, OUT first_at timestamptz, OUT done_at timestamptz,
    OUT created_at timestamptz, OUT finished_at timestamptz, OUT response_code integer, OUT last_error text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1000 AS 'MODULE_PATHNAME', 'pg_once_key_list';
COMMENT ON FUNCTION once.key_list(text, timestamptz, timestamptz, text, integer) IS
$$Lists the steps of a scope's requests, for comparing with the other side's ledger: one row per step of the keys created in [since, until) (NULL: no bound), and one row for a key that has no steps or is gone. in_status: only keys with this status (running, released, parked, finished or gone). derived_key: the key that the step sends; begun: number of attempts that began the step; done: the step's end is recorded; result: the step's result. Unordered, without tokens. max: 1 to 100000.
Errors: 22023 bad argument, or more rows than max; 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.key_expire(scope text, key text)
RETURNS boolean LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_expire';
COMMENT ON FUNCTION once.key_expire(text, text) IS
$$Ends a lease as if its time were over now, for a holder that is dead or a clock that was wrong: the next claim resumes the key, or parks it by on_expiry or max_attempts. Until that claim a holder that is alive may write; after it the holder gets ON001. A released key that is not due becomes due. true: one of these was done. false: nothing was changed: no lease is alive, and no retry is awaited. Waits for a transaction that has the key locked.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 40001 a lost race above READ COMMITTED, 25006 read-only transaction.$$;

CREATE FUNCTION once.key_forget(scope text, key text)
RETURNS boolean LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_forget';
COMMENT ON FUNCTION once.key_forget(text, text) IS
$$Deletes a key, its steps and its answer: the next claim is a first one. false: there was no such key.
Errors: 55006 its lease is alive, 22023 bad argument, 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.scope_set(scope text, options json)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_scope_set';
COMMENT ON FUNCTION once.scope_set(text, json) IS
$$Changes the named options and returns all; null sets the default, but for max_attempts it means no limit. lease, ttl, max_lease_life, retry_after: positive intervals as text; gone_for: an interval or 0 (a key past its ttl is new at once); on_expiry: "resume" or "park"; max_attempts: a number above 0; keep_request: a boolean; recovery_points: an array of texts in order; owner: a role, only its members may use the scope.
Errors: 22023 an unknown option or a bad value, 42501 not a member of the present or the new owner, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.scope_get(scope text)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_scope_get';
COMMENT ON FUNCTION once.scope_get(text) IS
$$The options of a scope as one JSON object, defaults included.
Errors: 22023 bad argument, 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.scope_list(
    max integer = 1000, after text = NULL, OUT scope text, OUT options json, OUT has_keys boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_scope_list';
COMMENT ON FUNCTION once.scope_list(integer, text) IS
$$Lists, by name, up to max (1 to 10000) scopes that have keys or options of their own (scope_set). after: only names after this one (the next page). options: the options in force, defaults included. Does not check owners. Writes nothing.
Errors: 22023 bad argument.$$;
