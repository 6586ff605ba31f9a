//! The statements: what is due, and what is done with it.

use super::Reap;
use crate::clock;
use crate::error::{Error, Result};
use crate::spi::{self, Kept, Row};
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::thread::LocalKey;

/// A statement of pieces. Each tells how many rows were done, whether it took as many as it may, how many of those are
/// as they were, and how many steps of keys stayed. In all of them: $1 now, $2 the bound, $3 the default of gone_for in
/// microseconds, $4 whether somebody has put triggers on the tables, $5 where the rows are.
macro_rules! statement {
    ($($piece:expr),*) => {
        match CStr::from_bytes_with_nul(concat!($($piece),*, "\0").as_bytes()) {
            Ok(sql) => sql,
            Err(_) => c"",
        }
    };
}

/// When a finished key's ttl ends; NULL: it is not finished.
macro_rules! expires_at {
    () => {
        "(k.finished_at + k.ttl_us * interval '1 microsecond')"
    };
}

/// When it is new again.
macro_rules! gone_until {
    () => {
        concat!(
            expires_at!(),
            " + COALESCE((SELECT s.gone_for_us FROM once.scope s WHERE s.scope = k.scope), $3) * interval '1 microsecond'"
        )
    };
}

/// When a tombstone is looked at next: when it is new again, but at the latest after a day, then after twice its age. A
/// gone_for that is lowered meanwhile gives its space back, and a long one costs a few writes in all.
macro_rules! next_look {
    () => {
        concat!(
            "LEAST(",
            gone_until!(),
            ", $1 + GREATEST(interval '1 day', $1 - ",
            expires_at!(),
            "))"
        )
    };
}

/// The version that was locked is the one that the statement's snapshot shows. Who claimed the key anew meanwhile, and has
/// finished it, has written steps that the snapshot does not show: they would stay. The next pass does it. (A tombstone
/// has no steps.)
macro_rules! as_seen {
    ($locked:literal) => {
        concat!(
            "(SELECT true FROM once.key v WHERE v.ctid = ",
            $locked,
            ".ctid)"
        )
    };
}

/// Steps that a trigger kept back; counted only where there is one. Nobody else writes them while their keys are locked.
macro_rules! steps_kept {
    ($keys:literal) => {
        concat!(
            "CASE WHEN $4 THEN (SELECT pg_catalog.count(*) FROM once.key_step WHERE key_id = ANY (ARRAY(",
            $keys,
            "))) - (SELECT pg_catalog.count(*) FROM steps) ELSE 0 END"
        )
    };
}

