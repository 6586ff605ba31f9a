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

mod parts;
mod sql;

use super::sweep::lock_tables;
use super::task::{Swept, Tables};
use crate::error::{Error, Kind, Result};
use crate::key::passing;
use crate::patience::Patience;
use crate::settings;
use crate::subxact::Failure;
use crate::table::Name;
use parts::{Pass, Place};
use sql::Tried;
use std::ffi::CStr;

/// Rows are found by index and in its order, whatever the tables were like when the statements were planned. jit: before
/// PostgreSQL 18 what is off is dear instead, dear enough to compile the query of a trigger that has no other way.
const BY_INDEX: &[(&CStr, &CStr)] = &[
    (c"enable_seqscan", c"off"),
    (c"enable_bitmapscan", c"off"),
    (c"jit", c"off"),
];

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
    pub fn pass(self, max: i32, reached: Option<String>, patience: &Patience) -> Result<Swept> {
        let watched = match lock_tables(&self.tables(), patience)? {
            Ok(watched) => watched,
            // The tables cannot be had: no row's fault.
            Err(failure) => {
                return Ok(Swept {
                    reached,
                    ..Swept::failure(1, &failure)
                });
            }
        };
        settings::under(BY_INDEX, || self.work(max, watched, reached, patience))
    }

    fn work(
        self,
        max: i32,
        watched: bool,
        reached: Option<String>,
        patience: &Patience,
    ) -> Result<Swept> {
        let swept = match reached {
            Some(text) => self.isolate(max, watched, self.read(&text), None)?,
            None => match patience.attempt(|| self.sweep(max, watched))? {
                Ok(swept) => swept,
                Err(failure) => self.isolate(max, watched, None, Some(failure))?,
            },
        };
        match self {
            Reap::Tombstone => pass_bookmarks(swept, max, patience),
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
        let mut pass = Pass::of(self, max, watched, failure);
        settings::briefly(|| pass.go_round(start))?;
        Ok(pass.end())
    }

    fn kept_back(self, rows: i64) -> String {
        let table = self.tables().written.first().map_or(c"", |name| name);
        let what = format!("due rows of once.{}", table.to_string_lossy());
        Error::kept_back(&what, rows).message
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

/// What key_tombstone does besides.
fn pass_bookmarks(mut swept: Swept, max: i32, patience: &Patience) -> Result<Swept> {
    match patience.attempt(|| passing::pass(max))? {
        Ok(more) => swept.more |= more,
        Err(failure) => swept.add(Swept::failure(1, &failure)),
    }
    Ok(swept)
}
