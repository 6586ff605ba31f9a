//! `cancel_finish`: the terminal move, once everything is given back and deleted.
//!
//! It takes the row FOR UPDATE, which waits for every writer of an item (FOR KEY SHARE), and then looks at
//! what is committed, at every isolation level; nothing is waited for after that.
//!
//! Who queues for the row FOR UPDATE behind somebody that has it so stops the writers of items that queue behind him, while
//! others still get past; one that is stopped may have an item that one of those wants. So one that finishes the row lets
//! another come to its end first, and whoever finds itself in such a circle leaves the queue and comes again.

use super::items::{Items, Which};
use super::numeric;
use super::record::{Col, Teardown};
use super::stand::{Stand, Torn};
use crate::action::row::{self as user_row, If, Lock};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::deadlock;
use crate::digest::first_64_bits;
use crate::error::{Error, Kind, Result};
use crate::machine::patch::Patch;
use crate::row::Shape;
use crate::settings;
use crate::table::is_writable;
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A circle that was found after so many looks was not there before.
const CALM: u32 = 20;
/// A lock_timeout of 0 is none.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Turns that one transaction takes.
const MOST_TURNS: u32 = 64;

thread_local! {
    /// When the transaction began that took the last turns, and how many.
    static TURNS: Cell<(i64, u32)> = const { Cell::new((0, 0)) };
    static SHAPE: Shape = const { Shape::new(&[
        (c"status", pg_sys::TEXTOID),
        (c"items_total", pg_sys::INT8OID),
        (c"amount_total", pg_sys::NUMERICOID),
    ]) };
}

/// `once.cancel_finish`.
pub fn cancel_finish(call: &Call) -> Result<Datum> {
    let torn = Torn::of(call)?;
    let patch = Patch::read(&torn.machine, call.datum(2))?;
    torn.machine.ensure_may_update()?;
    if is_writable() {
        // As strongly as it will want them, before it has the row.
        let shape = &torn.machine.shape;
        shape.table.lock_with_all_below(pg_sys::RowExclusiveLock);
        if let Some(refund) = &shape.refund {
            refund.items.lock_with_all_below(pg_sys::AccessShareLock);
        }
        torn.lock_row()?;
    }
    let seen = match torn.stand(Lock::Whole)? {
        Stand::Open(seen) => seen,
        Stand::Done(seen) => {
            let past = torn.past_record()?;
            return Ok(answer(seen.status, past.as_ref()));
        }
    };
    let mut teardown = torn.record()?;
    if torn.machine.definition.refund.is_some() {
        torn.ensure_complete(&teardown)?;
    }
    let from = shown(seen.status());
    let to = &torn.cancel.to;
    let moved = user_row::move_row(&torn.machine, &torn.id, &from, to, If::Always, &patch)?;
    let Some(moved) = moved else {
        return Err(torn.machine.kept_back(&torn.id));
    };
    if torn.machine.definition.refund.is_some() {
        // A trigger of the table may have begun an item.
        torn.ensure_decided()?;
    }
    teardown.put_i64(Col::FinishedAt, clock::now_us()?);
    teardown.put(Col::Open, Some(Datum::from(false)));
    teardown.store()?;
    Ok(answer(moved.status, Some(&teardown)))
}

impl Torn {
    /// Takes the row; lock_timeout counts from here, and anew for each that has the row one after another. Another call that
    /// finishes it comes to its end first, as long as that takes no more than a moment.
    ///
    /// It naps instead of waiting for the turn's lock: who has the turn may wait for this transaction, which has the
    /// row or an item of it, and the server would take that for a deadlock. Then the row is to be had without a wait.
    fn lock_row(&self) -> Result<()> {
        let turn = self.turn();
        let mut wants_turn = may_take_another();
        let begin = Instant::now();
        let until = settings::lock_timeout().map(|timeout| begin + timeout);
        let turns_until = begin + settings::at_most(settings::PATIENCE);
        loop {
            if wants_turn && let Some(turn) = TryLock::acquire(turn) {
                turn.keep();
                wants_turn = false;
            }
            // Nobody is stopped by a queue for it.
            if self.look(Lock::WholeIfFree)? {
                return Ok(());
            }
            if !wants_turn || Instant::now() >= turns_until {
                return self.queue(until);
            }
            clock::nap();
        }
    }

