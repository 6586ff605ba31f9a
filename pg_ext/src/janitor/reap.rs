//! Reaping: key_reap, key_tombstone, inbox_reap and dedupe_reap, each one statement on the extension's own tables.
//!
//! A row that cannot be changed (it is damaged, or a trigger or foreign key of somebody's own on our tables refuses) fails
//! the statement. Then it is run again over parts of what is due, each half of a part that fails by itself, until the row
//! is alone: it is counted, and what is due behind it is reached in the same pass, or, where the time is over, by the
//! next one of this session. Nothing is noted in the row: it is tried again.

use super::task::Swept;
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::spi::{self, Kept, Row};
use crate::subxact;
use crate::table::{Name, Table};
use pgrx::pg_sys::{self, Datum};
use std::cell::Cell;
use std::ffi::CStr;
use std::thread::LocalKey;
use std::time::{Duration, Instant};

/// After so long the rest of a pass that fails waits for the next one, once a row of it is settled.
const PATIENCE: Duration = Duration::from_secs(2);

/// A statement of pieces. In all of them: $1 now, $2 the bound, $3 the default of gone_for in microseconds, $4 where the
/// rows are, or how many are passed over.
macro_rules! statement {
    ($($piece:expr),*) => {
        match CStr::from_bytes_with_nul(concat!($($piece),*, "\0").as_bytes()) {
            Ok(sql) => sql,
            Err(_) => c"",
        }
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
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '1' AND k.reap_at <= $1
         ",
            $which!("k", "k.reap_at", "$2"),
            " FOR UPDATE OF k SKIP LOCKED),
    later AS (
        UPDATE once.key k
           SET reap_at = LEAST(o.expires_at + o.gone_for,
                               $1 + GREATEST(interval '1 day', $1 - o.expires_at))
          FROM oldest o WHERE k.id = o.id AND o.expires_at + o.gone_for > $1),
    never_emptied AS MATERIALIZED (
        SELECT k.id
          FROM (SELECT k.id FROM once.key k WHERE k.reap_stage = '0' AND k.reap_at <= $1
                 ",
            $which!("k", "k.reap_at", "2 * $2"),
            ") oldest
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
           pg_catalog.count(*) >= $2 OR (SELECT pg_catalog.count(*) FROM oldest) >= $2 FROM reaped"
        )
    };
}

/// Keys whose time has not come yet (finished after they were claimed, or not at all) are moved to when
/// it will have; that counts towards the bound, not towards what was done. An unfinished one is shown to
/// completers again: should a clock that stepped back have hidden it from them, that ends here. A tombstone is looked at again
/// when gone_for ends, but at the latest after a day, then after twice its age: a gone_for that is lowered
/// meanwhile gives its space back, and a long one costs a few writes in all.
macro_rules! tombstone {
    ($which:ident) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT k.id, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at,
               k.ttl_us * interval '1 microsecond' AS ttl,
               COALESCE(s.gone_for_us, $3) * interval '1 microsecond' AS gone_for
          FROM once.key k LEFT JOIN once.scope s ON s.scope = k.scope
         WHERE k.reap_stage = '0' AND k.reap_at <= $1
         ",
            $which!("k", "k.reap_at", "$2"),
            " FOR UPDATE OF k SKIP LOCKED),
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
           (SELECT pg_catalog.count(*) FROM due) >= $2"
        )
    };
}

/// Messages and steps of sagas that count as new.
macro_rules! inbox {
    ($which:ident) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT i.id FROM once.inbox i WHERE i.expires_at <= $1
         ",
            $which!("i", "i.expires_at", "$2"),
            " FOR UPDATE OF i SKIP LOCKED),
    reaped AS (DELETE FROM once.inbox i USING due WHERE i.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped"
        )
    };
}

/// dedupe_keys whose topic's window is over.
macro_rules! dedupe {
    ($which:ident) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT d.topic_id, d.id FROM once.dedupe d WHERE d.until <= $1
         ",
            $which!("d", "d.until", "$2"),
            " FOR UPDATE OF d SKIP LOCKED),
    reaped AS (
        DELETE FROM once.dedupe d USING due WHERE d.topic_id = due.topic_id AND d.id = due.id RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2 FROM reaped"
        )
    };
}

