//! `outbox_take`: a batch of due events, from as many lanes as are needed to fill it, at most MOST_LANES.
//!
//! A take tries lane after lane, and skips lanes that another transaction has locked. If it has then written nothing,
//! it tries the skipped lanes again for up to WAIT_MS. Of these it tries only the lanes of events without order_key.
//! Until its transaction ends, a take holds the lock of each lane for which it wrote rows. So the next take of the lane
//! sees those rows.

use super::draft::{Draft, TakeWish};
use super::event::is_unordered;
use super::lane::LockedLane;
use super::quiet::LogMoment;
use super::retry;
use super::topic::Subscriber;
use crate::call::Call;
use crate::clock;
use crate::error::Result;
use crate::row::Rows;
use crate::table;
use crate::trylock::TryLock;
use pgrx::pg_sys::{self, Datum};
use std::cell::RefCell;
use std::collections::HashMap;

/// A batch has at most this many events.
const MOST_EVENTS: i32 = 10_000;
/// How long a take that has written no row waits for locked lanes, in milliseconds.
const WAIT_MS: u32 = 50;
/// A take writes rows for at most this many lanes, because it keeps their locks until its transaction ends.
const MOST_LANES: usize = 64;
/// Every ROUNDth take begins with the lanes where nothing was found lately.
const ROUND: u32 = 16;

thread_local! {
    static LANE_ORDERS: RefCell<HashMap<i32, LaneOrder>> = RefCell::new(HashMap::new());
}

/// `once.outbox_take`.
pub fn outbox_take(call: &Call) -> Result<Datum> {
    table::ensure_writable(super::batch::TABLE)?;
    let subscriber = Subscriber::named_in(call)?;
    let wish = TakeWish {
        max: call.limit(2, "max", MOST_EVENTS)? as usize,
        lease_us: call
            .interval(3, "lease")?
            .unwrap_or(subscriber.lease_us)
            .min(subscriber.max_life_us),
    };
    let rows = Rows::begin(call);
    if subscriber.paused {
        return Ok(Datum::from(0));
    }
    let mut moment = LogMoment::now()?;
    if moment.is_quiet(&subscriber)? {
        return Ok(Datum::from(0));
    }
    let retries = moment.before_look(&subscriber)?;
    let mut draft = Draft::new(&subscriber, wish, retries);
    let mut lanes = LaneOrder::recalled(&subscriber);
    let mut busy = Vec::new();
    let mut locked = 0;
    for lane in lanes.order(&subscriber, retries)? {
        let Some(lock) = TryLock::acquire(lock_of(&subscriber, lane)) else {
            busy.push(lane);
            continue;
        };
        if take_from_lane(lane, lock, &mut draft, &mut lanes)? {
            locked += 1;
        }
        if draft.is_full() || locked >= MOST_LANES {
            break;
        }
    }
    let looked_everywhere = busy.is_empty();
    busy.retain(|lane| is_unordered(*lane));
    if locked == 0 {
        wait_for(busy, &mut draft, &mut lanes)?;
    }
    let nothing = draft.is_empty() && locked == 0 && !draft.is_active;
    moment.remember(&subscriber, nothing && looked_everywhere)?;
    lanes.remember(&subscriber);
    draft.hand_out(&rows);
    Ok(Datum::from(0))
}

/// Tries the locked lanes again. Stops when it has written rows, when it has locked each lane once, or after WAIT_MS.
fn wait_for(mut busy: Vec<i32>, draft: &mut Draft, lanes: &mut LaneOrder) -> Result<()> {
    for _ in 0..WAIT_MS {
        let mut still = Vec::new();
        for lane in busy {
            let Some(lock) = TryLock::acquire(lock_of(draft.subscriber, lane)) else {
                still.push(lane);
                continue;
            };
            if take_from_lane(lane, lock, draft, lanes)? {
                return Ok(());
            }
        }
        if still.is_empty() {
            return Ok(());
        }
        busy = still;
        clock::nap();
    }
    Ok(())
}

/// Takes from a lane. True: rows were written, and the lock is kept.
fn take_from_lane(
    lane: i32,
    lock: TryLock,
    draft: &mut Draft,
    lanes: &mut LaneOrder,
) -> Result<bool> {
    let before = draft.len();
    let wrote = LockedLane::as_committed(draft.subscriber, lane)?.fill(draft)?;
    lanes.note(lane, draft.len() > before);
    if wrote {
        lock.keep();
    }
    Ok(wrote)
}

/// The lock of a lane; tokens have locks of their own (draft.rs).
pub fn lock_of(subscriber: &Subscriber, lane: i32) -> u64 {
    (subscriber.id as u64) << 32 | u64::from(lane as u32)
}

/// The order in which this backend tries a subscriber's lanes: first the lanes where it found events lately, in turn,
/// then the other lanes. Every ROUNDth take begins with the other lanes.
struct LaneOrder {
    takes: u32,
    /// Lanes where events were found lately, ordered by the time of the last find.
    found: Vec<i32>,
    /// The search of the other lanes begins at this index, modulo the number of lanes.
    start: usize,
}

impl LaneOrder {
    fn recalled(subscriber: &Subscriber) -> LaneOrder {
        let known = LANE_ORDERS.with(|c| c.borrow_mut().remove(&subscriber.id));
        known.unwrap_or_else(|| LaneOrder {
            takes: 0,
            found: Vec::new(),
            // SAFETY: reads a variable of this backend. The process id spreads the workers over the lanes.
            start: unsafe { pg_sys::MyProcPid } as usize,
        })
    }

    /// A suspect is only added to an empty draft. In the usual order, earlier lanes may add events in every take. The
    /// suspect would then never be taken. So every second take begins with the lanes that have suspects.
    fn order(&mut self, subscriber: &Subscriber, retries: bool) -> Result<Vec<i32>> {
        let usual = self.usual_order(subscriber);
        if self.takes.is_multiple_of(2) || !retries {
            return Ok(usual);
        }
        let now = clock::now_us()?;
        let mut first = Vec::new();
        let mut rest = Vec::new();
        for lane in usual {
            match retry::suspect(subscriber, lane, now)? {
                Some(_) => first.push(lane),
                None => rest.push(lane),
            }
        }
        Ok([first, rest].concat())
    }

    fn usual_order(&mut self, subscriber: &Subscriber) -> Vec<i32> {
        let mut all: Vec<i32> = subscriber.lanes().collect();
        self.takes = self.takes.wrapping_add(1);
        self.found.retain(|lane| all.contains(lane));
        let places = all.len();
        all.rotate_left(self.start % places);
        all.retain(|lane| !self.found.contains(lane));
        if !self.takes.is_multiple_of(ROUND) {
            return [self.found.clone(), all].concat();
        }
        self.start = self.start.wrapping_add(1);
        [all, self.found.clone()].concat()
    }

    fn note(&mut self, lane: i32, found: bool) {
        self.found.retain(|l| *l != lane);
        if found {
            self.found.push(lane);
        }
    }

    fn remember(self, subscriber: &Subscriber) {
        LANE_ORDERS.with(|c| c.borrow_mut().insert(subscriber.id, self));
    }
}