    /// Waits for the row, and leaves the queue where others wait for each other across it, each time for longer. A circle
    /// that is still there after half a second is this transaction's own, and ends it; lock_timeout may end it before.
    fn queue(&self, until: Option<Instant>) -> Result<()> {
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let is_late = || left().is_some_and(|left| left.is_zero());
        let look = || match left() {
            None => self.look(Lock::Whole),
            Some(left) => settings::waiting(left.max(LEAST_WAIT), || self.look(Lock::Whole)),
        };
        let mut over_at = None;
        let mut naps = 0;
        loop {
            if deadlock::unless_in_a_circle(look)?.is_some() {
                return Ok(());
            }
            if is_late() {
                // Without alerts: the server's own comes after the timeout.
                return look().map(drop);
            }
            let now = Instant::now();
            if deadlock::looks() > CALM {
                (over_at, naps) = (None, 0);
            }
            if now >= *over_at.get_or_insert(now + settings::PATIENCE) {
                return deadlock::watched(look).map(drop);
            }
            naps += 1;
            (0..naps).filter(|_| !is_late()).for_each(|_| clock::nap());
        }
    }

    fn look(&self, lock: Lock) -> Result<bool> {
        Ok(user_row::look(&self.machine, &self.id, lock)?.is_some())
    }

    /// The lock of whoever finishes the row.
    fn turn(&self) -> u64 {
        let digest = Sha256::new()
            .chain_update("cancel_finish\0")
            .chain_update(self.machine.name())
            .chain_update("\0")
            .chain_update(&self.id.text)
            .finalize();
        first_64_bits(&digest)
    }

    /// ON005, naming what is missing.
    fn ensure_complete(&self, teardown: &Teardown) -> Result<()> {
        self.ensure_decided()?;
        let items = Items::of(&self.machine)?;
        let pass = teardown.i64(Col::Pass);
        let confirmed = match pass {
            0 => items.some_of_all(&self.id, Which::Marked)?.is_none(),
            pass => teardown.i64(Col::ConfirmedPass) == pass,
        };
        match confirmed {
            true => Ok(()),
            false => Err(self.incomplete(
                format!(
                    "Pass {pass} of refund is not confirmed: its artifacts may still be there."
                ),
                "Delete what once.cleanup_items lists, then once.cleanup_confirm with that pass.",
            )),
        }
    }

    fn ensure_decided(&self) -> Result<()> {
        let items = Items::of(&self.machine)?;
        if let Some(item) = items.some_of_all(&self.id, Which::Undecided)? {
            return Err(self.incomplete(
                format!("Item \"{}\" is undecided, perhaps others too.", shown(varlena(item))),
                "Call once.refund, delete what once.cleanup_items lists, once.cleanup_confirm, then finish.",
            ));
        }
        Ok(())
    }

    fn incomplete(&self, missing: String, hint: &str) -> Error {
        Error::new(
            Kind::TeardownIncomplete,
            format!("the teardown of {} is not complete", self.named()),
        )
        .detail(missing)
        .hint(hint)
    }
}

/// Each turn is a lock to the end of the transaction; one that finishes thousands of rows would fill the server's memory
/// for locks.
fn may_take_another() -> bool {
    // SAFETY: reads a variable of this backend.
    let transaction = unsafe { pg_sys::GetCurrentTransactionStartTimestamp() };
    TURNS.with(|turns| {
        let taken = match turns.get() {
            (begin, taken) if begin == transaction => taken,
            _ => 0,
        };
        turns.set((transaction, taken.saturating_add(1)));
        taken < MOST_TURNS
    })
}

fn answer(status: Option<Datum>, teardown: Option<&Teardown>) -> Datum {
    SHAPE.with(|shape| {
        shape.row(&[
            status,
            Some(Datum::from(teardown.map_or(0, |t| t.i64(Col::ItemsTotal)))),
            Some(teardown.map_or_else(numeric::zero, Teardown::amount_total)),
        ])
    })
}
