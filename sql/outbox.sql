-- outbox: events for other systems, delivered at least once; a receiver can dedupe them by delivery key.
--
-- The log. outbox_emit inserts a row into the current segment (one of once.event_0 to event_3), where rows are never
-- updated; delayed events go into once.event_kept. Batches are appended, too: the last batch of a lane stores how far
-- the subscriber has read that lane. Without delayed or failed events, takes and acks only insert rows (as in PgQ), so
-- they leave no dead rows that an old snapshot could keep.
--   outbox_emit    inserts the event, with an event_id from a sequence and the transaction's id;
--   outbox_take    reads on from the position in the lane's last batch, appends a batch with a token;
--   outbox_ack     appends a receipt: these events of the batch are done;
--   outbox_nack    (or an expired lease) puts each event into once.retry, or into once.dead if it is dead;
--   outbox_retire  (a sweep) opens another segment, copies the events that are still needed to once.event_kept,
--                  and truncates the old segment when every open snapshot sees these copies.
--
-- The last batch of a lane stores the position as (seen_from, seen_to, last_id): two snapshots and an event id. Events
-- that are visible in seen_to and not in seen_from are the window. They are handed out in the order of their ids;
-- last_id is the position in this order. Some transactions were still running when seen_from was taken. Their events
-- may have lower ids than events that were handed out earlier. A take finds the events of such a transaction by its
-- id (xid). It finds all other events of the window by their event ids. So an event that commits late is never skipped,
-- and an open transaction delays only its own events.
--
-- Lanes: an order_key hashes to one of the lanes 1 to `lanes`. A subscriber has at most one open batch for each of
-- them. Events without order_key are spread over the lanes 0 and -2 to -8 (64 consecutive ids share a lane), each with
-- any number of open batches. A take reads lane after lane until it has enough events.
--
-- Lock order: a lane; the batch's row; a topic's subscribers (shared for a delayed emit, exclusive for a change of
-- subscribers); dedupe keys. The locks of lanes and of a topic's subscribers are advisory locks in the extension's
-- space, 0x6f6e. An emitter locks its segment as any INSERT does, and then makes sure that the segment is still the
-- current one.

CREATE SEQUENCE once.event_id AS bigint;
COMMENT ON SEQUENCE once.event_id IS 'Gives event_id. A crash may set it back, so delivery keys do not depend on it alone.';
SELECT pg_catalog.pg_extension_config_dump('once.event_id', '');
-- Topics and subscribers have a sequence of their own: their numbers are integers, but event ids are bigints. A number
-- is never used again, so that no new subscriber finds rows of a dropped one.
CREATE SEQUENCE once.outbox_id AS integer;
COMMENT ON SEQUENCE once.outbox_id IS 'Gives the numbers of topics and subscribers.';
SELECT pg_catalog.pg_extension_config_dump('once.outbox_id', '');

-- The incarnations of this database. A transaction id is valid in one incarnation only.
CREATE TABLE once.series (
    series  integer NOT NULL CONSTRAINT series_pkey PRIMARY KEY,
    incarnation bigint NOT NULL
);
COMMENT ON TABLE once.series IS 'A row for each incarnation in which events were emitted or subscribers created; the largest series is the latest.';
COMMENT ON COLUMN once.series.series IS 'Number of the series, from 1; stored in events, batches, subscribers and dead letters.';
COMMENT ON COLUMN once.series.incarnation IS 'The database''s incarnation: the random number of once.incarnation(), combined with the cluster''s system identifier.';

CREATE TABLE once.topic (
    topic_id      integer NOT NULL CONSTRAINT topic_pkey PRIMARY KEY,
    subscribers   integer NOT NULL CHECK (subscribers >= 0),
    lanes         integer CHECK (lanes BETWEEN 1 AND 1000),
    dedupe_for_us bigint,
    owner         oid,
    owner_name    name,
    owner_incarnation bigint,
    topic         text COLLATE "C" NOT NULL CONSTRAINT topic_name UNIQUE
);
COMMENT ON TABLE once.topic IS 'Topics and their options (topic_set); NULL: the default.';
COMMENT ON COLUMN once.topic.topic_id IS 'Number of the topic, from once.outbox_id. No later topic gets the same number.';
COMMENT ON COLUMN once.topic.subscribers IS 'Number of the topic''s rows in once.subscriber.';
COMMENT ON COLUMN once.topic.lanes IS 'Number of lanes for events with an order_key, 1 to 1000; NULL: 16.';
COMMENT ON COLUMN once.topic.dedupe_for_us IS 'How long a dedupe_key is blocked after its emit, in microseconds; NULL: 24 hours.';
COMMENT ON COLUMN once.topic.owner IS 'Only members of this role may use the topic; NULL: no owner. The oid is valid in the incarnation that wrote it. In another incarnation (for example, after a restore) the owner is the role named owner_name; if that role does not exist, only superusers may use the topic.';
COMMENT ON COLUMN once.topic.owner_name IS 'As once.scope.owner_name.';
COMMENT ON COLUMN once.topic.owner_incarnation IS 'As once.scope.owner_incarnation.';
COMMENT ON COLUMN once.topic.topic IS 'Name of the topic, 1 to 100 characters.';

