//! Dead letters of each subscriber: their number, the number that died within the last hour, and the earliest death.
//! doctor reports these, too.

use super::Sheet;
use crate::clock;
use crate::error::Result;
use crate::settings;
use crate::spi::{self, Kept, column, float, text};
use pgrx::pg_sys::{Datum, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;

/// The count of a subscriber's dead letters stops here.
pub const MOST_COUNTED: i64 = 2_000;

// $1 now, $2 the bound.
const DEAD: &CStr = c"
    SELECT t.topic, s.subscriber, a.letters::double precision, l.letters::double precision,
           (SELECT d.died_at FROM once.dead d WHERE d.subscriber_id = s.subscriber_id ORDER BY d.died_at LIMIT 1)
      FROM once.subscriber s JOIN once.topic t ON t.topic_id = s.topic_id
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*) FROM (
                   SELECT FROM once.dead d WHERE d.subscriber_id = s.subscriber_id LIMIT $2) x) a (letters)
           CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*) FROM (
                   SELECT FROM once.dead d WHERE d.subscriber_id = s.subscriber_id AND d.died_at > $1 - interval '1 hour'
                    LIMIT $2) x) l (letters)
     ORDER BY t.topic, s.subscriber";

static OF_SUBSCRIBERS: Kept = Kept::new(DEAD, &[TIMESTAMPTZOID, INT8OID]);

/// The dead letters of a subscriber; a count of [`MOST_COUNTED`] means that many or more.
pub struct DeadLetters {
    pub topic: String,
    pub subscriber: String,
    pub count: f64,
    pub within_an_hour: f64,
    /// The earliest death, a timestamptz.
    pub first: Option<Datum>,
}

/// Counts the dead letters of every subscriber.
pub fn count() -> Result<Vec<DeadLetters>> {
    let args = [clock::now_us()?, MOST_COUNTED].map(|n| Some(Datum::from(n)));
    let rows = settings::by_index(|| spi::query(&OF_SUBSCRIBERS, &args))?;
    let letters = |row: &spi::Row| DeadLetters {
        topic: text(row, 0),
        subscriber: text(row, 1),
        count: float(row, 2),
        within_an_hour: float(row, 3),
        first: column(row, 4),
    };
    Ok(rows.iter().map(letters).collect())
}

pub fn letters(sheet: &Sheet) -> Result<()> {
    for dead in count()? {
        let labels = [("topic", &*dead.topic), ("subscriber", &*dead.subscriber)];
        sheet.put(
            "outbox_dead_letters",
            &labels,
            dead.count,
            "Events that the subscriber has given up (outbox_dead); 2000 means 2000 or more.",
        )?;
        sheet.put(
            "outbox_dead_letters_lately",
            &labels,
            dead.within_an_hour,
            "Events of outbox_dead_letters that died within the last hour; 2000 means 2000 or more.",
        )?;
    }
    Ok(())
}
