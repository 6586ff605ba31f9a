//! Takes events from one lane of a subscriber. This transaction has locked the lane.
//!
//! Invariant: the last part (batch.rs) of a lane stores how far the lane has been read, and which earlier batches may
//! still hold events (`open`). So a take looks only at these batches and at the last part's batch.

use super::batch::{Batch, Col, Part, TABLE};
use super::draft::Draft;
use super::event::{Col as EventCol, is_unordered, needed};
use super::overdue;
use super::receipt::{self, Ledger};
use super::retry::{self, DueRetry, WaitingKeys};
use super::seen::Seen;
use super::series;
use super::topic::Subscriber;
use super::window::{self, LaneLog, Window};
use crate::clock;
use crate::error::Result;
use crate::row;
use crate::table::{Snapshot, Table};
use pgrx::pg_sys::Datum;

/// While once.retry has events of an order_key, a take puts fresh events of this order_key there, too. After it has put
/// this many fresh events of a lane there, the take stops reading the log. A take also puts back the expired batches of
/// the lane, one after another. After it has put back this many events, it puts back no further batch.
const MOST_BEHIND: usize = 10_000;

pub struct LockedLane<'a> {
    subscriber: &'a Subscriber,
    lane: i32,
    last: Option<Part>,
    seen: Seen,
    snapshot: Snapshot,
    now: i64,
}

/// The events that a take gets from one lane.
#[derive(Default)]
struct LaneTake {
    ids: Vec<i64>,
    redelivered: bool,
    suspect: bool,
    /// The number of events that now wait behind earlier events of their key.
    behind: usize,
}

