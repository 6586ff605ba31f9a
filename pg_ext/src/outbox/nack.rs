//! `outbox_nack`: marks events of a batch as failed, or releases them.
//!
//! With the kind `released` no attempt is counted. With any other kind one attempt is counted for each named event
//! without order_key. Of the named events with the same order_key, only the earliest gets a counted attempt. The later
//! events of this order_key in the batch leave the batch with it, named or not.
//!
//! The receipt stores the rows of the answer. If the same transaction repeats the call, it gets these rows. If a later
//! transaction repeats it, ON006 is raised. Its DETAIL has `attempt` and `dead` of each nacked event.

use super::batch::{self, Batch};
use super::leave::{self, Fate, HeldEvent, Leaving, Reason};
use super::receipt::{Ledger, LeftBy, ReceiptKind};
use super::topic::Subscriber;
use crate::call::Call;
use crate::clock::{self, INFINITY};
use crate::error::{Error, Result};
use crate::row::{self, Rows};
use crate::spi::{self, Kept, number};
use crate::table;
use pgrx::pg_sys::{self, Datum, INT4OID, INT8ARRAYOID, INT8OID};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

/// The maximum length of a failure's kind, in characters.
const KIND_MAX: usize = 100;
/// This kind counts no attempt.
const RELEASED: &[u8] = b"released";
/// With this kind the event is dead at once.
const NEVER: &[u8] = b"never";
/// The kind of an expired lease; not for callers.
pub const EXPIRED: &[u8] = b"expired";

// The receipt has no attempt for an unnamed event that left with a named event of its key.
const ANSWER: &CStr = c"
    SELECT u.event_id, u.attempt, NULLIF(u.next_at, 'infinity'), u.dead
      FROM once.receipt r, unnest(r.event_ids, r.attempts, r.next_at, r.dead) u (event_id, attempt, next_at, dead)
     WHERE r.subscriber_id = $1 AND r.token = $2 AND r.kind = 'n' AND u.attempt IS NOT NULL AND u.event_id = ANY ($3)
     ORDER BY array_position($3, u.event_id)";

static ANSWER_OF: Kept = Kept::new(ANSWER, &[INT4OID, INT8OID, INT8ARRAYOID]);

/// The failure as the caller gives it.
struct NackedWith<'a> {
    reason: Reason<'a>,
    retry_after: Option<i64>,
}

/// `once.outbox_nack`.
pub fn outbox_nack(call: &Call) -> Result<Datum> {
    table::ensure_writable(batch::TABLE)?;
    let subscriber = Subscriber::named_in(call)?;
    let token = call.i64(2, "token")?;
    let named = call.opt_i64s(3, "event_ids")?;
    let failure = NackedWith::read(call)?;
    let rows = Rows::begin(call);
    let batch = Batch::locked(&subscriber, token)?;
    let mut ledger = Ledger::read(&batch)?;
    let (held, others) = ledger.split(named.as_deref());
    if !others.is_empty() {
        let ours = |id: &i64| ledger.has_left(*id, LeftBy::Nacked) && ledger.is_ours(*id);
        if !held.is_empty() || !others.iter().all(ours) {
            return Err(refusal(&subscriber, token, &ledger, &others)?);
        }
        for row in answer_rows(&subscriber, token, &others)? {
            rows.push(&row);
        }
    }
    if held.is_empty() {
        return match named.is_none() && others.is_empty() {
            true => Err(batch::lost(&subscriber, token, &[])),
            false => Ok(call.return_null()),
        };
    }
    let nack = Nack {
        subscriber: &subscriber,
        batch: &batch,
        failure: &failure,
        named: &held,
        now: clock::now_us()?,
    };
    nack.run(&mut ledger, &rows)?;
    Ok(call.return_null())
}

fn answer_rows(subscriber: &Subscriber, token: i64, ids: &[i64]) -> Result<Vec<spi::Row>> {
    let args = [
        Datum::from(subscriber.id),
        Datum::from(token),
        row::i64s(ids),
    ]
    .map(Some);
    spi::query_latest(&ANSWER_OF, &args)
}

/// ON006 if this token has acked or nacked some of these events, else ON001.
fn refusal(subscriber: &Subscriber, token: i64, ledger: &Ledger, ids: &[i64]) -> Result<Error> {
    let acked = ids.iter().filter(|id| ledger.has_left(**id, LeftBy::Acked));
    let mut done: Vec<_> = acked.map(|id| format!("Event {id}: acked.")).collect();
    for row in answer_rows(subscriber, token, ids)? {
        let (id, attempt) = (number(&row, 0), number(&row, 1) as i32);
        let dead = number(&row, 3) as u8 != 0;
        done.push(format!(
            "Event {id}: nacked, attempt {attempt}, dead {dead}."
        ));
    }
    Ok(match done.is_empty() {
        true => batch::lost(subscriber, token, ids),
        false => batch::already_done(subscriber, token, "ended").detail(done.join("\n")),
    })
}

