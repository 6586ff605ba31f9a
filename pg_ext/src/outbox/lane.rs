//! One lane of one subscriber, locked by this transaction: what can be handed out of it now.
//!
//! Invariant: the last batch of a lane says how far the lane has come and which earlier batches may still be
//! out (`open`), so nothing here reads what is over, however much there is of it.

use super::batch::{Batch, Col, TABLE};
use super::event::{Col as EventCol, Event, UNORDERED, find};
use super::receipt;
use super::retry::{self, Due};
use super::seen::Seen;
use super::series;
use super::topic::Subscriber;
use super::window::{self, Window};
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::table::{Snapshot, Table};
use crate::trylock::TryLock;
use pgrx::pg_sys::Datum;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Events of keys that wait for an earlier one, put aside by one take.
const MOST_ASIDE: usize = 10_000;

/// What the caller of a take wants.
pub struct Wish {
    pub max: i32,
    pub lease_us: i64,
}

/// A lane as this take finds it.
pub struct Lane<'a> {
    subscriber: &'a Subscriber,
    lane: i32,
    last: Option<Batch>,
    seen: Seen,
    snapshot: Snapshot,
    now: i64,
}

/// A batch in the making.
struct Draft<'a> {
    subscriber: &'a Subscriber,
    rows: &'a Rows,
    /// The last token of the lane; then the batch's own, from its first event on.
    token: i64,
    begun: bool,
    ids: Vec<i64>,
    redelivered: bool,
    suspect: bool,
    aside: usize,
}

