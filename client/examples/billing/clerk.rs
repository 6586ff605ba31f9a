//! Owns closing a billing: the tax office registers it under a key of its own, and there is one invoice for it. The
//! lines that idempotency costs are marked. docs/how-to/billing.md shows it.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::{Acted, Error, JobFailure, Json, Machine, OpenTransaction}; // once
use serde_json::json;
use uuid::Uuid;

use crate::common::http::{Ended, Http};

/// How soon another clerk may press after this process died.
const LEASE: Duration = Duration::from_secs(1);

pub const PATH: &str = "/registrations";

const MADE: &str = "SELECT invoices FROM billing WHERE id = $1";
const INVOICE: &str = "INSERT INTO invoice (billing_id, total, fiscal_no) \
    SELECT id, total, $2 FROM billing WHERE id = $1";

pub struct Clerk {
    pub pool: Pool,
    pub machine: Machine, // once
    pub office: Http,
}

impl Clerk {
    pub async fn close(&self, id: Uuid) -> Result<Acted, Error> {
        let close = self.machine.row(id).action("close").requester("clerk"); // once
        let work = |_, transaction| self.invoice(id, transaction);
        close.lease(LEASE).run(&self.pool, work).await // once
    }

    /// The invoice commits with the end of the action, or neither does.
    async fn invoice(&self, id: Uuid, open: OpenTransaction) -> Result<Option<Json>, JobFailure> {
        let made = open.query_one(MADE, &[&id]).await?;
        let made: i32 = made.try_get(0)?;
        // The office registers once for a key, which stays the same until the next closing.
        let number = self.register(&format!("{id}/{made}")).await?;
        open.execute(INVOICE, &[&id, &number]).await?;
        Ok(Some(json!({"invoices": made + 1}).into()))
    }
}

impl Clerk {
    async fn register(&self, key: &str) -> Result<String, JobFailure> {
        match self.office.post(PATH, key, "{}").await {
            Ended::Done(body) => {
                let registered: serde_json::Value = serde_json::from_str(&body)?;
                Ok(registered["id"].as_str().unwrap_or_default().to_owned())
            }
            // The billing is open again. Whoever presses next asks with the same key.
            Ended::Refused(status, _) => Err(JobFailure::release(status)),
            Ended::NoAnswer(_, error) => Err(JobFailure::release(error)),
        }
    }
}
