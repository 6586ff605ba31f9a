//! Reaping: key_reap, key_tombstone, inbox_reap and dedupe_reap, each one statement on the extension's own tables.
//!
//! A row that cannot be changed (a trigger or foreign key of somebody's own on our tables refuses) fails the statement.
//! Then it is run again over parts of what is due, half as many rows after each failure and twice as many after each
//! success, until the row is alone: it is counted, and what is due behind it is done. One that a trigger keeps back without
//! a word fails no statement: it is missed in what was changed. A step that is kept back does, and its key stays with it: a
//! new request under that key would be answered by it. Nothing is noted in the row; it is tried again.
//!
//! Invariants: such a pass takes little time and few transaction ids, however many rows fail, and where it ended early the
//! next one, in whatever session, goes on (once.janitor.reached) with one row, which is settled by that, at the end from the
//! beginning: so every row is tried.
//! `more` is told of such passes only where more was done than failed: whoever goes on while there is more comes to an end.

use super::sweep::lock_tables;
use super::task::{Swept, Tables};
use crate::call::{shown, varlena};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::key::passing;
use crate::row;
use crate::settings;
use crate::spi::{self, Kept, Row};
use crate::subxact::{self, Failure};
use crate::table::Name;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;
use std::thread::LocalKey;
use std::time::{Duration, Instant};

/// After so long the rest of a pass that fails waits for the next one, once a row of it is settled, and that is the next:
/// the caller's other tasks have their rows locked.
const PATIENCE: Duration = Duration::from_millis(250);
/// So many places at least are read at a time: where very many became due in one moment it takes long.
const PAGE: i64 = 250;
/// And so many at most: a pass that takes long does not come to more.
const LARGEST_PAGE: i64 = 10_000;
/// So many rows fail in one pass: each takes one transaction id beside others that fail, about twenty among rows that do
/// not.
const MOST_FAILURES: i64 = 250;

/// Rows are found by index and in its order, whatever the tables were like when the statements were planned. jit: before
/// PostgreSQL 18 what is off is dear instead, dear enough to compile the query of a trigger that has no other way.
const BY_INDEX: &[(&CStr, &CStr)] = &[
    (c"enable_seqscan", c"off"),
    (c"enable_bitmapscan", c"off"),
    (c"jit", c"off"),
];

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
            "(SELECT v.ctid FROM once.key v WHERE v.id = ",
            $locked,
            ".id) = ",
            $locked,
            ".ctid"
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
           pg_catalog.count(*) >= $2 OR (SELECT pg_catalog.count(*) FROM oldest) >= $2,
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
    SELECT emptied.n, due.n >= $2, due.n - emptied.n - later.n, ",
            steps_kept!("SELECT id FROM due WHERE expired"),
            "
      FROM (SELECT pg_catalog.count(*) AS n FROM emptied WHERE moved) emptied,
           (SELECT pg_catalog.count(*) AS n FROM later WHERE moved) later, (SELECT pg_catalog.count(*) AS n FROM due) due"
        )
    };
}

/// Messages and steps of sagas that count as new.
macro_rules! inbox {
    ($which:ident) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT i.id FROM once.inbox i WHERE ",
            $which!("i", "i.expires_at <= $1", "i.expires_at", "$2"),
            " FOR UPDATE SKIP LOCKED),
    reaped AS (DELETE FROM once.inbox WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2, (SELECT pg_catalog.count(*) FROM due) - pg_catalog.count(*)
      FROM reaped"
        )
    };
}