impl<'a> Lane<'a> {
    /// The lane as it is committed now; its lock is held.
    pub fn look(subscriber: &'a Subscriber, lane: i32) -> Result<Lane<'a>> {
        let (seen, snapshot) = Seen::now()?;
        Ok(Lane {
            last: Batch::last(subscriber.id, lane, &snapshot)?,
            subscriber,
            lane,
            seen,
            snapshot,
            now: clock::now_us()?,
        })
    }

    /// Hands out what there is. (Something was handed out, something was written.)
    pub fn serve(self, wish: &Wish, rows: &Rows) -> Result<(bool, bool)> {
        // A drop takes a lane's lock and deletes its batches: a take that waited for it must not begin anew.
        if self.last.is_none() && !self.subscriber.is_there(&self.snapshot)? {
            return Ok((false, false));
        }
        let Some((open, expired)) = self.open()? else {
            return Ok((false, false));
        };
        let mut draft = Draft {
            subscriber: self.subscriber,
            rows,
            token: self.last.as_ref().map_or(0, Batch::token),
            begun: false,
            ids: Vec::new(),
            redelivered: false,
            suspect: false,
            aside: 0,
        };
        let mut window = match &self.last {
            Some(last) => Window::after(last)?,
            None => Window::start(self.subscriber),
        };
        // Fresh events and suspects alternate.
        let was_suspect = self.last.as_ref().is_some_and(|b| b.flag(Col::Suspect));
        let suspect_done = !was_suspect && self.hand_out_suspect(&mut draft)?;
        if !suspect_done {
            self.hand_out_due(&mut draft, wish.max)?;
            window = self.hand_out_fresh(&mut draft, window, wish.max)?;
            if draft.ids.is_empty() && was_suspect {
                self.hand_out_suspect(&mut draft)?;
            }
        }
        let found = !draft.ids.is_empty();
        if found || draft.aside > 0 {
            self.store(draft, &window, &open, wish)?;
            return Ok((found, true));
        }
        Ok((false, expired))
    }

    /// Batches of the lane that are out; what ran out is put back to be given out again (true: something was).
    /// None: the lane is taken, or somebody is at a batch of it that ran out.
    fn open(&self) -> Result<Option<(Vec<i64>, bool)>> {
        let Some(last) = &self.last else {
            return Ok(Some((Vec::new(), false)));
        };
        let mut tokens = last.numbers(Col::Open);
        if !last.ids().is_empty() {
            tokens.push(last.token());
        }
        let mut open = Vec::new();
        let mut expired = false;
        for token in tokens {
            if receipt::is_over(self.subscriber.id, token, &self.snapshot)? {
                continue;
            }
            let Some(batch) = Batch::find_under(self.subscriber.id, token, &self.snapshot)? else {
                continue;
            };
            let over = batch.i64(Col::LeaseUntil) <= self.now;
            match over && retry::expire(self.subscriber, &batch, self.now)? {
                true => expired = true,
                false => open.push(token),
            }
        }
        let taken = self.lane != UNORDERED && !open.is_empty();
        Ok((!taken).then_some((open, expired)))
    }

    fn hand_out_suspect(&self, draft: &mut Draft) -> Result<bool> {
        let Some(due) = retry::suspect(self.subscriber, self.lane, self.now)? else {
            return Ok(false);
        };
        draft.suspect = true;
        self.hand_out_again(draft, &due)?;
        Ok(!draft.ids.is_empty())
    }

    fn hand_out_due(&self, draft: &mut Draft, max: i32) -> Result<()> {
        for due in retry::due(self.subscriber, self.lane, self.now, max)? {
            self.hand_out_again(draft, &due)?;
        }
        Ok(())
    }

    fn hand_out_again(&self, draft: &mut Draft, due: &Due) -> Result<()> {
        if let Some(event) = find(self.subscriber.topic.id, self.lane, due.event_id)? {
            draft.redelivered = true;
            draft.push(&event, due.failures.saturating_add(1))?;
        }
        Ok(())
    }

    /// Reads on in the log, through as many windows as it takes.
    fn hand_out_fresh(&self, draft: &mut Draft, window: Window, max: i32) -> Result<Window> {
        let mut window = window;
        let tables = window::tables()?;
        if tables.is_empty() {
            return Ok(window);
        }
        let waiting = match self.lane {
            UNORDERED => Default::default(),
            lane => retry::waiting_keys(self.subscriber, lane)?,
        };
        let topic = self.subscriber.topic.id;
        let present = series::current(&self.snapshot)?;
        loop {
            let mut reader = window.read(topic, self.lane, &tables, &self.snapshot)?;
            let mut last_id = window.last_id;
            while draft.ids.len() < max as usize && draft.aside < MOST_ASIDE {
                let next = reader.next(|event| {
                    last_id = event.i64(EventCol::EventId);
                    match event.bytes(EventCol::OrderKey) {
                        Some(key) if waiting.contains(key) => {
                            draft.aside += 1;
                            retry::wait_behind(self.subscriber, self.lane, last_id, key)
                        }
                        _ => draft.push(event, 1),
                    }
                })?;
                if next.is_none() {
                    break;
                }
            }
            window.last_id = last_id;
            if draft.ids.len() >= max as usize || draft.aside >= MOST_ASIDE {
                return Ok(window);
            }
            match window.next(&self.seen, present) {
                Some(next) => window = next,
                None => return Ok(window),
            }
            window.find_late(topic, self.lane, &tables, &self.snapshot)?;
        }
    }

    fn store(&self, mut draft: Draft, window: &Window, open: &[i64], wish: &Wish) -> Result<()> {
        if draft.redelivered {
            retry::lease(self.subscriber, draft.token()?, &draft.ids)?;
        }
        let now = clock::now_us()?;
        let mut batch = Batch::empty();
        batch.put_i64(Col::Token, draft.token()?);
        batch.put_i64(Col::TakenAt, now);
        batch.put_i64(Col::LeaseUntil, now + wish.lease_us);
        batch.put_i32(Col::SubscriberId, self.subscriber.id);
        batch.put_i32(Col::Lane, self.lane);
        batch.put(Col::Redelivered, Some(Datum::from(draft.redelivered)));
        batch.put(Col::Suspect, Some(Datum::from(draft.suspect)));
        batch.put(Col::EventIds, Some(row::i64s(&draft.ids)));
        batch.put(Col::Open, Some(row::i64s(open)));
        window.write(&mut batch);
        batch.insert(&Table::to_write(TABLE)?)
    }
}

impl Draft<'_> {
    /// The batch's token: one that nobody has. Its lock keeps others off it until this transaction has ended.
    fn token(&mut self) -> Result<i64> {
        while !self.begun {
            self.token = clock::next_token(self.token);
            let spread = (self.subscriber.id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let lock = TryLock::acquire(spread ^ self.token as u64);
            if let Some(lock) = lock
                && Batch::find(self.subscriber.id, self.token)?.is_none()
            {
                lock.keep();
                self.begun = true;
            }
        }
        Ok(self.token)
    }

    fn push(&mut self, event: &Event, attempt: i32) -> Result<()> {
        let token = self.token()?;
        self.ids.push(event.i64(EventCol::EventId));
        self.rows.push(&[
            Some(Datum::from(token)),
            event.raw(EventCol::EventId),
            Some(Datum::from(attempt)),
            Some(row::text(delivery_key(self.subscriber, event).as_bytes())),
            event.raw(EventCol::OrderKey),
            event.raw(EventCol::Payload),
            event.raw(EventCol::Headers),
            event.raw(EventCol::EmittedAt),
        ]);
        Ok(())
    }
}

/// The idempotency key of an event's delivery to a subscriber: a function of what is stored of both, so it is
/// the same on every attempt and in a restored database. An event id that a crash gave out twice comes with
/// another time and transaction.
fn delivery_key(subscriber: &Subscriber, event: &Event) -> String {
    let mut hash = Sha256::new();
    for number in [
        i64::from(subscriber.id),
        event.i64(EventCol::EventId),
        event.i64(EventCol::Xid),
        event.i64(EventCol::EmittedAt),
        event.i64(EventCol::Series),
    ] {
        hash.update(number.to_be_bytes());
    }
    hash.update(&subscriber.topic.name);
    hash.update([0]);
    hash.update(&subscriber.name);
    let digest = hash.finalize();
    let mut key = String::with_capacity(36);
    key.push_str("evt_");
    for byte in digest.iter().take(16) {
        let _ = write!(key, "{byte:02x}");
    }
    key
}
