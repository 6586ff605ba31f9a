//! `outbox_take`: a batch from one lane of the subscriber.
//!
//! Lanes are tried in turn, without waiting: who finds a lane locked goes on, because a take is at it. Only
//! the lane of events without order_key is waited for in the end, as many workers share it. A lane's lock is
//! kept to the end of the transaction where something was taken, so the next take sees this one's batch.

use super::event::UNORDERED;
use super::lane::{Lane, Wish};
use super::topic::Subscriber;
use crate::call::Call;
use crate::error::Result;
use crate::row::Rows;
use crate::table;
use crate::trylock::{TryLock, wait_exclusive};
use pgrx::pg_sys::{self, Datum};
use std::cell::RefCell;
use std::collections::HashMap;

/// The largest batch.
const MOST: i32 = 10_000;
/// Every so many takes begin with the lanes where nothing was found lately.
const ROUND: u32 = 16;

thread_local! {
    static COURSES: RefCell<HashMap<i32, Course>> = RefCell::new(HashMap::new());
}

/// `once.outbox_take`.
pub fn outbox_take(call: &Call) -> Result<Datum> {
    table::ensure_writable(super::batch::TABLE)?;
    let subscriber = Subscriber::of(call)?;
    let wish = Wish {
        max: call.limit(2, "max", MOST)?,
        lease_us: call
            .interval(3, "lease")?
            .unwrap_or(subscriber.lease_us)
            .min(subscriber.max_life_us),
    };
    let rows = Rows::begin(call);
    let mut course = course_of(&subscriber);
    let mut wait = false;
    let mut served = None;
    for lane in course.order(subscriber.lanes()) {
        let Some(lock) = TryLock::acquire(lock_of(&subscriber, lane)) else {
            wait |= lane == UNORDERED;
            continue;
        };
        let (found, wrote) = Lane::look(&subscriber, lane)?.serve(&wish, &rows)?;
        if wrote {
            lock.keep();
        }
        if found {
            served = Some(lane);
            break;
        }
        course.forget(lane);
    }
    if served.is_none() && wait {
        wait_exclusive(lock_of(&subscriber, UNORDERED));
        let (found, _) = Lane::look(&subscriber, UNORDERED)?.serve(&wish, &rows)?;
        served = found.then_some(UNORDERED);
    }
    course.end(served);
    COURSES.with(|c| c.borrow_mut().insert(subscriber.id, course));
    Ok(Datum::from(0))
}

/// What whoever hands out events of a lane holds to the end of the transaction.
pub fn lock_of(subscriber: &Subscriber, lane: i32) -> u64 {
    (subscriber.id as u64) << 32 | lane as u64
}

/// In which order this backend tries a subscriber's lanes: those where it found something go round, the rest
/// comes behind them, and first every so often.
#[derive(Clone, Default)]
struct Course {
    takes: u32,
    /// Where something was found lately, the longest ago first.
    found: Vec<i32>,
    /// Where the rest begins.
    start: i32,
}

fn course_of(subscriber: &Subscriber) -> Course {
    let known = COURSES.with(|c| c.borrow_mut().remove(&subscriber.id));
    known.unwrap_or_else(|| Course {
        // SAFETY: a variable of this backend; workers begin at different lanes.
        start: unsafe { pg_sys::MyProcPid } % subscriber.lanes(),
        ..Course::default()
    })
}

impl Course {
    fn order(&mut self, lanes: i32) -> Vec<i32> {
        self.takes = self.takes.wrapping_add(1);
        self.found.retain(|lane| *lane < lanes);
        let all = (0..lanes).map(|i| (self.start + i) % lanes);
        let rest: Vec<i32> = all.filter(|lane| !self.found.contains(lane)).collect();
        match self.takes.is_multiple_of(ROUND) {
            true => [rest, self.found.clone()].concat(),
            false => [self.found.clone(), rest].concat(),
        }
    }

    fn forget(&mut self, lane: i32) {
        self.found.retain(|l| *l != lane);
    }

    fn end(&mut self, served: Option<i32>) {
        if let Some(lane) = served {
            self.forget(lane);
            self.found.push(lane);
            self.start = lane;
        }
    }
}