CREATE TABLE once.subscriber (
    subscriber_id     integer  NOT NULL CONSTRAINT subscriber_pkey PRIMARY KEY,
    topic_id          integer  NOT NULL,
    start_series      integer  NOT NULL,
    max_attempts      integer,
    backoff_base_us   bigint,
    backoff_cap_us    bigint,
    lease_us          bigint,
    max_lease_life_us bigint,
    dead_for_us       bigint,
    start_seen        bigint[] NOT NULL,
    paused            boolean NOT NULL,
    subscriber        text COLLATE "C" NOT NULL,
    CONSTRAINT subscriber_name UNIQUE (topic_id, subscriber)
);
COMMENT ON TABLE once.subscriber IS 'Subscribers of topics and their options (subscriber_set); NULL: the default.';
COMMENT ON COLUMN once.subscriber.subscriber_id IS 'Number of the subscriber, from once.outbox_id; never used again.';
COMMENT ON COLUMN once.subscriber.topic_id IS 'Number of its topic.';
COMMENT ON COLUMN once.subscriber.start_series IS 'The series in which the subscriber was created. The subscriber''s first window of events begins in this series, after start_seen.';
COMMENT ON COLUMN once.subscriber.max_attempts IS 'Failures until an event is dead; NULL: 10.';
COMMENT ON COLUMN once.subscriber.backoff_base_us IS 'Upper limit of the backoff after the first failure, in microseconds; doubles with each failure; NULL: 1 second.';
COMMENT ON COLUMN once.subscriber.backoff_cap_us IS 'Upper limit of the backoff after any failure, in microseconds; NULL: 1 hour.';
COMMENT ON COLUMN once.subscriber.lease_us IS 'Lease of a take that names none, in microseconds; NULL: 60 seconds.';
COMMENT ON COLUMN once.subscriber.max_lease_life_us IS 'Upper limit of a batch''s lease, and how long an ended token is remembered, in microseconds; NULL: 24 hours.';
COMMENT ON COLUMN once.subscriber.dead_for_us IS 'How long a dead letter can be read and redriven, in microseconds; NULL: until it is redriven or discarded.';
COMMENT ON COLUMN once.subscriber.paused IS 'True: takes return no rows.';
COMMENT ON COLUMN once.subscriber.start_seen IS 'The snapshot at the subscriber''s creation, in the format of once.batch.seen_to. The subscriber gets the events that become visible after this snapshot.';
COMMENT ON COLUMN once.subscriber.subscriber IS 'Name of the subscriber, 1 to 100 characters, within its topic.';

-- Emits write to the segment that was opened last; before the first rotation, to segment 0.
CREATE TABLE once.segment (
    segment     integer NOT NULL CONSTRAINT segment_pkey PRIMARY KEY CHECK (segment BETWEEN 0 AND 3),
    opened      bigint  NOT NULL,
    drained_xid bigint,
    incarnation bigint
);
COMMENT ON TABLE once.segment IS 'State of the segments once.event_0 to once.event_3.';
COMMENT ON COLUMN once.segment.segment IS 'Number of the segment, 0 to 3, as in the table''s name (once.event_0 to once.event_3).';
COMMENT ON COLUMN once.segment.opened IS 'Grows with each rotation; the current segment has the largest number.';
COMMENT ON COLUMN once.segment.drained_xid IS 'A segment is marked as drained when all of its events that are still needed are copied to once.event_kept. drained_xid is the next transaction id at that time. When no open snapshot has a lower xmin, every open snapshot sees the copies. Then the segment may be truncated. NULL: not drained.';
COMMENT ON COLUMN once.segment.incarnation IS 'The incarnation in which drained_xid is valid.';