/// A key goes with its steps, in one statement. Tombstones come first by their own stage of the index; one
/// that is not due (gone_for was raised, or it was only to be looked at) is moved to its next look. Keys
/// that were never emptied (no sweep ran for long) are looked for among the oldest of the other stage, in a
/// bounded range: key_tombstone moves what stands before them out of the way.
macro_rules! key {
    ($which:ident) => {
        statement!(
            "
    WITH oldest AS MATERIALIZED (
        SELECT k.id, ",
            gone_until!(),
            " <= $1 IS TRUE AS is_due FROM once.key k WHERE ",
            $which!(
                "k",
                "k.reap_stage = '1' AND k.reap_at <= $1",
                "k.reap_at",
                "$2"
            ),
            " FOR UPDATE SKIP LOCKED),
    later AS (
        UPDATE once.key k SET reap_at = ",
            next_look!(),
            " WHERE k.id = ANY (ARRAY(SELECT id FROM oldest WHERE NOT is_due))
        RETURNING k.reap_at > $1 AS moved),
    never_emptied AS MATERIALIZED (
        SELECT k.id, k.ctid FROM once.key k
         WHERE k.id = ANY (ARRAY(SELECT k.id FROM once.key k WHERE ",
            $which!(
                "k",
                "k.reap_stage = '0' AND k.reap_at <= $1",
                "k.reap_at",
                "2 * $2"
            ),
            ")) AND ",
            gone_until!(),
            " <= $1 ORDER BY k.reap_at LIMIT $2 FOR UPDATE SKIP LOCKED),
    due AS MATERIALIZED (
        SELECT id FROM oldest WHERE is_due
        UNION ALL
        SELECT n.id FROM never_emptied n WHERE ",
            as_seen!("n"),
            " LIMIT $2),
    steps AS (DELETE FROM once.key_step WHERE key_id = ANY (ARRAY(SELECT id FROM due)) RETURNING 1),
    reaped AS (DELETE FROM once.key WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*),
           pg_catalog.count(*) >= $2 OR (SELECT pg_catalog.count(*) FROM oldest) >= $2
           OR (SELECT pg_catalog.count(*) FROM never_emptied) >= $2,
           (SELECT pg_catalog.count(*) FROM due) - pg_catalog.count(*)
           + (SELECT pg_catalog.count(*) FROM oldest WHERE NOT is_due)
           - (SELECT pg_catalog.count(*) FROM later WHERE moved), ",
            steps_kept!("SELECT id FROM due"),
            " FROM reaped"
        )
    };
}

/// Keys whose time has not come yet (finished after they were claimed, or not at all) are moved to when
/// it will have; that counts towards the bound, not towards what was done. An unfinished one is shown to
/// completers again: should a clock that stepped back have hidden it from them, that ends here.
macro_rules! tombstone {
    ($which:ident) => {
        statement!(
            "
    WITH locked AS MATERIALIZED (
        SELECT k.id, k.ctid, ",
            expires_at!(),
            " <= $1 IS TRUE AS expired FROM once.key k WHERE ",
            $which!(
                "k",
                "k.reap_stage = '0' AND k.reap_at <= $1",
                "k.reap_at",
                "$2"
            ),
            " FOR UPDATE SKIP LOCKED),
    due AS MATERIALIZED (SELECT l.id, l.expired FROM locked l WHERE ",
            as_seen!("l"),
            "),
    steps AS (DELETE FROM once.key_step WHERE key_id = ANY (ARRAY(SELECT id FROM due WHERE expired)) RETURNING 1),
    later AS (
        UPDATE once.key k
           SET reap_at = COALESCE(",
            expires_at!(),
            ", $1 + GREATEST(k.ttl_us * interval '1 microsecond', interval '10 minutes')),
               look_at = CASE WHEN k.status IN ('r', 'l')
                               AND EXISTS (SELECT FROM once.key_bookmark b
                                            WHERE b.scope = k.scope AND b.upto >= k.look_at)
                              THEN GREATEST(k.look_at, $1) ELSE k.look_at END
         WHERE k.id = ANY (ARRAY(SELECT id FROM due WHERE NOT expired))
        RETURNING k.reap_at > $1 AS moved),
    emptied AS (
        UPDATE once.key k
           SET status = 'g', reap_stage = '1', reap_at = ",
            next_look!(),
            ", state = NULL, request = NULL, note = NULL, holder = NULL,
               response_code = NULL, response_body = NULL, response_headers = NULL
         WHERE k.id = ANY (ARRAY(SELECT id FROM due WHERE expired))
        RETURNING k.reap_stage = '1' AS moved)
    SELECT emptied.n, (SELECT pg_catalog.count(*) FROM locked) >= $2, due.n - emptied.n - later.n, ",
            steps_kept!("SELECT id FROM due WHERE expired"),
            "
      FROM (SELECT pg_catalog.count(*) AS n FROM emptied WHERE moved) emptied,
           (SELECT pg_catalog.count(*) AS n FROM later WHERE moved) later, (SELECT pg_catalog.count(*) AS n FROM due) due"
        )
    };
}

/// Rows that go once their time is over, by what stays the same where somebody changes one meanwhile, if they have that.
macro_rules! over {
    ($which:ident, $table:literal, $by:literal, $due:literal) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT r.",
            $by,
            " FROM once.",
            $table,
            " r WHERE ",
            $which!("r", concat!($due, " <= $1"), $due, "$2"),
            " FOR UPDATE SKIP LOCKED),
    reaped AS (DELETE FROM once.",
            $table,
            " WHERE ",
            $by,
            " = ANY (ARRAY(SELECT ",
            $by,
            " FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2, (SELECT pg_catalog.count(*) FROM due) - pg_catalog.count(*)
      FROM reaped"
        )
    };
}

/// Messages and steps of sagas that count as new.
macro_rules! inbox {
    ($which:ident) => {
        over!($which, "inbox", "id", "r.expires_at")
    };
}

/// dedupe_keys whose topic's window is over.
macro_rules! dedupe {
    ($which:ident) => {
        over!($which, "dedupe", "ctid", "r.until")
    };
}

/// The oldest of what is due.
macro_rules! oldest {
    ($row:literal, $is_due:expr, $due:literal, $most:literal) => {
        concat!($is_due, " ORDER BY ", $due, " LIMIT ", $most)
    };
}

/// What is due of these rows; by no index, that is slower for a few.
macro_rules! these {
    ($row:literal, $is_due:expr, $due:literal, $most:literal) => {
        concat!($row, ".ctid = ANY ($5::tid[]) AND (", $is_due, ") IS TRUE")
    };
}

/// What is due of a table: (time, place) after ($4, $5) and up to ($6, $7), in that order.
macro_rules! due {
    ($columns:expr, $table:literal, $only:literal, $due:literal, $most:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM once.",
            $table,
            " r WHERE ",
            $only,
            $due,
            " <= $1",
            " AND (",
            $due,
            ", r.ctid) > ($4, $5::tid) AND (",
            $due,
            ", r.ctid) <= ($6, $7::tid)",
            " ORDER BY ",
            $due,
            ", r.ctid LIMIT ",
            $most
        )
    };
}

/// When, and where.
macro_rules! places {
    ($table:literal, $only:literal, $due:literal) => {
        statement!(due!(
            concat!($due, ", r.ctid::text"),
            $table,
            $only,
            $due,
            "$2"
        ))
    };
}

const TOMBSTONES_DUE: &CStr = places!("key", "r.reap_stage = '1' AND ", "r.reap_at");
const FULL_DUE: &CStr = places!("key", "r.reap_stage = '0' AND ", "r.reap_at");
const NEVER_EMPTIED_DUE: &CStr = statement!(
    "SELECT o.reap_at, o.ctid::text FROM (",
    due!(
        "r.ctid, r.reap_at, r.scope, r.finished_at + r.ttl_us * interval '1 microsecond' AS expires_at",
        "key",
        "r.reap_stage = '0' AND ",
        "r.reap_at",
        "2 * $2"
    ),
    ") o
      LEFT JOIN once.scope s ON s.scope = o.scope
     WHERE o.expires_at + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' <= $1
     ORDER BY o.reap_at, o.ctid LIMIT $2"
);
const INBOX_DUE: &CStr = places!("inbox", "", "r.expires_at");
const DEDUPE_DUE: &CStr = places!("dedupe", "", "r.until");

const WHOLE: &[pg_sys::Oid] = &[
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::BOOLOID,
];
const PART: &[pg_sys::Oid] = &[
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::BOOLOID,
    pg_sys::TEXTARRAYOID,
];
const DUE: &[pg_sys::Oid] = &[
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TEXTOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TEXTOID,
];

thread_local! {
    static KEY: Kept = const { Kept::new(key!(oldest), WHOLE) };
    static KEY_PART: Kept = const { Kept::new(key!(these), PART) };
    static TOMBSTONE: Kept = const { Kept::new(tombstone!(oldest), WHOLE) };
    static TOMBSTONE_PART: Kept = const { Kept::new(tombstone!(these), PART) };
    static INBOX: Kept = const { Kept::new(inbox!(oldest), WHOLE) };
    static INBOX_PART: Kept = const { Kept::new(inbox!(these), PART) };
    static DEDUPE: Kept = const { Kept::new(dedupe!(oldest), WHOLE) };
    static DEDUPE_PART: Kept = const { Kept::new(dedupe!(these), PART) };
    static DUE_TOMBSTONES: Kept = const { Kept::new(TOMBSTONES_DUE, DUE) };
    static DUE_NEVER_EMPTIED: Kept = const { Kept::new(NEVER_EMPTIED_DUE, DUE) };
    static DUE_FULL: Kept = const { Kept::new(FULL_DUE, DUE) };
    static DUE_INBOX: Kept = const { Kept::new(INBOX_DUE, DUE) };
    static DUE_DEDUPE: Kept = const { Kept::new(DEDUPE_DUE, DUE) };
}

pub type Statement = &'static LocalKey<Kept>;

impl Reap {
    /// Over the oldest, and over a part.
    pub fn statements(self) -> [Statement; 2] {
        match self {
            Reap::Key => [&KEY, &KEY_PART],
            Reap::Tombstone => [&TOMBSTONE, &TOMBSTONE_PART],
            Reap::Inbox => [&INBOX, &INBOX_PART],
            Reap::Dedupe => [&DEDUPE, &DEDUPE_PART],
        }
    }

    /// What is due, in the order in which it is done.
    pub fn lists(self) -> &'static [Statement] {
        match self {
            Reap::Key => &[&DUE_TOMBSTONES, &DUE_NEVER_EMPTIED],
            Reap::Tombstone => &[&DUE_FULL],
            Reap::Inbox => &[&DUE_INBOX],
            Reap::Dedupe => &[&DUE_DEDUPE],
        }
    }
}

/// What a statement did.
pub struct Tried {
    pub done: i64,
    pub is_full: bool,
    pub missed: i64,
}

impl Tried {
    /// Fails where steps of keys stayed.
    pub fn of(
        statement: Statement,
        max: i64,
        watched: bool,
        more: &[Option<Datum>],
    ) -> Result<Tried> {
        let watched = [Some(Datum::from(watched))];
        let rows = run(statement, max, &[&watched, more].concat())?;
        let number = |i: usize| {
            let value = rows.first().and_then(|row| spi::column(row, i));
            value.map_or(0, |d| d.value() as i64)
        };
        match number(3) {
            0 => Ok(Tried {
                done: number(0),
                is_full: number(1) != 0,
                missed: number(2),
            }),
            steps => Err(Error::kept_back("steps of due keys", steps)),
        }
    }
}

pub fn run(statement: Statement, max: i64, more: &[Option<Datum>]) -> Result<Vec<Row>> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(max)),
        Some(Datum::from(clock::DAY_US)),
    ];
    spi::query_latest(statement, &[&args, more].concat())
}
