//! Emits events.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::Topic;
use crate::executor::{of_row, only};
use crate::interval::Interval;
use crate::options::setters;
use crate::{Error, Executor, Json};

const EMIT: &str = "SELECT * FROM once.outbox_emit(topic => $1, payload => $2, order_key => $3, \
                    dedupe_key => $4, headers => $5, delay => $6)";

/// The options of an event.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EmitOptions {
    order_key: Option<String>,
    dedupe_key: Option<String>,
    headers: Option<Json>,
    delay: Option<Duration>,
}

/// The answer of [`Topic::emit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The event.
    pub event_id: i64,
    /// Whether this call emitted the event; `false` if the `dedupe_key` was emitted before, within the topic's
    /// `dedupe_for`: then `event_id` is the id of that earlier event.
    pub emitted: bool,
}

impl EmitOptions {
    setters! {
        /// Events of one key are delivered one by one, in the order of their ids. An event that commits late may come
        /// after one with a higher id. A failed event delays the key's later events. Use one key per user or account.
        order_key: impl Into<String>,
        /// A second emit with this key, within the topic's `dedupe_for`, emits nothing.
        dedupe_key: impl Into<String>,
        /// A JSON object for the handler, beside the payload.
        headers: Json,
        /// The delivery waits at least this long, which must be more than zero. Not allowed with an order key.
        delay: Duration,
    }

    /// Defaults: no order key, no `dedupe_key`, no headers, no delay.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Topic {
    /// Emits an event to every subscriber of the topic. Call this in the transaction of the writes that the event
    /// reports: the event commits or rolls back with them. The payload is delivered byte for byte.
    ///
    /// If a call is repeated, it may emit a second event: give a [`dedupe_key`](EmitOptions::dedupe_key).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// use pg_once::{EmitOptions, Json};
    ///
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// // ... INSERT INTO users, in the same transaction ...
    /// let payload = Json::of(&serde_json::json!({"user": 7}))?;
    /// let options = EmitOptions::new().order_key("user 7").dedupe_key("welcome 7");
    /// assert!(topic.emit(&transaction, &payload, &options).await?.emitted);
    /// assert!(!topic.emit(&transaction, &payload, &options).await?.emitted);
    /// transaction.commit().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such topic; `22023` for a bad argument, a delay with an order key, or a
    /// topic without subscribers; `42501` if the topic has another owner; `40001` above READ COMMITTED if the dedupe
    /// key was emitted after the snapshot.
    pub async fn emit<E: Executor>(
        &self,
        exec: &E,
        payload: &Json,
        options: &EmitOptions,
    ) -> Result<Emitted, Error> {
        let delay = options.delay.map(Interval);
        let args = [
            (&self.as_str() as _, Type::TEXT),
            (payload as _, Type::JSON),
            (&options.order_key as _, Type::TEXT),
            (&options.dedupe_key as _, Type::TEXT),
            (&options.headers as _, Type::JSON),
            (&delay as _, Type::INTERVAL),
        ];
        Emitted::of_row(&only(exec.query(EMIT, &args).await?)?)
    }
}

of_row!(Emitted: event_id, emitted);