/// The oldest of what is due.
macro_rules! oldest {
    ($row:literal, $due:literal, $most:literal) => {
        concat!("ORDER BY ", $due, " LIMIT ", $most)
    };
}

/// What is due of these rows.
macro_rules! these {
    ($row:literal, $due:literal, $most:literal) => {
        concat!("AND ", $row, ".ctid = ANY ($4)")
    };
}

const KEYS_DUE: &CStr = c"
    SELECT d.place
      FROM ((SELECT k.ctid AS place FROM once.key k WHERE k.reap_stage = '1' AND k.reap_at <= $1
              ORDER BY k.reap_at LIMIT $2 + $4)
            UNION ALL
            (SELECT o.ctid
               FROM (SELECT k.ctid, k.scope, k.finished_at + k.ttl_us * interval '1 microsecond' AS expires_at
                       FROM once.key k WHERE k.reap_stage = '0' AND k.reap_at <= $1
                      ORDER BY k.reap_at LIMIT 2 * $2 + $4) o
                    LEFT JOIN once.scope s ON s.scope = o.scope
              WHERE o.expires_at + COALESCE(s.gone_for_us, $3) * interval '1 microsecond' <= $1)) d
     LIMIT $2 OFFSET $4";

const TOMBSTONES_DUE: &CStr = c"
    SELECT k.ctid FROM once.key k WHERE k.reap_stage = '0' AND k.reap_at <= $1
     ORDER BY k.reap_at LIMIT $2 OFFSET $4";

const INBOX_DUE: &CStr = c"
    SELECT i.ctid FROM once.inbox i WHERE i.expires_at <= $1 ORDER BY i.expires_at LIMIT $2 OFFSET $4";

const DEDUPE_DUE: &CStr = c"
    SELECT d.ctid FROM once.dedupe d WHERE d.until <= $1 ORDER BY d.until LIMIT $2 OFFSET $4";

const WHOLE: &[pg_sys::Oid] = &[pg_sys::TIMESTAMPTZOID, pg_sys::INT4OID, pg_sys::INT8OID];
const PART: &[pg_sys::Oid] = &[
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::TIDARRAYOID,
];
const DUE: &[pg_sys::Oid] = &[
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
];

thread_local! {
    static KEY: Kept = const { Kept::new(key!(oldest), WHOLE) };
    static KEY_PART: Kept = const { Kept::new(key!(these), PART) };
    static KEY_DUE: Kept = const { Kept::new(KEYS_DUE, DUE) };
    static TOMBSTONE: Kept = const { Kept::new(tombstone!(oldest), WHOLE) };
    static TOMBSTONE_PART: Kept = const { Kept::new(tombstone!(these), PART) };
    static TOMBSTONE_DUE: Kept = const { Kept::new(TOMBSTONES_DUE, DUE) };
    static INBOX: Kept = const { Kept::new(inbox!(oldest), WHOLE) };
    static INBOX_PART: Kept = const { Kept::new(inbox!(these), PART) };
    static ALL_INBOX_DUE: Kept = const { Kept::new(INBOX_DUE, DUE) };
    static DEDUPE: Kept = const { Kept::new(dedupe!(oldest), WHOLE) };
    static DEDUPE_PART: Kept = const { Kept::new(dedupe!(these), PART) };
    static ALL_DEDUPE_DUE: Kept = const { Kept::new(DEDUPE_DUE, DUE) };
}

thread_local! {
    static KEY_PASSED: Cell<i64> = const { Cell::new(0) };
    static TOMBSTONE_PASSED: Cell<i64> = const { Cell::new(0) };
    static INBOX_PASSED: Cell<i64> = const { Cell::new(0) };
    static DEDUPE_PASSED: Cell<i64> = const { Cell::new(0) };
}

type Statement = &'static LocalKey<Kept>;

/// What is reaped.
#[derive(Clone, Copy)]
pub enum Reap {
    Key,
    Tombstone,
    Inbox,
    Dedupe,
}

impl Reap {
    /// The oldest `max` that are due, in one statement.
    pub fn sweep(self, max: i32) -> Result<Swept> {
        let [whole, ..] = self.statements();
        let rows = run(whole, max, &[])?;
        Ok(Swept {
            more: number(&rows, 1) != 0,
            done: number(&rows, 0),
            ..Swept::default()
        })
    }

