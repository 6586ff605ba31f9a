//! Lists the failed attempts at an event, and the dead letters; redrives or discards dead letters.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::Subscriber;
use crate::executor::{of_row, only, value};
use crate::{Error, Executor, Json};

const DELIVERIES: &str = "SELECT * FROM once.outbox_deliveries(topic => $1, subscriber => $2, \
                          event_id => $3)";
const DEAD: &str = "SELECT * FROM once.outbox_dead(topic => $1, subscriber => $2, max => $3)";
const REDRIVE: &str = "SELECT once.outbox_redrive(topic => $1, subscriber => $2, max => $3, \
                       event_ids => $4)";
const DISCARD: &str = "SELECT once.outbox_discard(topic => $1, subscriber => $2, event_ids => $3)";

/// A failed attempt to deliver an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDelivery {
    /// The number of the attempt; the first attempt, and the first after a redrive, is 1.
    pub attempt: i32,
    /// When it failed.
    pub at: SystemTime,
    /// The `kind` of the nack; `expired` if the lease expired.
    pub kind: String,
    /// What went wrong.
    pub error: Option<String>,
}

/// An event that is not retried: its attempts are used up, or a nack had the kind `never`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The event.
    pub event_id: i64,
    /// How many attempts failed since the emit or the last redrive.
    pub attempts: i32,
    /// When it died.
    pub died_at: SystemTime,
    /// The kind of the last failure: the `kind` of the nack, or `expired` if the lease expired.
    pub kind: String,
    /// What went wrong.
    pub error: Option<String>,
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
    /// Lists the failed attempts to deliver an event, the oldest first. After an ack they are kept for at least
    /// `max_lease_life`. If the event's dead letter is discarded or expires, they are deleted. A redrive keeps them.
    ///
    /// # Errors
    /// `42704` if there is no such topic or subscriber; `42501` if the topic has another owner.
    pub async fn deliveries<E: Executor>(
        &self,
        exec: &E,
        event_id: i64,
    ) -> Result<Vec<FailedDelivery>, Error> {
        let own = [(&event_id as _, Type::INT8)];
        let rows = self.rows(exec, DELIVERIES, &own).await?;
        rows.iter().map(FailedDelivery::of_row).collect()
    }

    /// Lists up to `max` (1 to 10000) dead letters, the earliest `died_at` first. Omits those whose `dead_for` is over.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_batch.rs"));
    /// # fn main() { with_batch(async |pool, subscriber, batch| {
    /// use pg_once::NackOptions;
    ///
    /// batch.nack(&pool, None, &NackOptions::never().error("no such address")).await?;
    /// let dead = subscriber.dead(&pool, 100).await?;
    /// assert_eq!((dead.len(), dead[0].kind.as_str()), (1, "never"));
    /// // The address is corrected: redrive the event. Attempts count from 1 again; the delivery key stays.
    /// assert_eq!(subscriber.redrive(&pool, 100, Some(&[dead[0].event_id])).await?, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Subscriber::deliveries`]; `22023` for a bad argument.
    pub async fn dead<E: Executor>(&self, exec: &E, max: i32) -> Result<Vec<DeadLetter>, Error> {
        let own = [(&max as _, Type::INT4)];
        let rows = self.rows(exec, DEAD, &own).await?;
        rows.iter().map(DeadLetter::of_row).collect()
    }

    /// Makes up to `max` (1 to 10000) dead letters due again, the earliest `died_at` first. If `event_ids` is given,
    /// redrives only these. Returns how many it redrove. Skips events that are not dead, and locked letters.
    ///
    /// # Errors
    /// As [`Subscriber::dead`]; `25006` in a read-only transaction.
    pub async fn redrive<E: Executor>(
        &self,
        exec: &E,
        max: i32,
        event_ids: Option<&[i64]>,
    ) -> Result<i32, Error> {
        let own = [(&max as _, Type::INT4), (&event_ids as _, Type::INT8_ARRAY)];
        value(&only(self.rows(exec, REDRIVE, &own).await?)?)
    }

    /// Deletes these dead letters for good, with their failed attempts; returns the number of deleted letters. Skips
    /// events that are not dead.
    ///
    /// # Errors
    /// As [`Subscriber::deliveries`]; `25006` in a read-only transaction.
    pub async fn discard<E: Executor>(&self, exec: &E, event_ids: &[i64]) -> Result<i32, Error> {
        let own = [(&event_ids as _, Type::INT8_ARRAY)];
        value(&only(self.rows(exec, DISCARD, &own).await?)?)
    }
}

of_row!(FailedDelivery: attempt, at, kind, error);
of_row!(DeadLetter:
    event_id, attempts, died_at, kind, error, order_key, payload, headers, emitted_at);