impl NackedWith<'_> {
    fn read(call: &Call) -> Result<NackedWith<'_>> {
        let kind = call.text(5, "kind", KIND_MAX)?;
        if kind == EXPIRED {
            return Err(Error::bad_argument(
                "kind",
                "must not be \"expired\"",
                "That is the kind of an expired lease; use another word.",
            ));
        }
        Ok(NackedWith {
            reason: Reason {
                kind,
                error: call.note(4),
            },
            retry_after: call.interval(6, "retry_after")?,
        })
    }
}

struct Nack<'a> {
    subscriber: &'a Subscriber,
    batch: &'a Batch,
    failure: &'a NackedWith<'a>,
    named: &'a [i64],
    now: i64,
}

impl Nack<'_> {
    fn run(&self, ledger: &mut Ledger, rows: &Rows) -> Result<()> {
        let (named, behind) = self.leaving(ledger)?;
        let leaving: Vec<Leaving> = named.into_iter().chain(behind).collect();
        let reason = &self.failure.reason;
        let freed = leave::leave(
            self.subscriber,
            self.batch.token(),
            &leaving,
            reason,
            self.now,
        )?;
        let next_at = |l: &Leaving| match l.fate {
            Fate::Due(at) => at,
            Fate::Waits if freed.contains(&l.event.id) => self.now,
            _ => INFINITY,
        };
        let answered = || leaving.iter().take(self.named.len());
        for l in answered() {
            let next_at = next_at(l);
            rows.push(&[
                Some(Datum::from(l.event.id)),
                Some(Datum::from(l.event.failures)),
                (next_at != INFINITY).then(|| Datum::from(next_at)),
                Some(Datum::from(l.fate == Fate::Dead)),
            ]);
        }
        let answer = [
            row::array(answered().map(|l| l.event.failures.into()), pg_sys::INT4OID),
            row::array(
                answered().map(|l| next_at(l).into()),
                pg_sys::TIMESTAMPTZOID,
            ),
            row::array(
                answered().map(|l| (l.fate == Fate::Dead).into()),
                pg_sys::BOOLOID,
            ),
        ];
        let ids: Vec<i64> = leaving.iter().map(|l| l.event.id).collect();
        ledger.append(ReceiptKind::Nacked, &ids, Some(answer.map(Some)))
    }

    /// The named events in the caller's order, and the later events of their keys that were not named.
    fn leaving(&self, ledger: &Ledger) -> Result<(Vec<Leaving>, Vec<Leaving>)> {
        let places: HashMap<i64, usize> = self.named.iter().copied().zip(0..).collect();
        let mut broken: HashSet<Vec<u8>> = HashSet::new();
        let mut named = Vec::new();
        let mut behind = Vec::new();
        for event in leave::held(self.subscriber, self.batch, &ledger.held)? {
            let follows = event.order_key.as_ref().is_some_and(|k| broken.contains(k));
            match places.get(&event.id) {
                Some(place) => {
                    broken.extend(event.order_key.clone());
                    named.push((*place, self.fate_of(event, follows)));
                }
                None if follows => behind.push(self.fate_of(event, true)),
                None => {}
            }
        }
        named.sort_by_key(|(place, _)| *place);
        Ok((named.into_iter().map(|(_, l)| l).collect(), behind))
    }

    fn fate_of(&self, event: HeldEvent, follows: bool) -> Leaving {
        let kind = self.failure.reason.kind;
        let retry_at = self
            .failure
            .retry_after
            .map(|after| self.now.saturating_add(after));
        let uncounted = |event, fate| Leaving {
            event,
            counted: false,
            fate,
        };
        if follows {
            return uncounted(event, Fate::Waits);
        }
        if kind == RELEASED {
            return uncounted(event, Fate::Due(retry_at.unwrap_or(self.now)));
        }
        // The worker survived the event, so the event is no suspect any more.
        let event = HeldEvent {
            suspect: false,
            ..event
        };
        let failed = leave::failed(self.subscriber, event, retry_at, self.now);
        match kind == NEVER {
            true => Leaving {
                fate: Fate::Dead,
                ..failed
            },
            false => failed,
        }
    }
}
