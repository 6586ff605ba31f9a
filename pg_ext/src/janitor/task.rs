//! The tasks, in the order in which a sweep runs them, and the statements of those that are one statement.

use crate::action::sweep as actions;
use crate::clock;
use crate::error::Result;
use crate::key::passing;
use crate::outbox::{requeue, retire};
use crate::spi::{self, Kept};
use crate::subxact;
use crate::table::Name;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::thread::LocalKey;

// A key goes with its steps, in one statement. Tombstones come first by their own stage of the index; one
// that is not due (gone_for was raised, or it was only to be looked at) is moved to its next look. Keys
// that were never emptied (no sweep ran for long) are looked for among the oldest of the other stage, in a
// bounded range: key_tombstone moves what stands before them out of the way.
const REAP: &CStr = c"
    WITH oldest AS MATERIALIZED (
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '1' AND k.reap_at <= $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    later AS (
        UPDATE once.key k
           SET reap_at = LEAST(o.expires_at + o.gone_for,
                               $1 + GREATEST(interval '1 day', $1 - o.expires_at))
          FROM oldest o WHERE k.id = o.id AND o.expires_at + o.gone_for > $1),
    never_emptied AS MATERIALIZED (
        SELECT k.id
          FROM (SELECT o.id FROM once.key o WHERE o.reap_stage = '0' AND o.reap_at <= $1
                 ORDER BY o.reap_at LIMIT 2 * $2) oldest
               JOIN once.key k ON k.id = oldest.id
               LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.finished_at + k.ttl_us * interval '1 microsecond'
               + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' <= $1
         LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    due AS MATERIALIZED (
        SELECT id FROM oldest WHERE expires_at + gone_for <= $1
        UNION ALL
        SELECT id FROM never_emptied LIMIT $2),
    steps AS (DELETE FROM once.key_step s USING due WHERE s.key_id = due.id),
    reaped AS (DELETE FROM once.key k USING due WHERE k.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*),
           pg_catalog.count(*) >= $2 OR (SELECT pg_catalog.count(*) FROM oldest) >= $2 FROM reaped";

// Keys whose time has not come yet (finished after they were claimed, or not at all) are moved to when
// it will have; that counts towards the bound, not towards what was done. An unfinished one is shown to
// completers again: should a clock that stepped back have hidden it from them, that ends here. A tombstone is looked at again
// when gone_for ends, but at the latest after a day, then after twice its age: a gone_for that is lowered
// meanwhile gives its space back, and a long one costs a few writes in all.
const TOMBSTONE: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               k.ttl_us * interval '1 microsecond' AS ttl,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '0' AND k.reap_at <= $1
         ORDER BY k.reap_at LIMIT $2 FOR UPDATE OF k SKIP LOCKED),
    steps AS (
        DELETE FROM once.key_step s USING due WHERE s.key_id = due.id AND due.expires_at <= $1),
    later AS (
        UPDATE once.key k
           SET reap_at = COALESCE(due.expires_at, $1 + GREATEST(due.ttl, interval '10 minutes')),
               look_at = CASE WHEN k.status IN ('r', 'l')
                               AND EXISTS (SELECT FROM once.key_bookmark b
                                            WHERE b.scope = k.scope AND b.upto >= k.look_at)
                              THEN GREATEST(k.look_at, $1) ELSE k.look_at END
          FROM due WHERE k.id = due.id AND (due.expires_at > $1 OR due.expires_at IS NULL)
        RETURNING 1),
    emptied AS (
        UPDATE once.key k
           SET status = 'g', reap_stage = '1',
               reap_at = LEAST(due.expires_at + due.gone_for,
                               $1 + GREATEST(interval '1 day', $1 - due.expires_at)),
               state = NULL, request = NULL, note = NULL, holder = NULL,
               response_code = NULL, response_body = NULL, response_headers = NULL
          FROM due WHERE k.id = due.id AND due.expires_at <= $1
        RETURNING 1)
    SELECT (SELECT pg_catalog.count(*) FROM emptied),
           (SELECT pg_catalog.count(*) FROM due) >= $2";

// Messages and steps of sagas that count as new.
const INBOX: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT i.id FROM once.inbox i WHERE i.expires_at <= $1
         ORDER BY i.expires_at LIMIT $2 FOR UPDATE OF i SKIP LOCKED),
    reaped AS (DELETE FROM once.inbox i USING due WHERE i.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped";

// dedupe_keys whose topic's window is over.
const DEDUPE: &CStr = c"
    WITH due AS MATERIALIZED (
        SELECT d.topic_id, d.id FROM once.dedupe d WHERE d.until <= $1
         ORDER BY d.until LIMIT $2 FOR UPDATE OF d SKIP LOCKED),
    reaped AS (
        DELETE FROM once.dedupe d USING due WHERE d.topic_id = due.topic_id AND d.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped";

/// Now, the bound, and (for keys) the default of gone_for in microseconds.
const TYPES: &[pg_sys::Oid] = &[pg_sys::TIMESTAMPTZOID, pg_sys::INT4OID, pg_sys::INT8OID];

thread_local! {
    static KEY_REAP: Kept = const { Kept::new(REAP, TYPES) };
    static KEY_TOMBSTONE: Kept = const { Kept::new(TOMBSTONE, TYPES) };
    static INBOX_REAP: Kept = const { Kept::new(INBOX, TYPES) };
    static DEDUPE_REAP: Kept = const { Kept::new(DEDUPE, TYPES) };
}

/// What one run of a task did.
#[derive(Default)]
pub struct Swept {
    pub done: i64,
    pub failed: i64,
    pub more: bool,
    pub last_error: Option<String>,
}

impl Swept {
    /// So many rows failed, for the same reason.
    pub fn failure(rows: usize, reason: &str) -> Swept {
        Swept {
            failed: rows as i64,
            last_error: Some(reason.to_owned()),
            ..Swept::default()
        }
    }

    pub fn add(&mut self, other: Swept) {
        self.done += other.done;
        self.failed += other.failed;
        self.more |= other.more;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// One of the sweep's tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    ActionRelease,
    KeyReap,
    KeyTombstone,
    OutboxRequeue,
    InboxReap,
    DedupeReap,
    /// Last: what it truncates is locked until the transaction ends.
    OutboxRetire,
}

impl Task {
    pub const ALL: [Task; 7] = [
        Task::ActionRelease,
        Task::KeyReap,
        Task::KeyTombstone,
        Task::OutboxRequeue,
        Task::InboxReap,
        Task::DedupeReap,
        Task::OutboxRetire,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Task::ActionRelease => actions::TASK,
            Task::KeyReap => "key_reap",
            Task::KeyTombstone => "key_tombstone",
            Task::OutboxRequeue => requeue::TASK,
            Task::InboxReap => "inbox_reap",
            Task::DedupeReap => "dedupe_reap",
            Task::OutboxRetire => retire::TASK,
        }
    }

    /// What a read-only transaction keeps it from writing.
    pub fn table(self) -> Name {
        match self {
            Task::ActionRelease => c"action_lease",
            Task::KeyReap | Task::KeyTombstone => c"key",
            Task::OutboxRequeue => c"batch",
            Task::InboxReap => c"inbox",
            Task::DedupeReap => c"dedupe",
            Task::OutboxRetire => c"segment",
        }
    }

    /// One pass of at most `max` rows.
    pub fn work(self, max: i32) -> Result<Swept> {
        match self {
            Task::ActionRelease => actions::sweep(max.into(), None),
            Task::OutboxRequeue => requeue::sweep(max.into()),
            Task::OutboxRetire => retire::sweep(max.into()),
            Task::KeyReap => statement(&KEY_REAP, max),
            Task::KeyTombstone => {
                let mut swept = statement(&KEY_TOMBSTONE, max)?;
                match subxact::attempt(|| passing::pass(max))? {
                    Ok(more) => swept.more |= more,
                    Err(failure) => swept.add(Swept::failure(1, &failure)),
                }
                Ok(swept)
            }
            Task::InboxReap => statement(&INBOX_REAP, max),
            Task::DedupeReap => statement(&DEDUPE_REAP, max),
        }
    }
}

/// Runs one of the statements above: how many rows, and whether more is waiting.
fn statement(kept: &'static LocalKey<Kept>, max: i32) -> Result<Swept> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(max)),
        Some(Datum::from(clock::DAY_US)),
    ];
    let rows = spi::query(kept, &args)?;
    let column = |i| rows.first().and_then(|row| spi::column(row, i));
    Ok(Swept {
        done: column(0).map_or(0, |d| d.value() as i64),
        more: column(1).is_some_and(|d| d.value() != 0),
        ..Swept::default()
    })
}
