//! Undoes one step of an aborted checkout.
//!
//! Invariant: before [`Undoer`] undoes a call, it asks whether the call was made, because a compensation is emitted for
//! every call that may have been made. A call that is not found may still arrive, so it is looked up again later. A
//! compensation is delivered at least once, so the refund or cancellation sends the event's delivery key.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Error, Event, Undelivered};
use serde_json::json;

use crate::checkout::{CHARGES, SHIPMENTS, Undo};
use crate::common::foreign::NONE;
use crate::common::http::{Ended, Http};

/// An event that is delivered twice adds one row.
const UNDONE: &str =
    "INSERT INTO undone (key, step, what) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";

/// Whether the event was emitted at least $2 seconds ago. $1, the time of the emit, is of the database's clock, too.
const IS_OLDER: &str = "SELECT clock_timestamp() - $1::timestamptz >= make_interval(secs => $2)";

/// How long after the abort an unanswered call may still arrive.
const ARRIVES_LATE: Duration = Duration::from_secs(3);

pub const REFUNDS: &str = "/refunds";
pub const CANCELLATIONS: &str = "/cancellations";

pub struct Undoer {
    pub pool: Pool,
    pub http: Http,
}

impl Deliver for Undoer {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let undo: Undo = event.payload.parse().map_err(Undelivered::never)?;
        let (made_at, undone_at) = match undo.step.as_str() {
            "charge" => (CHARGES, REFUNDS),
            "ship" => (SHIPMENTS, CANCELLATIONS),
            step => return Err(Undelivered::never(format!("nothing undoes {step}"))),
        };
        let settled = self.is_settled(event).await?;
        let what = match self.http.look(made_at, &undo.made_with).await {
            Ended::Done(found) if found == NONE && !settled => {
                let reason = "the call may still arrive";
                return Err(Undelivered::later(reason, ARRIVES_LATE));
            }
            Ended::Done(found) if found == NONE => "nothing was made".to_owned(),
            looked => {
                let made = looked.of_event(event, &[])?;
                let body = json!({"order": undo.order, "undoes": made}).to_string();
                let ended = self.http.post(undone_at, &event.delivery_key, body).await;
                ended.of_event(event, &[])?
            }
        };
        let client = self.pool.get().await?;
        client
            .execute(UNDONE, &[&undo.order, &undo.step, &what])
            .await?;
        Ok(Acked::ByWorker)
    }
}

impl Undoer {
    /// Whether it is too late for the call to arrive. `deliver` asks this first and looks the call up second. In the
    /// other order, the call could arrive between the lookup and this question, and would never be undone.
    async fn is_settled(&self, event: &Event) -> Result<bool, Error> {
        let client = self.pool.get().await?;
        let late = ARRIVES_LATE.as_secs_f64();
        let row = client
            .query_one(IS_OLDER, &[&event.emitted_at, &late])
            .await?;
        Ok(row.try_get(0)?)
    }
}