    /// [`Reap::sweep`] failed: the same without the rows that fail. Where the tables themselves cannot be had, that is no
    /// row's fault.
    pub fn isolate(self, max: i32, failure: &str) -> Result<Swept> {
        let hold = || {
            self.tables()
                .iter()
                .try_for_each(|table| Table::to_write(table).map(drop))
        };
        if subxact::attempt(hold)?.is_err() {
            return Ok(Swept::failure(1, failure));
        }
        let until = Instant::now() + PATIENCE;
        let mut all = Swept::default();
        let mut passed = self.passed().take();
        while all.done < max.into() && !is_spent(&all, until) {
            let places = match subxact::attempt(|| self.due(max, passed))? {
                Ok(places) => places,
                Err(failure) => {
                    all.add(Swept::failure(1, &failure));
                    return Ok(all);
                }
            };
            if places.is_empty() {
                return Ok(all);
            }
            let done = all.done;
            self.sweep_part(&places, max, until, &mut all)?;
            // What failed, is locked or was moved to a later look.
            passed += places.len() as i64 - (all.done - done);
        }
        self.passed().set(passed);
        all.more = all.done > 0;
        Ok(all)
    }

    /// Where rows are that are due, without the first ones.
    fn due(self, max: i32, passed: i64) -> Result<Vec<Datum>> {
        let [.., due] = self.statements();
        let rows = run(due, max, &[Some(Datum::from(passed))])?;
        Ok(rows.iter().filter_map(|row| spi::column(row, 0)).collect())
    }

    fn sweep_part(self, places: &[Datum], max: i32, until: Instant, all: &mut Swept) -> Result<()> {
        if is_spent(all, until) {
            return Ok(());
        }
        let [_, part, _] = self.statements();
        let these = row::array(places.iter().copied(), pg_sys::TIDOID);
        match (subxact::attempt(|| run(part, max, &[Some(these)]))?, places) {
            (Ok(rows), _) => all.done += number(&rows, 0),
            (Err(failure), [_]) => all.add(Swept::failure(1, &failure)),
            (Err(_), places) => {
                let (first, second) = places.split_at(places.len() / 2);
                self.sweep_part(first, max, until, all)?;
                self.sweep_part(second, max, until, all)?;
            }
        }
        Ok(())
    }

    /// Over the oldest, over a part, and what is due.
    fn statements(self) -> [Statement; 3] {
        match self {
            Reap::Key => [&KEY, &KEY_PART, &KEY_DUE],
            Reap::Tombstone => [&TOMBSTONE, &TOMBSTONE_PART, &TOMBSTONE_DUE],
            Reap::Inbox => [&INBOX, &INBOX_PART, &ALL_INBOX_DUE],
            Reap::Dedupe => [&DEDUPE, &DEDUPE_PART, &ALL_DEDUPE_DUE],
        }
    }

    /// How many rows the last pass went over that did not come to the end.
    fn passed(self) -> &'static LocalKey<Cell<i64>> {
        match self {
            Reap::Key => &KEY_PASSED,
            Reap::Tombstone => &TOMBSTONE_PASSED,
            Reap::Inbox => &INBOX_PASSED,
            Reap::Dedupe => &DEDUPE_PASSED,
        }
    }

    /// Which it writes.
    fn tables(self) -> &'static [Name] {
        match self {
            Reap::Key | Reap::Tombstone => &[c"key", c"key_step"],
            Reap::Inbox => &[c"inbox"],
            Reap::Dedupe => &[c"dedupe"],
        }
    }
}

fn is_spent(all: &Swept, until: Instant) -> bool {
    all.done + all.failed > 0 && Instant::now() >= until
}

fn run(statement: Statement, max: i32, more: &[Option<Datum>]) -> Result<Vec<Row>> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(max)),
        Some(Datum::from(clock::DAY_US)),
    ];
    spi::query(statement, &[&args, more].concat())
}

/// A number of the one row.
fn number(rows: &[Row], i: usize) -> i64 {
    let value = rows.first().and_then(|row| spi::column(row, i));
    value.map_or(0, |d| d.value() as i64)
}
