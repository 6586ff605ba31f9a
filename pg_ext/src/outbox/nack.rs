//! `outbox_nack`: events of a batch failed, or are given back.
//!
//! Of each order_key the first of the events named counts; those behind it, named or not, leave with it
//! uncounted. The rows of the answer stand in the receipt, so that the same call gives them again.

use super::batch::{self, Batch};
use super::leave::{self, Fate, Held, Leaving, Reason};
use super::receipt::{Col, Kind, Ledger, Receipt};
use super::topic::Subscriber;
use crate::call::Call;
use crate::clock::{self, INFINITY};
use crate::error::{Error, Result};
use crate::mark::call_mark;
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

/// The longest kind of a failure, in characters.
const KIND_MAX: usize = 100;
/// Counts no attempt.
const RELEASED: &[u8] = b"released";
/// Dead at once.
const NEVER: &[u8] = b"never";
/// A lease that ran out; no caller's word.
pub const EXPIRED: &[u8] = b"expired";

// Those that left uncounted behind the named ones have no attempt here.
const ROWS: &CStr = c"
    SELECT u.event_id, u.attempt, NULLIF(u.next_at, 'infinity'), u.dead
      FROM unnest($1, $2, $3, $4) u (event_id, attempt, next_at, dead)
     WHERE u.attempt IS NOT NULL";

thread_local! {
    static TOLD: Kept = const { Kept::new(ROWS, &[
        pg_sys::INT8ARRAYOID, pg_sys::INT4ARRAYOID, pg_sys::TIMESTAMPTZARRAYOID, pg_sys::BOOLARRAYOID,
    ]) };
}

/// What the caller says of the failure.
struct Failure<'a> {
    reason: Reason<'a>,
    retry_after: Option<i64>,
}

/// `once.outbox_nack`.
pub fn outbox_nack(call: &Call) -> Result<Datum> {
    table::ensure_writable(batch::TABLE)?;
    let subscriber = Subscriber::of(call)?;
    let token = call.i64(2, "token")?;
    let named = call.opt_i64s(3, "event_ids")?;
    let failure = Failure::of(call)?;
    let rows = Rows::begin(call);
    let batch = Batch::locked(&subscriber, token)?;
    let mut ledger = Ledger::of(&batch)?;
    let mark = failure.mark(named.as_deref());
    let named = match named_of(&ledger, named) {
        Some(named) if !named.is_empty() => named,
        nothing => {
            // The same call may be made again, whatever others did with the token since: a worker ends the events
            // of a batch from several tasks.
            match ledger.of_call(mark)? {
                Some(receipt) => tell(&receipt, &rows)?,
                None if nothing.is_none() => return Err(batch::lost(&subscriber, token)),
                None => {}
            }
            return Ok(call.return_null());
        }
    };
    let nack = Nack {
        subscriber: &subscriber,
        batch: &batch,
        failure: &failure,
        named: &named,
        now: clock::now_us()?,
    };
    nack.run(&mut ledger, mark, &rows)?;
    Ok(call.return_null())
}

/// The events to give back, in the order named; None where one of them is not held, or all were lost.
fn named_of(ledger: &Ledger, named: Option<Vec<i64>>) -> Option<Vec<i64>> {
    match named {
        None if ledger.held.is_empty() && !ledger.ended_by_ack => None,
        None => Some(ledger.held.clone()),
        Some(named) => {
            let held: HashSet<i64> = ledger.held.iter().copied().collect();
            let mut seen = HashSet::new();
            let named = || named.iter().copied();
            named().all(|id| held.contains(&id)).then(|| {
                let first = |id: &i64| seen.insert(*id);
                named().filter(first).collect()
            })
        }
    }
}

/// The answer that a receipt remembers.
fn tell(receipt: &Receipt, rows: &Rows) -> Result<()> {
    let args = [Col::EventIds, Col::Attempts, Col::NextAt, Col::Dead].map(|c| receipt.raw(c));
    for told in spi::query_latest(&TOLD, &args)? {
        rows.push(&told);
    }
    Ok(())
}

impl Failure<'_> {
    fn of(call: &Call) -> Result<Failure<'_>> {
        let kind = call.text(5, "kind", KIND_MAX)?;
        if kind == EXPIRED {
            return Err(Error::bad_argument(
                "kind",
                "must not be \"expired\"",
                "That is what pg_once calls a lease that ran out; use a word of your own.",
            ));
        }
        Ok(Failure {
            reason: Reason {
                kind,
                error: call.note(4),
            },
            retry_after: call.interval(6, "retry_after")?,
        })
    }

    fn mark(&self, named: Option<&[i64]>) -> i64 {
        let bytes = |ids: &[i64]| {
            ids.iter()
                .flat_map(|id| id.to_be_bytes())
                .collect::<Vec<_>>()
        };
        let named = named.map(bytes);
        let retry_after = self.retry_after.map(i64::to_be_bytes);
        call_mark(
            "outbox_nack",
            &[
                named.as_deref(),
                self.reason.error,
                Some(self.reason.kind),
                retry_after.as_ref().map(<[u8; 8]>::as_slice),
            ],
        )
    }
}

struct Nack<'a> {
    subscriber: &'a Subscriber,
    batch: &'a Batch,
    failure: &'a Failure<'a>,
    named: &'a [i64],
    now: i64,
}

impl Nack<'_> {
    fn run(&self, ledger: &mut Ledger, mark: i64, rows: &Rows) -> Result<()> {
        let (named, behind) = self.leaving(ledger)?;
        let leaving: Vec<Leaving> = named.into_iter().chain(behind).collect();
        let reason = &self.failure.reason;
        let freed = leave::leave(self.subscriber, &leaving, reason, self.now)?;
        let next_at = |l: &Leaving| match l.fate {
            Fate::Due(at) => at,
            Fate::Waits if freed.contains(&l.event.id) => self.now,
            _ => INFINITY,
        };
        let told = || leaving.iter().take(self.named.len());
        for l in told() {
            let next_at = next_at(l);
            rows.push(&[
                Some(Datum::from(l.event.id)),
                Some(Datum::from(l.event.failures)),
                (next_at != INFINITY).then(|| Datum::from(next_at)),
                Some(Datum::from(l.fate == Fate::Dead)),
            ]);
        }
        let answer = [
            row::array(told().map(|l| l.event.failures.into()), pg_sys::INT4OID),
            row::array(told().map(|l| next_at(l).into()), pg_sys::TIMESTAMPTZOID),
            row::array(
                told().map(|l| (l.fate == Fate::Dead).into()),
                pg_sys::BOOLOID,
            ),
        ];
        let ids: Vec<i64> = leaving.iter().map(|l| l.event.id).collect();
        ledger.append(Kind::Nacked, &ids, mark, Some(answer.map(Some)))
    }

    /// The events named, in the caller's order, and those that leave behind them.
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

    fn fate_of(&self, event: Held, follows: bool) -> Leaving {
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
        // Its worker lived to tell.
        let event = Held {
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
