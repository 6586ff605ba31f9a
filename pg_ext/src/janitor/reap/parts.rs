//! A pass over rows among which some fail: what is due is read in pages and done in parts.

use super::Reap;
use super::sql::{Tried, run};
use crate::call::{shown, varlena};
use crate::error::Result;
use crate::janitor::Swept;
use crate::row;
use crate::spi::{self, Row};
use crate::subxact::{self, Failure};
use pgrx::pg_sys::{self, Datum};
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

/// Where a row is: in which list, when it was due, and its ctid.
#[derive(Clone)]
pub struct Place {
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
pub struct Pass {
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
    /// `failure`: what the oldest `max` said that were tried together.
    pub fn of(reap: Reap, max: i32, watched: bool, failure: Option<Failure>) -> Pass {
        let max = max.max(1) as usize;
        Pass {
            reap,
            max,
            watched,
            until: Instant::now() + PATIENCE,
            size: failure.as_ref().map_or(1, |_| (max / 2).max(1)),
            failing: 0,
            settled: 0,
            failure,
            all: Swept::default(),
        }
    }

    /// What it came to.
    pub fn end(self) -> Swept {
        let mut all = self.all;
        if let Some(failure) = self.failure
            && all.reached.is_some()
            && all.failed == 0
        {
            // It has not come to the row yet.
            all.add(Swept::failure(1, &failure));
        }
        all.more = all.reached.is_some() && all.done > all.failed;
        all
    }

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
    pub fn go_round(&mut self, start: Option<Place>) -> Result<()> {
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
    pub fn read(self, text: &str) -> Option<Place> {
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