-- The log. Its rows are never updated, so it keeps the default fillfactor of 100.
CREATE TABLE once.event_0 (
    event_id   bigint      NOT NULL,
    xid        bigint      NOT NULL,
    emitted_at timestamptz NOT NULL,
    topic_id   integer     NOT NULL,
    lane       integer     NOT NULL,
    series     integer     NOT NULL,
    order_key  text        COLLATE "C",
    headers    json,
    payload    json
) WITH (autovacuum_vacuum_insert_threshold = 1000000);
-- The other tables of events copy these comments.
COMMENT ON COLUMN once.event_0.event_id IS 'Number of the event, from once.event_id; events of one order_key are delivered in this order, except events that were committed late or redriven.';
COMMENT ON COLUMN once.event_0.xid IS 'Id of the emitting transaction, with its epoch. In another incarnation the same id may belong to another transaction. once.series has the incarnation of each series.';
COMMENT ON COLUMN once.event_0.emitted_at IS 'When the event was emitted; its transaction committed later.';
COMMENT ON COLUMN once.event_0.topic_id IS 'Number of its topic.';
COMMENT ON COLUMN once.event_0.lane IS 'With an order_key: from 1 to the topic''s number of lanes. Without: 0 or -2 to -8. Delayed or redriven: -1.';
COMMENT ON COLUMN once.event_0.series IS 'The series that it was emitted in (once.series).';
COMMENT ON COLUMN once.event_0.order_key IS 'The order_key given to outbox_emit or in a step''s event. For a machine''s move it is machine/id; if machine/id has over 255 characters, its SHA-256 in hex. NULL: none, delivered in any order.';
COMMENT ON COLUMN once.event_0.headers IS 'As given to outbox_emit; NULL: none.';
COMMENT ON COLUMN once.event_0.payload IS 'The payload given to outbox_emit or in a step''s event, byte for byte; or the description of a machine''s move.';
CREATE TABLE once.event_1 (LIKE once.event_0 INCLUDING STORAGE INCLUDING COMMENTS)
    WITH (autovacuum_vacuum_insert_threshold = 1000000);
CREATE TABLE once.event_2 (LIKE once.event_0 INCLUDING STORAGE INCLUDING COMMENTS)
    WITH (autovacuum_vacuum_insert_threshold = 1000000);
CREATE TABLE once.event_3 (LIKE once.event_0 INCLUDING STORAGE INCLUDING COMMENTS)
    WITH (autovacuum_vacuum_insert_threshold = 1000000);
-- Copies of events that once.retry, an open batch or a lagging subscriber needs after their segment is truncated.
-- Delayed and redriven events are here, too (lane -1). A sweep deletes the rows that no subscriber needs.
CREATE TABLE once.event_kept (LIKE once.event_0 INCLUDING STORAGE INCLUDING COMMENTS);
-- Each table has two indexes. In the index _position a take finds the events of a lane by their event ids. In the index
-- _xid it finds events that committed late, by the id of their transaction.
CREATE UNIQUE INDEX event_0_position ON once.event_0 (topic_id, lane, event_id);
CREATE UNIQUE INDEX event_1_position ON once.event_1 (topic_id, lane, event_id);
CREATE UNIQUE INDEX event_2_position ON once.event_2 (topic_id, lane, event_id);
CREATE UNIQUE INDEX event_3_position ON once.event_3 (topic_id, lane, event_id);
CREATE UNIQUE INDEX event_kept_position ON once.event_kept (topic_id, lane, event_id);
-- A publication FOR ALL TABLES includes these tables; without a replica identity the server would refuse a DELETE.
ALTER TABLE once.event_0 REPLICA IDENTITY USING INDEX event_0_position;
ALTER TABLE once.event_1 REPLICA IDENTITY USING INDEX event_1_position;
ALTER TABLE once.event_2 REPLICA IDENTITY USING INDEX event_2_position;
ALTER TABLE once.event_3 REPLICA IDENTITY USING INDEX event_3_position;
ALTER TABLE once.event_kept REPLICA IDENTITY USING INDEX event_kept_position;
CREATE INDEX event_0_xid ON once.event_0 (xid, topic_id, lane, event_id);
CREATE INDEX event_1_xid ON once.event_1 (xid, topic_id, lane, event_id);
CREATE INDEX event_2_xid ON once.event_2 (xid, topic_id, lane, event_id);
CREATE INDEX event_3_xid ON once.event_3 (xid, topic_id, lane, event_id);
CREATE INDEX event_kept_xid ON once.event_kept (xid, topic_id, lane, event_id);
COMMENT ON TABLE once.event_0 IS 'A segment of the log of events; truncated after the events that are still needed were copied to once.event_kept.';
COMMENT ON TABLE once.event_1 IS 'A segment of the log of events, as once.event_0.';
COMMENT ON TABLE once.event_2 IS 'A segment of the log of events, as once.event_0.';
COMMENT ON TABLE once.event_3 IS 'A segment of the log of events, as once.event_0.';
COMMENT ON TABLE once.event_kept IS 'Copies of events that are needed after their segment is truncated; also the delayed and redriven events (lane -1).';

