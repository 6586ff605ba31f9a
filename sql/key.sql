-- key: one logical request, one execution.
--
-- A key's life in the order of its calls:
--   key_claim      inserts one row in once.key (status r, running) and hands out a token;
--   key_step       notes in once.key_step that a foreign call begins, key_step_done that it ended;
--   key_advance    moves the recovery point in the transaction of the phase's own writes (HOT update);
--   key_complete   stores the answer (status c; key_abort: a), one HOT update; later claims replay it;
--   key_release    gives it back for a retry (status l), key_park to a person (status p);
--   key_claim      by another caller, once the lease is over: the same row, a larger token, attempt + 1; completers
--                  (key_take_abandoned) are shown such keys by the sweep task key_abandon;
--   ttl after the finish the key is gone (410): the sweep task key_tombstone empties the row (status g),
--   gone_for later it is new again: the sweep task key_reap deletes the row and its steps.
-- What a claim answers depends on the clock and these columns alone, never on whether a sweep has run.
--
-- Lock order (binds callers too): the key's row first, its steps after it; several keys in one
-- transaction: sorted by scope and key. Claims wait for nobody: they try, and answer in_progress.

-- Names and operators of this script are the server's own, whoever made objects of the same name elsewhere.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The schema belongs to the extension: DROP EXTENSION takes it, and the rights on it, along.
CREATE SCHEMA once;
COMMENT ON SCHEMA once IS 'pg_once: retries that converge. \df+ once.* is the manual.';

-- One row per logical request. No index on a column that a completion changes, so the completion of a key in its
-- first lease is a HOT update; fillfactor leaves room for it on the row's own page (measured: 90 gives 97 to 100 % HOT at
-- two thirds of the space that 60 needs, which would give 98.6 to 100 %). `id` is the first 16 bytes of
-- SHA-256(scope, 0x00, key), in UTF-8: a third of the index that the two texts would need, whatever their length.
-- look_at is written by advance, extend, complete and abort only in lane 1, and where the lease is made to end earlier.
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

COMMENT ON TABLE once.key IS 'One row per logical request: its lease, its recovery point and, once finished, its answer. Reached through the key_* functions only.';
COMMENT ON COLUMN once.key.token IS 'The present or last lease: the server''s clock in microseconds since 2000, or the previous token plus one; it grows as long as the key lives.';
COMMENT ON COLUMN once.key.lease_until IS 'End of the lease while running; when released: not to be claimed before.';
COMMENT ON COLUMN once.key.claimed_at IS 'When the present attempt claimed it; max_lease_life counts from here.';
COMMENT ON COLUMN once.key.created_at IS 'When the key was first claimed.';
COMMENT ON COLUMN once.key.look_at IS 'Lane 0: when its first lease ends. Lane 1: when it is due for key_take_abandoned (infinity: parked by a call).';
COMMENT ON COLUMN once.key.reap_at IS 'The sweeps have to look at the key from this time on: its earliest expiry (stage 0) or the end of gone_for (stage 1).';
COMMENT ON COLUMN once.key.ttl_us IS 'How long the answer is replayed after the finish, in microseconds; fixed by the first claim.';
COMMENT ON COLUMN once.key.attempt IS 'Claims that ran, 1 for the first.';
COMMENT ON COLUMN once.key.attempt_base IS 'The attempt at the last verdict retry; max_attempts counts from here.';
COMMENT ON COLUMN once.key.status IS 'r running, l released, p parked, c completed, a aborted, g tombstone.';
COMMENT ON COLUMN once.key.reap_stage IS '0: keeps its answer or has none yet; 1: tombstone.';
COMMENT ON COLUMN once.key.look_lane IS '0: finished, or in its first lease; 1: unfinished, and claimed again, released, parked, or overdue when a sweep came by. Completers and metrics read lane 1 alone.';
COMMENT ON COLUMN once.key.emits IS 'A step has registered events, so the key''s end looks for them. One byte here spares every other key that look.';
COMMENT ON COLUMN once.key.advanced IS 'Whether the present token has advanced the key: 0 no, 1 in the transaction that wrote this row, 2 in an earlier one.';
COMMENT ON COLUMN once.key.id IS 'First 16 bytes of SHA-256(scope, 0x00, key), the texts in UTF-8.';
COMMENT ON COLUMN once.key.scope IS 'The namespace of the key and of its options, 1 to 100 characters.';
COMMENT ON COLUMN once.key.key IS 'The caller''s idempotency key, 1 to 255 characters.';
COMMENT ON COLUMN once.key.recovery_point IS 'Where the next attempt goes on: as the last key_advance said; "started" before the first.';
COMMENT ON COLUMN once.key.fingerprint IS 'Scheme byte (1: canonical jsonb, 2: the caller''s own hash) and SHA-256; NULL: claimed without a request.';
COMMENT ON COLUMN once.key.holder IS 'Who made the present or last attempt, as its claim said; NULL: it did not, or a tombstone.';
COMMENT ON COLUMN once.key.state IS 'What key_advance stored for the next attempt; NULL: nothing, or a tombstone.';
COMMENT ON COLUMN once.key.finished_at IS 'When it was completed or aborted; its ttl counts from here. NULL: unfinished.';
COMMENT ON COLUMN once.key.response_code IS 'The answer''s code, as key_complete, key_abort or key_resolve stored it; NULL: unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.response_body IS 'The answer''s body, byte for byte; NULL: none, unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.response_headers IS 'The answer''s headers, byte for byte; NULL: none, unfinished, or a tombstone.';
COMMENT ON COLUMN once.key.note IS 'Last error (release) or reason (park).';
COMMENT ON COLUMN once.key.request IS 'The request of the first claim, where the scope has keep_request; NULL: not kept, none, or a tombstone.';
COMMENT ON COLUMN once.key.resolved_attempt IS 'The parked attempt that the last key_resolve gave a verdict on; NULL: none yet.';
COMMENT ON COLUMN once.key.resolved_verdict IS 'That verdict: r retry, c complete, a abort; NULL: none yet.';