/// dedupe_keys whose topic's window is over.
macro_rules! dedupe {
    ($which:ident) => {
        statement!(
            "
    WITH due AS MATERIALIZED (
        SELECT d.ctid FROM once.dedupe d WHERE ",
            $which!("d", "d.until <= $1", "d.until", "$2"),
            " FOR UPDATE SKIP LOCKED),
    reaped AS (DELETE FROM once.dedupe WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING 1)
    SELECT pg_catalog.count(*), pg_catalog.count(*) >= $2, (SELECT pg_catalog.count(*) FROM due) - pg_catalog.count(*)
      FROM reaped"
        )
    };
}

/// The oldest of what is due.
macro_rules! oldest {
    ($row:literal, $is_due:literal, $due:literal, $most:literal) => {
        concat!($is_due, " ORDER BY ", $due, " LIMIT ", $most)
    };
}

/// What is due of these rows; by no index, that is slower for a few.
macro_rules! these {
    ($row:literal, $is_due:literal, $due:literal, $most:literal) => {
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
    /// One pass of at most `max` rows, which waits for nobody for long; `reached`: where the last one ended early. What the
    /// caller has deferred waits as long as the caller would.
    pub fn pass(self, max: i32, reached: Option<String>) -> Result<Swept> {
        let watched = match lock_tables(&self.tables())? {
            Ok(watched) => watched,
            // The tables cannot be had: no row's fault.
            Err(failure) => {
                return Ok(Swept {
                    reached,
                    ..Swept::failure(1, &failure)
                });
            }
        };
        let work = || self.work(max, watched, reached);
        settings::patiently(|| settings::under(BY_INDEX, work))
    }

    fn work(self, max: i32, watched: bool, reached: Option<String>) -> Result<Swept> {
        let swept = match reached {
            Some(text) => self.isolate(max, watched, self.read(&text), None)?,
            None => match subxact::attempt(|| self.sweep(max, watched))? {
                Ok(swept) => swept,
                Err(failure) => self.isolate(max, watched, None, Some(failure))?,
            },
        };
        match self {
            Reap::Tombstone => pass_bookmarks(swept, max),
            _ => Ok(swept),
        }
    }

    /// The oldest `max` that are due, in one statement; fails where a row of them is kept from it.
    fn sweep(self, max: i32, watched: bool) -> Result<Swept> {
        let [whole, _] = self.statements();
        let tried = Tried::of(whole, max.into(), watched, &[])?;
        match tried.missed {
            0 => Ok(Swept {
                more: tried.is_full,
                done: tried.done,
                ..Swept::default()
            }),
            missed => Err(Error::new(Kind::InUse, self.kept_back(missed))),
        }
    }

    /// The same without the rows that fail, from where the last such pass ended or from the oldest. `failure`: what
    /// [`Reap::sweep`] said.
    fn isolate(
        self,
        max: i32,
        watched: bool,
        start: Option<Place>,
        failure: Option<Failure>,
    ) -> Result<Swept> {
        let max = max.max(1) as usize;
        let mut pass = Pass {
            reap: self,
            max,
            watched,
            until: Instant::now() + PATIENCE,
            size: failure.as_ref().map_or(1, |_| (max / 2).max(1)),
            failing: 0,
            settled: 0,
            failure,
            all: Swept::default(),
        };
        settings::briefly(|| pass.go_round(start))?;
        let mut all = pass.all;
        if let Some(failure) = pass.failure
            && all.reached.is_some()
            && all.failed == 0
        {
            // It has not come to the row yet.
            all.add(Swept::failure(1, &failure));
        }
        all.more = all.reached.is_some() && all.done > all.failed;
        Ok(all)
    }

    fn kept_back(self, rows: i64) -> String {
        let table = self.tables().written.first().map_or(c"", |name| name);
        let what = format!("due rows of once.{}", table.to_string_lossy());
        Error::kept_back(&what, rows).message
    }

    /// Over the oldest, and over a part.
    fn statements(self) -> [Statement; 2] {
        match self {
            Reap::Key => [&KEY, &KEY_PART],
            Reap::Tombstone => [&TOMBSTONE, &TOMBSTONE_PART],
            Reap::Inbox => [&INBOX, &INBOX_PART],
            Reap::Dedupe => [&DEDUPE, &DEDUPE_PART],
        }
    }

    /// What is due, in the order in which it is done.
    fn lists(self) -> &'static [Statement] {
        match self {
            Reap::Key => &[&DUE_TOMBSTONES, &DUE_NEVER_EMPTIED],
            Reap::Tombstone => &[&DUE_FULL],
            Reap::Inbox => &[&DUE_INBOX],
            Reap::Dedupe => &[&DUE_DEDUPE],
        }
    }

    fn tables(self) -> Tables {
        let (written, read): (&[Name], &[Name]) = match self {
            Reap::Key | Reap::Tombstone => (&[c"key", c"key_step"], &[c"scope"]),
            Reap::Inbox => (&[c"inbox"], &[]),
            Reap::Dedupe => (&[c"dedupe"], &[]),
        };
        Tables { written, read }
    }
}

/// Where a row is: in which list, when it was due, and its ctid.
#[derive(Clone)]
struct Place {
    list: usize,
    due_at: i64,
    ctid: Vec<u8>,
}

/// Before and after all places.
const FIRST: &[u8] = b"(0,0)";
const LAST: &[u8] = b"(4294967295,65535)";

/// The next places of a list, after one and up to another.
fn page(
    reap: Reap,
    list: usize,
    most: i64,
    after: Option<&Place>,
    upto: Option<&Place>,
) -> Result<Vec<Place>> {
    let bound = |place: Option<&Place>, due_at, ctid| match place {
        Some(place) => [Datum::from(place.due_at), row::text(&place.ctid)],
        None => [Datum::from(due_at), row::text(ctid)],
    };
    let bounds = [bound(after, i64::MIN, FIRST), bound(upto, i64::MAX, LAST)];
    let args: Vec<_> = bounds.concat().into_iter().map(Some).collect();
    let Some(due) = reap.lists().get(list) else {
        return Ok(Vec::new());
    };
    let rows = run(due, most, &args)?;
    let place = |row: &Row| {
        Some(Place {
            list,
            due_at: spi::column(row, 0)?.value() as i64,
            ctid: varlena(spi::column(row, 1)?).to_vec(),
        })
    };
    Ok(rows.iter().filter_map(place).collect())
}

/// One pass over what is due, without the rows that fail.
struct Pass {
    reap: Reap,
    max: usize,
    /// Somebody has put triggers on the tables.
    watched: bool,
    until: Instant,
    /// So many rows next.
    size: usize,
    /// Of the next rows so many failed together.
    failing: usize,
    /// Rows that need not be tried again in this pass: done, left to others, moved to a later look, or failed.
    settled: usize,
    /// What the last statement said that failed over several rows, not all of which are settled.
    failure: Option<Failure>,
    all: Swept,
}

impl Pass {
    fn is_over(&self) -> bool {
        self.left() == 0
            || self.all.failed >= MOST_FAILURES
            || self.settled > 0 && Instant::now() >= self.until
    }

    /// So many may still be done.
    fn left(&self) -> usize {
        self.max.saturating_sub(self.all.done as usize)
    }

    /// From where the last one ended to the end, and from the beginning up to there.
    fn go_round(&mut self, start: Option<Place>) -> Result<()> {
        let lists = self.reap.lists().len();
        let first = start.as_ref().map_or(0, |place| place.list);
        let mut after = start.clone();
        for list in (first..lists).chain(0..first) {
            if !self.go(list, after.take(), None)? {
                return Ok(());
            }
        }
        match start {
            Some(start) => self.go(first, None, Some(start)).map(drop),
            None => Ok(()),
        }
    }

    /// True: it came to the end of the list.
    fn go(&mut self, list: usize, mut after: Option<Place>, upto: Option<Place>) -> Result<bool> {
        while !self.is_over() {
            let most = (self.left() as i64).clamp(PAGE, LARGEST_PAGE);
            let begin = Instant::now();
            let read = || page(self.reap, list, most, after.as_ref(), upto.as_ref());
            let places = match subxact::attempt(read)? {
                Ok(places) => places,
                Err(failure) => {
                    self.all.add(Swept::failure(1, &failure));
                    return Ok(true);
                }
            };
            if places.is_empty() {
                return Ok(true);
            }
            if self.settled == 0 {
                self.until += begin.elapsed();
            }
            let mut left = places.as_slice();
            while !left.is_empty() && !self.is_over() {
                let next = self.size.min(self.left()).min(left.len());
                let (these, rest) = left.split_at(next);
                if self.sweep(these)? {
                    after = these.last().cloned();
                    left = rest;
                }
            }
        }
        let reached = after.unwrap_or(Place {
            list,
            due_at: i64::MIN,
            ctid: FIRST.to_vec(),
        });
        self.all.reached = Some(reached.write());
        Ok(false)
    }

    /// True: these rows are settled.
    fn sweep(&mut self, places: &[Place]) -> Result<bool> {
        let [_, part] = self.reap.statements();
        let these = || {
            let these = places.iter().map(|place| row::text(&place.ctid));
            let these = row::array(these, pg_sys::TEXTOID);
            Tried::of(part, self.max as i64, self.watched, &[Some(these)])
        };
        match (subxact::attempt(these)?, places) {
            (Ok(tried), _) => self.done(&tried, places.len()),
            (Err(failure), [_]) => {
                self.all.add(Swept::failure(1, &failure));
                self.failing = 0;
                self.size = 1;
                self.settled += 1;
            }
            (Err(failure), _) => {
                self.failure = Some(failure);
                self.failing = places.len();
                self.size = match Instant::now() >= self.until {
                    true => 1,
                    false => places.len() / 2,
                };
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// So many rows did not fail. Where they were a part of such that did, the row is among the others.
    fn done(&mut self, tried: &Tried, rows: usize) {
        self.all.done += tried.done;
        if tried.missed > 0 {
            let missed = Swept::failure(tried.missed as usize, &self.reap.kept_back(tried.missed));
            self.all.add(missed);
        }
        self.settled += rows;
        let was_failing = self.failing;
        self.failing = was_failing.saturating_sub(rows);
        self.size = match (was_failing, self.failing) {
            (0, _) => (self.size * 2).min(self.max),
            (_, 0) => {
                // All of them, one part after the other: whatever it was has passed.
                self.failure = None;
                self.size
            }
            (_, left) => left.div_ceil(2),
        };
    }
}

impl Place {
    fn write(&self) -> String {
        format!("{} {} {}", self.list, self.due_at, shown(&self.ctid))
    }
}

impl Reap {
    /// What [`Place::write`] wrote; None: nothing of this.
    fn read(self, text: &str) -> Option<Place> {
        let mut parts = text.splitn(3, ' ');
        let list = parts
            .next()?
            .parse()
            .ok()
            .filter(|l| *l < self.lists().len())?;
        let due_at = parts.next()?.parse().ok()?;
        let ctid = parts.next()?.as_bytes().to_vec();
        Some(Place { list, due_at, ctid })
    }
}

/// What key_tombstone does besides.
fn pass_bookmarks(mut swept: Swept, max: i32) -> Result<Swept> {
    match subxact::attempt(|| passing::pass(max))? {
        Ok(more) => swept.more |= more,
        Err(failure) => swept.add(Swept::failure(1, &failure)),
    }
    Ok(swept)
}

/// What a statement did.
struct Tried {
    done: i64,
    is_full: bool,
    missed: i64,
}

impl Tried {
    /// Fails where steps of keys stayed.
    fn of(statement: Statement, max: i64, watched: bool, more: &[Option<Datum>]) -> Result<Tried> {
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

fn run(statement: Statement, max: i64, more: &[Option<Datum>]) -> Result<Vec<Row>> {
    let args = [
        Some(Datum::from(clock::now_us()?)),
        Some(Datum::from(max)),
        Some(Datum::from(clock::DAY_US)),
    ];
    spi::query_latest(statement, &[&args, more].concat())
}
