//! Which subscribers have rows of their own, where there are more than so many: those with the worst numbers.
//!
//! Invariant: none is left out while one with a smaller number is told, so an alert on the largest of them is not
//! missed; and `pg_once_outbox_complete` is 0 where one that has anything to tell was left out or not looked at.
//! Where there is room, the others have rows, too, so that with few subscribers each always has the same ones.

use super::Sheet;
use crate::call::shown;
use crate::error::Result;
use crate::outbox::topic::Subscriber;

/// Subscribers that have rows, of each kind of number.
const SUBSCRIBERS: usize = 200;

/// How bad a subscriber's numbers are: the more, the worse; None: there is nothing to tell.
pub type Badness = Option<i64>;

/// The subscribers to be told, in their order, and whether that is everybody who has anything to tell.
pub fn told(badness: &[Badness]) -> (Vec<usize>, bool) {
    let mut order: Vec<usize> = (0..badness.len()).collect();
    // None is the least of all; equals stay in their order.
    order.sort_by_key(|i| std::cmp::Reverse(badness[*i]));
    let left_out = order.split_off(order.len().min(SUBSCRIBERS));
    order.sort_unstable();
    let complete = left_out.iter().all(|i| badness[*i].is_none());
    (order, complete)
}

/// The labels of a subscriber.
pub struct Labels(String, String);

impl Labels {
    pub fn of_subscriber(subscriber: &Subscriber) -> Labels {
        Labels(shown(&subscriber.topic.name), shown(&subscriber.name))
    }

    pub fn pairs(&self) -> [(&str, &str); 2] {
        [("topic", &self.0), ("subscriber", &self.1)]
    }
}

/// How many subscribers have anything to tell of this kind, and whether the rows tell all of it.
pub fn complete(sheet: &Sheet, of: &str, badness: &[Badness], complete: bool) -> Result<()> {
    sheet.put(
        "pg_once_outbox_subscribers",
        &[("of", of)],
        badness.iter().flatten().count() as f64,
        "Subscribers of all topics that have anything to tell of this kind: a backlog, dead letters, failures within five minutes. Of more than 200 only the worst have rows of their own.",
    )?;
    sheet.put(
        "pg_once_outbox_complete",
        &[("of", of)],
        f64::from(u8::from(complete)),
        "1: a subscriber without a row of this kind has nothing to tell; 0: more than 200 subscribers have, and only the worst of them have rows, or not everything could be looked at within the bounds, and the numbers are lower bounds.",
    )
}