-- A foreign call inside a request. Deleted with its key.
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
COMMENT ON TABLE once.key_step IS 'Foreign calls of a request: how often begun, and the result once known.';
COMMENT ON COLUMN once.key_step.key_id IS 'The request that it belongs to: once.key.id.';
COMMENT ON COLUMN once.key_step.step IS 'Name of the step, 1 to 100 characters.';
COMMENT ON COLUMN once.key_step.version IS 'Version of the step''s derived key; key_rotate adds 1.';
COMMENT ON COLUMN once.key_step.begun IS 'Attempts that began this version of the step.';
COMMENT ON COLUMN once.key_step.begun_no IS 'Its place among the key''s steps in the order of their beginnings: on_abort events go newest first.';
COMMENT ON COLUMN once.key_step.done_no IS 'Its place among the steps with on_complete in the order of their ends.';
COMMENT ON COLUMN once.key_step.begun_token IS 'Token of the last attempt that began it.';
COMMENT ON COLUMN once.key_step.first_at IS 'When this version was first begun.';
COMMENT ON COLUMN once.key_step.done_at IS 'When its end was recorded; NULL: not recorded; once it was begun, the other side may have acted.';
COMMENT ON COLUMN once.key_step.done_token IS 'Token of the attempt that recorded its end; NULL: not recorded.';
COMMENT ON COLUMN once.key_step.result IS 'What key_step_done was given; NULL: nothing, or its end is not recorded.';
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
COMMENT ON COLUMN once.scope.scope IS 'Name of the scope; its options count for once.key, its owner for once.inbox, too.';
COMMENT ON COLUMN once.scope.lease_us IS 'Lease of a claim, an advance or an extend that names none, in microseconds; NULL: once.key_lease.';
COMMENT ON COLUMN once.scope.ttl_us IS 'How long an answer is replayed where the first claim does not say, in microseconds; NULL: once.key_ttl.';
COMMENT ON COLUMN once.scope.gone_for_us IS 'How long a key stays gone after its ttl, in microseconds; 0: it is new at once; NULL: 24 hours.';
COMMENT ON COLUMN once.scope.max_lease_life_us IS 'The longest that one attempt can hold a key, counted from its claim, in microseconds; NULL: 24 hours.';
COMMENT ON COLUMN once.scope.retry_after_us IS 'The longest retry_after beside a lease, in microseconds; NULL: once.retry_after.';
COMMENT ON COLUMN once.scope.on_expiry IS 'What becomes of a key whose lease ran out: resume (the next claim goes on) or park (it waits for key_resolve); NULL: resume.';
COMMENT ON COLUMN once.scope.max_attempts IS 'NULL: 25; 0: no limit.';
COMMENT ON COLUMN once.scope.keep_request IS 'True: the request of a first claim is kept in once.key; false or NULL: it is not.';
COMMENT ON COLUMN once.scope.recovery_points IS 'The points that key_advance takes, in the order in which a key passes them; NULL: any point, in any order.';
COMMENT ON COLUMN once.scope.owner IS 'Only members of this role may use the scope. Its number counts in the incarnation that wrote it; elsewhere (a restore) it is the role of that name, and where there is none only superusers get in.';
COMMENT ON COLUMN once.scope.owner_name IS 'The owner''s name when it was set.';
COMMENT ON COLUMN once.scope.owner_incarnation IS 'The database''s incarnation when the owner was set (once.incarnation, with the system identifier); NULL: no owner.';