-- The batches that outbox_take handed out, and how far their lanes had been read then.
CREATE TABLE once.batch (
    token         bigint      NOT NULL,
    taken_at      timestamptz NOT NULL,
    lease_until   timestamptz NOT NULL,
    subscriber_id integer     NOT NULL,
    lane          integer     NOT NULL,
    series        integer     NOT NULL,
    last_id       bigint      NOT NULL,
    redelivered   boolean     NOT NULL,
    suspect       boolean     NOT NULL,
    event_ids     bigint[]    NOT NULL,
    seen_from     bigint[]    NOT NULL,
    seen_to       bigint[]    NOT NULL,
    late          bigint[]    NOT NULL,
    open          bigint[]    NOT NULL,
    CONSTRAINT batch_pkey PRIMARY KEY (subscriber_id, token, lane)
) WITH (fillfactor = 90);
CREATE INDEX batch_lane ON once.batch (subscriber_id, lane, token);
COMMENT ON TABLE once.batch IS 'Batches that outbox_take handed out, with a row for each lane; the last row of a lane stores how far the lane has been read.';
COMMENT ON COLUMN once.batch.token IS 'Token of the lease: the server''s clock in microseconds since 2000, or the next larger number that is free. The same in each row of a batch.';
COMMENT ON COLUMN once.batch.taken_at IS 'When it was taken. max_lease_life counts from the value in the batch''s row with the lowest lane.';
COMMENT ON COLUMN once.batch.lease_until IS 'End of the lease. Only the value in the batch''s row with the lowest lane is valid.';
COMMENT ON COLUMN once.batch.subscriber_id IS 'Number of the subscriber.';
COMMENT ON COLUMN once.batch.lane IS 'The lane from which the events of this row were taken.';
COMMENT ON COLUMN once.batch.series IS 'The series of the window''s events.';
COMMENT ON COLUMN once.batch.last_id IS 'Every event of the window (seen_from to seen_to) up to this event_id has been handed out, or waits behind an earlier event of its order_key; 0: none yet.';
COMMENT ON COLUMN once.batch.redelivered IS 'True: some of its events were taken from once.retry.';
COMMENT ON COLUMN once.batch.suspect IS 'True: it has one event, handed out alone because an earlier lease of the event expired.';
COMMENT ON COLUMN once.batch.event_ids IS 'The events that the batch took from this lane, ascending. The array may be empty. Then the take read new events, but once.retry already had events of their order_keys. The take put the new events into once.retry and handed out none of this lane.';
COMMENT ON COLUMN once.batch.seen_from IS 'The events of a window are visible in the snapshot seen_to and not in the snapshot seen_from. Both are stored in the format of seen_to. In a window that begins with the first event of a series, all numbers of seen_from are zero.';
COMMENT ON COLUMN once.batch.seen_to IS 'The snapshot at the end of the window: {xmax, next xid, own xid or 0, last value of once.event_id just before the snapshot, last value just after it, running xids ...}. A new incarnation begins a new series. The last window of the old series has the rest of its events. In this window all numbers of seen_to are the largest bigint, except own xid, which is 0.';
COMMENT ON COLUMN once.batch.late IS 'Transactions that seen_from saw running and that have events of this lane in the window.';
COMMENT ON COLUMN once.batch.open IS 'Tokens of earlier batches that still held events of this lane when this batch was taken.';

-- No query plan uses statistics of these columns. An ANALYZE of millions of array elements takes seconds, and its
-- snapshot holds back the truncation of segments.
ALTER TABLE once.batch
    ALTER COLUMN event_ids SET STATISTICS 0, ALTER COLUMN seen_from SET STATISTICS 0, ALTER COLUMN seen_to SET STATISTICS 0,
    ALTER COLUMN late SET STATISTICS 0, ALTER COLUMN open SET STATISTICS 0;

-- How events left their batch: one row per ack, nack or expiry.
CREATE TABLE once.receipt (
    subscriber_id integer       NOT NULL,
    n             integer       NOT NULL,
    token         bigint        NOT NULL,
    at            timestamptz   NOT NULL,
    acked         integer       NOT NULL,
    remaining     integer       NOT NULL,
    kind          "char"        NOT NULL CHECK (kind IN ('a', 'n', 'x')),
    event_ids     bigint[],
    attempts      integer[],
    next_at       timestamptz[],
    dead          boolean[],
    CONSTRAINT receipt_pkey PRIMARY KEY (subscriber_id, token, n)
);
-- No statistics, for the same reasons as in once.batch.
ALTER TABLE once.receipt
    ALTER COLUMN event_ids SET STATISTICS 0, ALTER COLUMN attempts SET STATISTICS 0, ALTER COLUMN next_at SET STATISTICS 0,
    ALTER COLUMN dead SET STATISTICS 0;