impl<'a> LockedLane<'a> {
    /// The lane as it is committed now. The caller has locked it.
    pub fn as_committed(subscriber: &'a Subscriber, lane: i32) -> Result<LockedLane<'a>> {
        let (seen, snapshot) = Seen::now()?;
        Ok(LockedLane {
            last: Part::last(subscriber.id, lane, &snapshot)?,
            subscriber,
            lane,
            seen,
            snapshot,
            now: clock::now_us()?,
        })
    }

    /// Adds events of the lane to the draft. True: rows were written.
    pub fn fill(mut self, draft: &mut Draft) -> Result<bool> {
        let last = self.last.as_ref().map_or(0, Part::token);
        // The tokens of a lane must grow. Skip the lane if another take has used it since this batch got its token.
        if draft.begun().is_some_and(|token| token <= last) {
            return Ok(false);
        }
        let Some((open, expired)) = self.open(draft)? else {
            return Ok(false);
        };
        if expired {
            // The events that were put back became due after the old `now`.
            self.now = clock::now_us()?;
            draft.retries = true;
        }
        let mut found = LaneTake::default();
        let mut window = Window::behind(self.subscriber, self.last.as_ref())?;
        // Suspects and other events alternate; a suspect is taken alone.
        let was_suspect = self.last.as_ref().is_some_and(|b| b.flag(Col::Suspect));
        let may_be_alone = draft.is_empty();
        if !(may_be_alone && !was_suspect && self.take_suspect(draft, &mut found)?) {
            self.take_due(draft, &mut found)?;
            window = self.take_fresh(draft, &mut found, window)?;
            if may_be_alone && was_suspect && draft.is_empty() {
                self.take_suspect(draft, &mut found)?;
            }
        }
        if found.ids.is_empty() && found.behind == 0 {
            return Ok(expired);
        }
        if self.last.is_none() {
            // subscriber_drop locks the lane and deletes its batches. A take that read the subscriber before the drop
            // must write no batch.
            self.subscriber.ensure_there(&self.snapshot)?;
        }
        let token = draft.token(last)?;
        self.store(token, draft.wish.lease_us, found, &window, &open)?;
        Ok(true)
    }

    /// Puts expired batches of the lane back. Returns the tokens of the batches that still hold events of the lane, and
    /// whether a batch was put back. None: the lane is keyed, and a batch still holds events of it.
    fn open(&self, draft: &mut Draft) -> Result<Option<(Vec<i64>, bool)>> {
        let Some(last) = &self.last else {
            return Ok(Some((Vec::new(), false)));
        };
        let mut out = Vec::new();
        for token in last.out() {
            if receipt::is_over(self.subscriber.id, token, &self.snapshot)? {
                continue;
            }
            let batch = Batch::find_under(self.subscriber.id, token, &self.snapshot)?;
            out.extend(batch);
        }
        draft.is_active |= !out.is_empty();
        let late = out.iter().filter(|b| b.lease_until() <= self.now);
        let late: Vec<i64> = late.map(Batch::token).collect();
        let over = overdue::put_back(self.subscriber, &late, MOST_BEHIND)?.over;
        let mut open = Vec::new();
        for batch in &out {
            if !over.contains(&batch.token()) && self.is_held_in(batch)? {
                open.push(batch.token());
            }
        }
        let taken = !is_unordered(self.lane) && !open.is_empty();
        Ok((!taken).then_some((open, !over.is_empty())))
    }

    /// Whether this open batch, which may have several lanes, still holds events of this lane.
    fn is_held_in(&self, batch: &Batch) -> Result<bool> {
        let lanes = batch.lanes();
        let mine = |id: &i64| lanes.get(id) == Some(&self.lane);
        Ok(lanes.values().all(|lane| *lane == self.lane)
            || Ledger::read(batch)?.held.iter().any(mine))
    }

    fn take_suspect(&self, draft: &mut Draft, found: &mut LaneTake) -> Result<bool> {
        if !draft.retries {
            return Ok(false);
        }
        let Some(due) = retry::suspect(self.subscriber, self.lane, self.now)? else {
            return Ok(false);
        };
        self.take_again(draft, found, &due)?;
        found.suspect = !found.ids.is_empty();
        draft.alone = found.suspect;
        Ok(found.suspect)
    }

    fn take_due(&self, draft: &mut Draft, found: &mut LaneTake) -> Result<()> {
        if !draft.retries {
            return Ok(());
        }
        let max = draft.wish.max.saturating_sub(draft.len());
        for due in retry::due(self.subscriber, self.lane, self.now, max as i32)? {
            self.take_again(draft, found, &due)?;
        }
        Ok(())
    }

    fn take_again(&self, draft: &mut Draft, found: &mut LaneTake, due: &DueRetry) -> Result<()> {
        let event = needed(&self.subscriber.topic, self.lane, due.event_id)?;
        found.redelivered = true;
        found.ids.push(due.event_id);
        draft.push(&event, due.failures.saturating_add(1));
        Ok(())
    }

    /// Reads on in the log until the log ends, the draft is full, or MOST_BEHIND is reached.
    fn take_fresh(
        &self,
        draft: &mut Draft,
        found: &mut LaneTake,
        window: Window,
    ) -> Result<Window> {
        let tables = window::tables()?;
        if tables.is_empty() || draft.is_full() {
            return Ok(window);
        }
        let mut waiting = WaitingKeys::in_lane(self.subscriber, self.lane);
        let log = LaneLog {
            topic: self.subscriber.topic.id,
            lane: self.lane,
            tables: &tables,
            snapshot: &self.snapshot,
            seen: &self.seen,
            series: series::current()?,
        };
        window.walk(&log, |event| {
            let id = event.i64(EventCol::EventId);
            match event.bytes(EventCol::OrderKey) {
                Some(key) if waiting.has(key)? => {
                    found.behind += 1;
                    waiting.put_behind(id, key)?;
                }
                _ => {
                    found.ids.push(id);
                    draft.push(event, 1);
                }
            }
            Ok(!draft.is_full() && found.behind < MOST_BEHIND)
        })
    }

    fn store(
        &self,
        token: i64,
        lease_us: i64,
        mut found: LaneTake,
        window: &Window,
        open: &[i64],
    ) -> Result<()> {
        if found.redelivered {
            retry::lease(self.subscriber, token, &found.ids)?;
        }
        found.ids.sort_unstable();
        let now = clock::now_us()?;
        let mut part = Part::empty();
        part.put_i64(Col::Token, token);
        part.put_i64(Col::TakenAt, now);
        part.put_i64(Col::LeaseUntil, now + lease_us);
        part.put_i32(Col::SubscriberId, self.subscriber.id);
        part.put_i32(Col::Lane, self.lane);
        part.put(Col::Redelivered, Some(Datum::from(found.redelivered)));
        part.put(Col::Suspect, Some(Datum::from(found.suspect)));
        part.put(Col::EventIds, Some(row::i64s(&found.ids)));
        part.put(Col::Open, Some(row::i64s(open)));
        window.write(&mut part);
        part.insert(&Table::to_write(TABLE)?)
    }
}