-- How far the sweep task key_abandon has come (key/abandon.rs). Without rows it reads everything from the beginning, so neither
-- table is dumped.
CREATE TABLE once.key_mark (
    waits_for text        COLLATE "C" NOT NULL CONSTRAINT key_mark_pkey PRIMARY KEY,
    look_at   timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE once.key_mark IS 'How far unfinished keys have been made known to completers, by look_at.';
COMMENT ON COLUMN once.key_mark.waits_for IS 'Empty: the mark. Else a transaction (pg_locks.virtualtransaction) that may have claimed keys and was open when the mark moved on.';
COMMENT ON COLUMN once.key_mark.look_at IS 'Every key with look_at up to here is finished or was moved to lane 1; of a transaction: what it claimed comes after this.';

CREATE TABLE once.key_locked (id uuid NOT NULL CONSTRAINT key_locked_pkey PRIMARY KEY);
COMMENT ON TABLE once.key_locked IS 'Keys that the sweep task key_abandon could not move because somebody had them locked; each sweep tries them again.';
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
$$Claims one logical request. scope: 1 to 100 characters, key: 1 to 255; request: what the key stands for (compared as jsonb is; NULL equals only NULL); fingerprint: 32 bytes that the caller has made of it (they decide alone, and never equal a request); lease, ttl: positive intervals (default: the scope's, then once.key_lease and once.key_ttl); holder: a fresh UUID per attempt, so that a lost answer can be asked for again.
outcome: claimed (run it), resumed (go on from recovery_point), replayed (hand back response_*), in_progress (try again after retry_after; lease_left: when somebody else can take over at the latest), mismatched (same key, different request), gone (finished and past its ttl), parked (needs key_resolve).
Never waits for another transaction. Every answer but claimed and resumed writes nothing.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 40001 a lost race above READ COMMITTED, 25006 a claim in a read-only transaction.
The outcomes follow the IETF draft "The Idempotency-Key HTTP Header Field"; recovery points follow Brandur Leach's "Implementing Stripe-like Idempotency Keys in Postgres".$$;

CREATE FUNCTION once.key_advance(
    scope text, key text, token bigint, recovery_point text, state json = NULL, lease interval = NULL,
    OUT lease_left interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_advance';
COMMENT ON FUNCTION once.key_advance(text, text, bigint, text, json, interval) IS
$$Moves the recovery point; call it in the transaction of the phase's own writes. state: NULL keeps the present one. The lease counts from now: by lease where given, else it becomes at least the scope's.
Errors: ON001 the lease is lost, ON006 an earlier transaction of this token has advanced to this point with this state (NULL: any), or finished the key, 22023 a point that the scope does not declare, a backward one, started or finished.$$;

CREATE FUNCTION once.key_complete(
    scope text, key text, token bigint, response_code integer, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_complete';
COMMENT ON FUNCTION once.key_complete(text, text, bigint, integer, json, json) IS
$$Stores the final answer; later claims replay it byte for byte until ttl after now. Emits the steps' on_complete events in the order in which they ended; where a topic has lost all its subscribers since, the event is discarded as their backlog was, with a WARNING.
Errors: ON001 the lease is lost, ON006 this token has finished the key already.$$;

CREATE FUNCTION once.key_abort(
    scope text, key text, token bigint, response_code integer, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_abort';
COMMENT ON FUNCTION once.key_abort(text, text, bigint, integer, json, json) IS
$$Stores the final answer of a failure; later claims replay it like any other. Emits the steps' on_abort events, newest first, those of steps whose end was never recorded too; where a topic has lost all its subscribers since, as in key_complete.
Errors: ON001 the lease is lost, ON006 this token has finished the key already.$$;

CREATE FUNCTION once.key_release(scope text, key text, token bigint, error text = NULL, retry_after interval = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_release';
COMMENT ON FUNCTION once.key_release(text, text, bigint, text, interval) IS
$$Gives the key back after a failure that is worth a retry: the next claim resumes from the recovery point, not before retry_after. The token ends.
Errors: ON001 the lease is lost, ON006 the key is finished, 22023 bad argument.$$;

CREATE FUNCTION once.key_park(scope text, key text, token bigint, reason text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_park';
COMMENT ON FUNCTION once.key_park(text, text, bigint, text) IS
$$Ends the attempt with an outcome that nobody knows (a foreign call timed out): claims answer parked until key_resolve. The token ends.
Errors: ON001 the lease is lost, ON006 the key is finished, 22023 bad argument.$$;

CREATE FUNCTION once.key_resolve(
    scope text, key text, attempt integer, verdict text, response_code integer = NULL, response_body json = NULL, response_headers json = NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_resolve';
COMMENT ON FUNCTION once.key_resolve(text, text, integer, text, integer, json, json) IS
$$Ends a parking. attempt: the parked one, as key_claim or key_get tells it; verdict: retry (the next claim resumes; max_attempts counts anew), complete or abort (with response_code and the answer to store; emits the steps' events as key_complete and key_abort do).
Errors: 55006 the key is not parked, ON001 another verdict or attempt, or no such key, ON006 this attempt has this verdict already, 22023 bad argument.$$;

CREATE FUNCTION once.key_extend(scope text, key text, token bigint, lease interval = NULL, OUT lease_left interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_extend';
COMMENT ON FUNCTION once.key_extend(text, text, bigint, interval) IS
$$A heartbeat: the lease counts from now, but never past its claim's time plus max_lease_life; lease_left tells what was granted.
Errors: ON001 the lease is lost, ON006 the key is finished, 22023 bad argument.$$;

CREATE FUNCTION once.key_step(
    scope text, key text, token bigint, step text, on_abort json = NULL,
    OUT done boolean, OUT result json, OUT attempted integer, OUT first_at timestamptz, OUT derived_key text)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_step';
COMMENT ON FUNCTION once.key_step(text, text, bigint, text, json) IS
$$Records that a foreign call begins; commit it before the call. step: 1 to 100 characters. done and result: it ended before, do not call again. attempted: beginnings by earlier attempts whose end nobody recorded, the first at first_at; above 0 the other side may have acted. derived_key: the idempotency key to send, the same on every attempt.
on_abort: {"topic": ..., "payload": ..., "order_key": ...}, the event that undoes the call; key_abort emits it even if the call's end was never recorded. Until the step is done another one replaces it; NULL leaves it. The topic and the right to it are checked now, not at the key's end.
Errors: ON001 the lease is lost, ON006 the key is finished, 22023 bad argument, or a topic without subscribers, 42704 no such topic, 42501 the topic has another owner.$$;

CREATE FUNCTION once.key_step_done(
    scope text, key text, token bigint, step text, result json = NULL, on_complete json = NULL, on_abort json = NULL,
    OUT recorded boolean, OUT result json)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_step_done';
COMMENT ON FUNCTION once.key_step_done(text, text, bigint, text, json, json, json) IS
$$Records that a foreign call ended, and its result. The first write wins: recorded is false where another attempt recorded it, and result is that one's. A WARNING where this transaction began the step: commit after key_step, before the call.
on_complete, on_abort: {"topic": ..., "payload": ..., "order_key": ...}, the events that key_complete and key_abort emit for it; on_abort replaces the one of key_step, NULL leaves it. The topics and the right to them are checked now, not at the key's end.
Errors: ON001 the lease is lost, ON006 this token has recorded this end or finished the key already, 22023 bad argument, or a topic without subscribers, 42704 no such topic, 42501 a topic has another owner.$$;

CREATE FUNCTION once.key_derive(scope text, key text, step text)
RETURNS text LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_derive';
COMMENT ON FUNCTION once.key_derive(text, text, text) IS
$$The idempotency key that this step sends to the other side: a pure function of scope, key, step and the step's version, 69 ASCII characters. Needs no lease and no existing key.
Errors: 22023 bad argument.$$;

CREATE FUNCTION once.key_rotate(scope text, key text, token bigint, step text, from_version integer, OUT version integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_rotate';
COMMENT ON FUNCTION once.key_rotate(text, text, bigint, text, integer) IS
$$Gives one step a new derived key, after the other side has cached a validation error under the old one. from_version: the version to leave (the first is 1); from the same version again it is a no-op.
Errors: ON001 the lease is lost, ON006 the key is finished, 22023 the step is done, or from_version is neither the present version nor the one before.$$;

CREATE FUNCTION once.key_take_abandoned(
    scope text, max integer = 10, lease interval = NULL, holder text = NULL,
    OUT outcome text, OUT token bigint, OUT attempt integer, OUT recovery_point text, OUT state json,
    OUT response_code integer, OUT response_body json, OUT response_headers json,
    OUT lease_left interval, OUT retry_after interval, OUT key text, OUT request json)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_key_take_abandoned';
COMMENT ON FUNCTION once.key_take_abandoned(text, integer, interval, text) IS
$$A completer's intake: claims up to max (1 to 10000) unfinished keys of the scope whose lease ran out or that were released and are due, the oldest first, and leaves out what is parked, locked or not due. A lease that ran out is found after the next sweep (task key_abandon). request is filled where the scope keeps it (keep_request). The same holder asking again gets its live ones, and no new ones while it has any. Call it under READ COMMITTED; above that it leaves out whatever changed after the snapshot.
Errors: 22023 bad argument, 42501 not a member of the scope's owner, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.key_get(
    scope text, key text,
    OUT status text, OUT attempt integer, OUT holder text, OUT recovery_point text, OUT state json, OUT steps json,
    OUT response_code integer, OUT response_body json, OUT response_headers json, OUT request json,
    OUT last_error text, OUT created_at timestamptz, OUT lease_left interval,
    OUT finished_at timestamptz, OUT gone_at timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'pg_once_key_get';
COMMENT ON FUNCTION once.key_get(text, text) IS
$$What is known of a key: status running, released, parked, finished or gone; no row for a missing one. steps: an array of {step, done, result, version, begun, first_at, done_at, derived_key}. lease_left may be negative: the lease ran out. Never tells a token.
Errors: 22023 bad argument, 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.key_list(
    scope text, since timestamptz = NULL, until timestamptz = NULL, in_status text = NULL, max integer = 10000,
    OUT key text, OUT status text, OUT attempt integer, OUT step text, OUT version integer, OUT derived_key text,
    OUT done boolean, OUT result json, OUT begun integer, OUT first_at timestamptz, OUT done_at timestamptz,
    OUT created_at timestamptz, OUT finished_at timestamptz, OUT response_code integer, OUT last_error text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1000 AS 'MODULE_PATHNAME', 'pg_once_key_list';
COMMENT ON FUNCTION once.key_list(text, timestamptz, timestamptz, text, integer) IS
$$What the requests of a scope did outside, to be compared with the other side's own ledger (sql/examples/reconcile.md): a row for each step of the keys that were created in [since, until) (NULL: no bound), and one without a step for a key that has none. in_status: only keys that are running, released, parked, finished or gone (NULL: any); parked: what waits for key_resolve. derived_key: what the step's present version sends to the other side; begun: how many attempts began it; done, result: its end, if it was recorded. A key that is gone has no steps to tell any more. Never tells a token. In no order. max (1 to 100000): more rows than that are an error, so that none is missing.
Errors: 22023 bad argument, or more rows than max; 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.key_forget(scope text, key text)
RETURNS boolean LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_forget';
COMMENT ON FUNCTION once.key_forget(text, text) IS
$$Deletes a key, its steps and its answer: the next claim is a first one. false: there was none.
Errors: 55006 its lease is alive, 22023 bad argument, 42501 not a member of the scope's owner.$$;

CREATE FUNCTION once.scope_set(scope text, options json)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_scope_set';
COMMENT ON FUNCTION once.scope_set(text, json) IS
$$Changes the options named in a JSON object and returns them all; null resets one (max_attempts: null means no limit). lease, ttl, max_lease_life, retry_after: positive intervals as text; gone_for: an interval, 0 makes an expired key new at once; on_expiry: "resume" or "park"; max_attempts: a whole number above 0; keep_request: a boolean; recovery_points: an array of texts, in order, without started and finished; owner: a role, only its members may use the scope then.
Answers follow the options as they are at the call; an answer that a sweep has thrown away under an earlier gone_for, or throws away in a transaction that is still open, does not come back.
A key that a take sets aside at the same moment, because the old options park it, is offered to completers within an hour.
Errors: 22023 an unknown option or a bad value, 42501 not a member of the present and the new owner, 40001 a lost race above READ COMMITTED, 25006 in a read-only transaction.$$;

CREATE FUNCTION once.scope_get(scope text)
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_scope_get';
COMMENT ON FUNCTION once.scope_get(text) IS
'The options of a scope as one JSON object, defaults included. Errors: 22023 bad argument, 42501 not a member of the owner.';