COMMENT ON TABLE once.receipt IS 'How events left their batch.';
COMMENT ON COLUMN once.receipt.subscriber_id IS 'Number of the subscriber.';
COMMENT ON COLUMN once.receipt.n IS 'Number of the receipt among those of its batch, from 1.';
COMMENT ON COLUMN once.receipt.token IS 'Token of the batch.';
COMMENT ON COLUMN once.receipt.at IS 'When the events left.';
COMMENT ON COLUMN once.receipt.acked IS 'Number of the batch''s events acked so far, this receipt included.';
COMMENT ON COLUMN once.receipt.remaining IS 'Number of the events that the batch still holds after this receipt; 0: the batch is over.';
COMMENT ON COLUMN once.receipt.kind IS 'a: acked; n: nacked; x: the lease expired.';
COMMENT ON COLUMN once.receipt.event_ids IS 'The events that left; NULL: all events of the batch at once.';
COMMENT ON COLUMN once.receipt.attempts IS 'If kind is n, outbox_nack returned a row for each event that it was called for. The columns attempts, next_at and dead store these rows as arrays. In next_at, infinity stands for NULL. event_ids begins with the events of these rows, in the same order. After these, event_ids lists later events of the same order_keys. The nack took them out of the batch, too, but returned no row for them. NULL: not a nack.';
COMMENT ON COLUMN once.receipt.next_at IS 'If kind is n: when each event may be taken again; infinity: it is dead, or waits behind an earlier event of its order_key. NULL: not a nack.';
COMMENT ON COLUMN once.receipt.dead IS 'If kind is n: whether each event is dead. NULL: not a nack.';

-- Events that are handled one by one: nacked, expired, delayed, redriven, or behind an earlier one of their order_key.
CREATE TABLE once.retry (
    due_at        timestamptz NOT NULL,
    event_id      bigint      NOT NULL,
    token         bigint,
    subscriber_id integer     NOT NULL,
    topic_id      integer     NOT NULL,
    lane          integer     NOT NULL,
    failures      integer     NOT NULL,
    redriven      integer     NOT NULL,
    suspect       boolean     NOT NULL,
    order_key     text        COLLATE "C",
    CONSTRAINT retry_pkey PRIMARY KEY (subscriber_id, event_id)
);
CREATE INDEX retry_due ON once.retry (subscriber_id, lane, suspect, due_at, event_id);
CREATE INDEX retry_key ON once.retry (subscriber_id, lane, order_key, event_id) WHERE order_key IS NOT NULL;
COMMENT ON TABLE once.retry IS 'Events of a subscriber that are handled one by one: nacked, expired, delayed, redriven, or behind an earlier event of their order_key in this table.';
COMMENT ON COLUMN once.retry.due_at IS 'When the event may be taken; infinity while it is in a batch, or waits behind the first event of its order_key.';
COMMENT ON COLUMN once.retry.event_id IS 'The event, which is in one of once.event_0 to once.event_3 or in once.event_kept.';
COMMENT ON COLUMN once.retry.token IS 'Token of the batch that it is in; NULL: in none.';
COMMENT ON COLUMN once.retry.subscriber_id IS 'Number of the subscriber.';
COMMENT ON COLUMN once.retry.topic_id IS 'Number of the topic.';
COMMENT ON COLUMN once.retry.lane IS 'The lane from which outbox_take takes it. With an order_key: from 1 to the topic''s number of lanes. Without: 0 or -2 to -8. (In once.event_kept a delayed or redriven event has lane -1.)';
COMMENT ON COLUMN once.retry.failures IS 'Number of failed attempts that were counted since the event was emitted or last redriven. A call of outbox_nack counts an attempt for each of its events without order_key. Of its events with the same order_key, only the earliest gets a counted attempt. With the kind "released" no attempt is counted. When the lease of a batch of one event expires, an attempt is counted. When the lease of a larger batch expires, none is counted.';
COMMENT ON COLUMN once.retry.redriven IS 'How often the event was redriven from once.dead.';
COMMENT ON COLUMN once.retry.suspect IS 'True: its lease expired, so it is handed out alone.';
COMMENT ON COLUMN once.retry.order_key IS 'The event''s order_key; NULL: none.';

CREATE TABLE once.dead (
    subscriber_id integer     NOT NULL,
    topic_id      integer     NOT NULL,
    event_id      bigint      NOT NULL,
    xid           bigint      NOT NULL,
    emitted_at    timestamptz NOT NULL,
    died_at       timestamptz NOT NULL,
    series        integer     NOT NULL,
    attempts      integer     NOT NULL,
    redriven      integer     NOT NULL,
    kind          text        NOT NULL,
    error         text,
    order_key     text        COLLATE "C",
    headers       json,
    payload       json,
    CONSTRAINT dead_pkey PRIMARY KEY (subscriber_id, event_id)
);
CREATE INDEX dead_died ON once.dead (subscriber_id, died_at, event_id);
COMMENT ON TABLE once.dead IS 'Dead letters. An event is dead when its attempts are used up, or after a nack with the kind "never".';
COMMENT ON COLUMN once.dead.subscriber_id IS 'Number of the subscriber.';
COMMENT ON COLUMN once.dead.topic_id IS 'Number of the topic.';
COMMENT ON COLUMN once.dead.event_id IS 'The event.';
COMMENT ON COLUMN once.dead.xid IS 'Id of the emitting transaction, with its epoch. In another incarnation the same id may belong to another transaction. once.series has the incarnation of each series.';
COMMENT ON COLUMN once.dead.emitted_at IS 'When it was emitted.';
COMMENT ON COLUMN once.dead.died_at IS 'When it died.';
COMMENT ON COLUMN once.dead.series IS 'The series that it was emitted in (once.series).';
COMMENT ON COLUMN once.dead.attempts IS 'Number of failed attempts that were counted (as in once.retry.failures) since the event was emitted or last redriven.';
COMMENT ON COLUMN once.dead.redriven IS 'How often the event had been redriven from once.dead before it died again.';
COMMENT ON COLUMN once.dead.kind IS 'The kind of its last failure: as given to outbox_nack, or expired (its last lease expired).';
COMMENT ON COLUMN once.dead.error IS 'The error that outbox_nack was given when it died; NULL: none.';
COMMENT ON COLUMN once.dead.order_key IS 'The event''s order_key; NULL: none.';
COMMENT ON COLUMN once.dead.headers IS 'The event''s headers; NULL: none.';
COMMENT ON COLUMN once.dead.payload IS 'The event''s payload.';

