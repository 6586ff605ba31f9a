//! Lists a subscriber's pending events.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::Subscriber;
use crate::executor::of_row;
use crate::{Error, Executor, Json};

const PEEK: &str = "SELECT * FROM once.outbox_peek(topic => $1, subscriber => $2, max => $3)";

/// An event that is neither acked nor dead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingEvent {
    /// The event.
    pub event_id: i64,
    /// `ready`, `delayed`, `leased`, or `waiting` for an earlier event of its key or a leased batch of its lane.
    pub state: String,
    /// When the event becomes due, or became due; if it is leased, when the lease ends; `None` if it is waiting.
    pub due_at: Option<SystemTime>,
    /// The number of the attempt in progress, or else of the next attempt.
    pub attempt: i32,
    /// Its order key.
    pub order_key: Option<String>,
    /// The emitted payload, byte for byte.
    pub payload: Json,
    /// The headers emitted with it.
    pub headers: Option<Json>,
    /// When it was emitted.
    pub emitted_at: SystemTime,
}

impl Subscriber {
    /// Lists up to `max` (1 to 10000) pending events in the order of their ids, without taking them.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// # use pg_once::{EmitOptions, Json};
    /// topic.emit(&pool, &Json::of("hello")?, &EmitOptions::new()).await?;
    /// let pending = topic.default_subscriber().peek(&pool, 100).await?;
    /// assert_eq!((pending.len(), pending[0].state.as_str()), (1, "ready"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Subscriber::dead`].
    pub async fn peek<E: Executor>(&self, exec: &E, max: i32) -> Result<Vec<PendingEvent>, Error> {
        let own = [(&max as _, Type::INT4)];
        let rows = self.rows(exec, PEEK, &own).await?;
        rows.iter().map(PendingEvent::of_row).collect()
    }
}

of_row!(PendingEvent: event_id, state, due_at, attempt, order_key, payload, headers, emitted_at);
