//! Posts one event to its receiver, and records the receipt.
//!
//! Invariant: every attempt sends the event's delivery key as its `Idempotency-Key`. So if a process dies
//! between the receiver's answer and the receipt's commit, the receiver recognizes the repeated event.

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Error, Event, Undelivered};
use reqwest::StatusCode;

use crate::common::http::Http;
use crate::common::worker::die;

pub const TABLES: &str = "CREATE TABLE receipt (delivery_key text PRIMARY KEY, event_id bigint NOT NULL, \
    attempt int NOT NULL, answer text NOT NULL, delivered_at timestamptz NOT NULL DEFAULT clock_timestamp())";
const RECEIVED: &str = "SELECT EXISTS (SELECT FROM receipt WHERE delivery_key = $1)";
const RECORD: &str = "INSERT INTO receipt (delivery_key, event_id, attempt, answer) VALUES ($1, $2, $3, $4) \
    ON CONFLICT DO NOTHING";

pub struct Relay {
    pub pool: Pool,
    pub http: Http,
    /// The path of the webhooks at the receiver.
    pub path: &'static str,
    /// Whether the process dies between the receiver's answer and the receipt's record (for a test in main.rs).
    pub dies: bool,
}

impl Deliver for Relay {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        // If an earlier attempt has recorded the receipt, the event is not sent again.
        if self.is_received(event).await? {
            return Ok(Acked::ByWorker);
        }
        let (key, body) = (event.delivery_key.as_str(), event.payload.as_str());
        let ended = self.http.post(self.path, key, body).await;
        if self.dies {
            die();
        }
        // Any status but 410 may come from a faulty deployment of the receiver, so it is retried.
        let answer = ended.of_event(event, &[StatusCode::GONE])?;
        self.record(event, &answer).await?;
        Ok(Acked::ByWorker)
    }
}

impl Relay {
    async fn is_received(&self, event: &Event) -> Result<bool, Error> {
        let client = self.pool.get().await?;
        let row = client.query_one(RECEIVED, &[&event.delivery_key]).await?;
        Ok(row.try_get(0)?)
    }

    async fn record(&self, event: &Event, answer: &str) -> Result<(), Error> {
        let client = self.pool.get().await?;
        let (key, id, attempt) = (&event.delivery_key, &event.event_id, &event.attempt);
        client.execute(RECORD, &[key, id, attempt, &answer]).await?;
        Ok(())
    }
}