CREATE TABLE once.delivery (
    subscriber_id integer     NOT NULL,
    event_id      bigint      NOT NULL,
    token         bigint      NOT NULL,
    at            timestamptz NOT NULL,
    attempt       integer     NOT NULL,
    kind          text        NOT NULL,
    error         text,
    CONSTRAINT delivery_pkey PRIMARY KEY (subscriber_id, event_id, token)
);
CREATE INDEX delivery_at ON once.delivery (at);
COMMENT ON TABLE once.delivery IS 'The failed attempts that count, a row for each; outbox_deliveries lists them.';
COMMENT ON COLUMN once.delivery.subscriber_id IS 'Number of the subscriber.';
COMMENT ON COLUMN once.delivery.token IS 'Token of the batch in which it failed.';
COMMENT ON COLUMN once.delivery.attempt IS 'Number of the attempt among those that were counted, 1 for the first; begins anew after a redrive.';
COMMENT ON COLUMN once.delivery.event_id IS 'The event.';
COMMENT ON COLUMN once.delivery.at IS 'When the attempt ended.';
COMMENT ON COLUMN once.delivery.kind IS 'The kind given to outbox_nack, or expired (the lease expired).';
COMMENT ON COLUMN once.delivery.error IS 'The error that outbox_nack was given; NULL: none.';

CREATE TABLE once.dedupe (
    topic_id  integer     NOT NULL,
    event_id  bigint      NOT NULL,
    until     timestamptz NOT NULL,
    id        uuid        NOT NULL,
    CONSTRAINT dedupe_pkey PRIMARY KEY (topic_id, id)
);
CREATE INDEX dedupe_until ON once.dedupe (until);
COMMENT ON TABLE once.dedupe IS 'The dedupe_keys that cannot be emitted again yet; a sweep (dedupe_reap) deletes them later.';
COMMENT ON COLUMN once.dedupe.topic_id IS 'Number of the topic.';
COMMENT ON COLUMN once.dedupe.event_id IS 'The event that was emitted with the key.';
COMMENT ON COLUMN once.dedupe.until IS 'The key may be emitted again from this time on.';
COMMENT ON COLUMN once.dedupe.id IS 'First 16 bytes of SHA-256 of the dedupe_key, in UTF-8.';

