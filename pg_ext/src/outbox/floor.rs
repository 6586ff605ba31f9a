//! Where the due rows of a lane begin, as far as this backend knows.
//!
//! While somebody holds an old snapshot the index keeps an entry for every time that a row was ever due, and a
//! look from the beginning reads them all: a million retries would slow down every take after them, of fresh
//! events too. So a look that was slow notes from which time on there is anything, and for a while the next ones
//! begin there: a second at most where takes find nothing. That hides nothing that became due within
//! [`MARGIN_US`]; what a longer transaction brings with an earlier time is found by the next look from the
//! beginning, [`LONGEST_US`] later at most.

use crate::clock;
use crate::error::Result;
use crate::settings;
use std::cell::RefCell;
use std::collections::HashMap;

/// A look that took longer is worth a note.
const SLOW_US: i64 = 200;
/// How far the beginning stays behind the clock.
const MARGIN_US: i64 = 5_000_000;
/// A note holds this many times as long as the look took, but at least and at most so long.
const TIMES: i64 = 20;
const SHORTEST_US: i64 = 1_000_000;
const LONGEST_US: i64 = 10_000_000;

/// Subscriber, lane, suspects or others.
pub type Place = (i32, i32, bool);

#[derive(Clone, Copy)]
struct Floor {
    due_at: i64,
    noted: i64,
    until: i64,
}

thread_local! {
    static FLOORS: RefCell<HashMap<Place, Floor>> = RefCell::new(HashMap::new());
}

/// The next looks of a subscriber's lanes begin at the beginning, but for those whose note is still young.
pub fn forget(subscriber: i32) {
    let young = clock::real_us().saturating_sub(SHORTEST_US);
    FLOORS.with(|f| {
        f.borrow_mut()
            .retain(|place, floor| place.0 != subscriber || floor.noted > young);
    });
}

/// A look at what is due.
pub struct Look {
    place: Place,
    began: i64,
    /// From this time on; None: from the beginning.
    pub from: Option<i64>,
}

impl Look {
    pub fn begin(place: Place) -> Result<Look> {
        let began = clock::real_us();
        let known = FLOORS.with(|f| f.borrow().get(&place).copied());
        let from = match known {
            // A clock that went back, or is pretended, makes it worthless.
            Some(floor) if (floor.noted..floor.until).contains(&began) => {
                settings::fake_now()?.is_none().then_some(floor.due_at)
            }
            _ => None,
        };
        Ok(Look { place, began, from })
    }

    /// The look has come to the first row that is there; None: there is none up to `now`.
    pub fn found(self, first: Option<i64>, now: i64) -> Result<()> {
        let ended = clock::real_us();
        let took = ended - self.began;
        if self.from.is_none() && took >= SLOW_US && settings::fake_now()?.is_none() {
            let latest = now.saturating_sub(MARGIN_US);
            let holds = took.saturating_mul(TIMES).clamp(SHORTEST_US, LONGEST_US);
            let floor = Floor {
                due_at: first.map_or(latest, |at| at.min(latest)),
                noted: self.began,
                until: ended.saturating_add(holds),
            };
            FLOORS.with(|f| f.borrow_mut().insert(self.place, floor));
        }
        Ok(())
    }
}