SELECT pg_catalog.pg_extension_config_dump('once.series', '');
SELECT pg_catalog.pg_extension_config_dump('once.topic', '');
SELECT pg_catalog.pg_extension_config_dump('once.subscriber', '');
SELECT pg_catalog.pg_extension_config_dump('once.segment', '');
SELECT pg_catalog.pg_extension_config_dump('once.event_0', '');
SELECT pg_catalog.pg_extension_config_dump('once.event_1', '');
SELECT pg_catalog.pg_extension_config_dump('once.event_2', '');
SELECT pg_catalog.pg_extension_config_dump('once.event_3', '');
SELECT pg_catalog.pg_extension_config_dump('once.event_kept', '');
SELECT pg_catalog.pg_extension_config_dump('once.batch', '');
SELECT pg_catalog.pg_extension_config_dump('once.receipt', '');
SELECT pg_catalog.pg_extension_config_dump('once.retry', '');
SELECT pg_catalog.pg_extension_config_dump('once.dead', '');
SELECT pg_catalog.pg_extension_config_dump('once.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('once.dedupe', '');

CREATE FUNCTION once.outbox_emit(
    topic text, payload json, order_key text = NULL, dedupe_key text = NULL, headers json = NULL, delay interval = NULL,
    OUT event_id bigint, OUT emitted boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_outbox_emit';
COMMENT ON FUNCTION once.outbox_emit(text, json, text, text, json, interval) IS
$$Emits an event to every subscriber of the topic, in the caller's transaction. payload: JSON, delivered byte for byte. order_key: events of one key are delivered in order. dedupe_key: a repeat within the topic's dedupe_for emits nothing (emitted: false; event_id: that of the first emit). Both keys: 1 to 255 characters. headers: a JSON object. delay: the least time before delivery; not with order_key.
Errors: 42704 no such topic, 22023 bad argument or a topic without subscribers, 42501 another owner, 40001 (above READ COMMITTED) the dedupe_key was emitted meanwhile, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_take(
    topic text, subscriber text = 'default', max integer = 10, lease interval = NULL,
    OUT token bigint, OUT event_id bigint, OUT attempt integer, OUT delivery_key text, OUT order_key text,
    OUT payload json, OUT headers json, OUT emitted_at timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_outbox_take';
COMMENT ON FUNCTION once.outbox_take(text, text, integer, interval) IS
$$Leases up to max (1 to 10000) due events to the caller, all under one token; give max, not a LIMIT: rows beyond a LIMIT stay leased. Commit at once, deliver, then outbox_ack or outbox_nack. No rows: nothing can be taken now; fewer rows than max: more may be due. attempt: 1 for the first delivery. delivery_key: the idempotency key to send along, the same on every attempt. lease: default the subscriber's. Handle events of one order_key one after another, by event_id.
Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_ack(topic text, subscriber text, token bigint, event_ids bigint[] = NULL, OUT acked integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_outbox_ack';
COMMENT ON FUNCTION once.outbox_ack(text, text, bigint, bigint[]) IS
$$Marks events of the batch as delivered. event_ids NULL (also from an array_agg of no rows): all events that the batch still holds. Returns how many events this call acked. Concurrent handlers must name their events.
Errors: ON006 an earlier transaction acked one of the given event_ids with this token; ON006 event_ids is NULL and an earlier transaction acked the rest of the batch; ON001 the lease is lost, or an event is not this token's (DETAIL names it); 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_nack(
    topic text, subscriber text, token bigint, event_ids bigint[] = NULL, error text = NULL, kind text = 'error',
    retry_after interval = NULL,
    OUT event_id bigint, OUT attempt integer, OUT next_attempt_at timestamptz, OUT dead boolean)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_outbox_nack';
COMMENT ON FUNCTION once.outbox_nack(text, text, bigint, bigint[], text, text, interval) IS
$$Marks events of the batch as failed (event_ids NULL: all). Per order_key, the first event's attempt is counted; later events leave the batch and wait behind it. An event is due again after retry_after or the backoff; after max_attempts it is dead. kind: a word for the metrics, or released (counts no attempt) or never (dead at once). error: kept for outbox_deliveries.
Errors: ON006 this token acked an event, or nacked it in an earlier transaction (DETAIL); ON001 lease lost, or not this token's event; 42704 no such topic or subscriber, 22023 bad argument, 42501 another owner, 25006 read-only.$$;

CREATE FUNCTION once.outbox_extend(topic text, subscriber text, token bigint, lease interval = NULL, OUT lease_left interval)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_outbox_extend';
COMMENT ON FUNCTION once.outbox_extend(text, text, bigint, interval) IS
$$Renews the lease of a batch from now, but never beyond max_lease_life after its take. Returns the time left of the lease.
Errors: ON006 this token has ended the batch; ON001 the lease is lost; 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.topic_set(topic text, options json = '{}')
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_topic_set';
COMMENT ON FUNCTION once.topic_set(text, json) IS
$$Creates a topic (1 to 100 characters) or changes the named options (null: default); returns all options. dedupe_for: how long a dedupe_key is blocked (24 hours). lanes: how many leased batches of a subscriber may hold events with an order_key at a time, 1 to 1000 (16). subscribers: names, only at creation (["default"]). owner: a role; only its members may use the topic.
Errors: 22023 unknown option or bad value; 55006 lanes: events are pending; 55P03 lanes: events are being written; 42501 not a member of both the present and the new owner; 40001 a lost race; 25006 read-only.$$;

CREATE FUNCTION once.topic_get(topic text)
RETURNS json LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_topic_get';
COMMENT ON FUNCTION once.topic_get(text) IS
$$Returns the options in force, defaults included, and the names of the subscribers. Errors: 42704 no such topic, 42501 the topic has another owner.$$;

CREATE FUNCTION once.topic_drop(topic text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_topic_drop';
COMMENT ON FUNCTION once.topic_drop(text) IS
$$Removes a topic that has no subscribers left. Errors: 55006 it has subscribers, 42704 no such topic, 42501 the topic has another owner, 40001 a lost race, 25006 read-only transaction.$$;

CREATE FUNCTION once.subscriber_set(topic text, subscriber text, options json = '{}')
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_subscriber_set';
COMMENT ON FUNCTION once.subscriber_set(text, text, json) IS
$$Creates a subscriber (1 to 100 characters) for later events, or changes the named options (null: default); returns all options. max_attempts: failures until an event is dead (10). backoff_base (1 s), backoff_cap (1 hour): the nth retry waits min(cap, base * 2^(n-1)) * (0.5 to 1). lease (60 s): of a take that names none. max_lease_life (24 hours): limit of a lease, and how long ended tokens are remembered. paused (false): takes return no rows. dead_for (no end): how long dead letters stay.
Errors: 42704 no such topic, 22023 bad option, 42501 another owner, 40001 a lost race, 25006 read-only.$$;

CREATE FUNCTION once.subscriber_get(topic text, subscriber text)
RETURNS json LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_subscriber_get';
COMMENT ON FUNCTION once.subscriber_get(text, text) IS
$$Returns the options in force, defaults included. Errors: 42704 no such topic or subscriber, 42501 the topic has another owner.$$;

CREATE FUNCTION once.subscriber_drop(topic text, subscriber text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_subscriber_drop';
COMMENT ON FUNCTION once.subscriber_drop(text, text) IS
$$Removes a subscriber and discards its backlog, its retries and its dead letters. Errors: 42704 no such topic or subscriber, 42501 the topic has another owner, 40001 a lost race, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_deliveries(
    topic text, subscriber text, event_id bigint, OUT attempt integer, OUT at timestamptz, OUT kind text, OUT error text)
RETURNS SETOF record LANGUAGE c STABLE PARALLEL UNSAFE ROWS 3 AS 'MODULE_PATHNAME', 'pg_once_outbox_deliveries';
COMMENT ON FUNCTION once.outbox_deliveries(text, text, bigint) IS
$$Lists the failed attempts at an event, the oldest first. After the event's ack they are kept for max_lease_life. If the event is dead, they are kept until the dead letter is discarded or its dead_for is over. Errors: 42704 no such topic or subscriber, 42501 the topic has another owner.$$;

CREATE FUNCTION once.outbox_dead(
    topic text, subscriber text = 'default', max integer = 100,
    OUT event_id bigint, OUT attempts integer, OUT died_at timestamptz, OUT kind text, OUT error text,
    OUT order_key text, OUT payload json, OUT headers json, OUT emitted_at timestamptz)
RETURNS SETOF record LANGUAGE c STABLE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_outbox_dead';
COMMENT ON FUNCTION once.outbox_dead(text, text, integer) IS
$$Lists up to max (1 to 10000) dead letters of a subscriber, the earliest died_at first. Letters whose dead_for is over are not listed. kind: as given to the last outbox_nack; expired: the event died when its lease expired, so no worker knows that it is dead.
Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner.$$;

CREATE FUNCTION once.outbox_redrive(
    topic text, subscriber text = 'default', max integer = 100, event_ids bigint[] = NULL, OUT redriven integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_outbox_redrive';
COMMENT ON FUNCTION once.outbox_redrive(text, text, integer, bigint[]) IS
$$Makes up to max (1 to 10000) dead letters due again, the earliest died_at first; event_ids: only these. Returns their number. Attempts count anew; event_id, emitted_at and delivery_key stay. Skips locked letters, and events that are not dead. Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_discard(topic text, subscriber text, event_ids bigint[], OUT discarded integer)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_outbox_discard';
COMMENT ON FUNCTION once.outbox_discard(text, text, bigint[]) IS
$$Deletes the named dead letters of a subscriber for good, with the record of their failed attempts, and returns their number. Other subscribers keep theirs. The log keeps a payload until a sweep (outbox_retire) truncates the segment. Events that are not dead are skipped, so a repeated call returns 0.
Errors: 42704 no such topic or subscriber, 22023 event_ids is NULL, 42501 the topic has another owner, 25006 read-only transaction.$$;

CREATE FUNCTION once.outbox_peek(
    topic text, subscriber text = 'default', max integer = 100,
    OUT event_id bigint, OUT state text, OUT due_at timestamptz, OUT attempt integer, OUT order_key text,
    OUT payload json, OUT headers json, OUT emitted_at timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_outbox_peek';
COMMENT ON FUNCTION once.outbox_peek(text, text, integer) IS
$$Shows up to max (1 to 10000) pending events of a subscriber, by event_id, without taking them. state: ready; delayed (not due before due_at: a delay or a backoff); waiting (behind an earlier event of its order_key, or for the batch that holds its lane; due_at NULL); leased (due_at: when the lease ends). attempt: the one in progress, or the next. Dead letters: outbox_dead. Writes nothing.
Errors: 42704 no such topic or subscriber, 22023 bad argument, 42501 the topic has another owner.$$;

CREATE FUNCTION once.topic_list(
    OUT topic text, OUT subscriber text, OUT options json, OUT paused boolean, OUT lag interval, OUT depth bigint,
    OUT dead bigint)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_topic_list';
COMMENT ON FUNCTION once.topic_list() IS
$$A row for each topic and subscriber; a topic without subscribers has one row with NULLs. options: the topic's and the subscriber's, defaults included. lag: age of the oldest event that is due and not acked; NULL: none. depth: events that are not acked; exact while each lane has fewer than 64, else an estimate. dead: dead letters; 2000 means 2000 or more. Writes nothing and does not check owners.$$;
