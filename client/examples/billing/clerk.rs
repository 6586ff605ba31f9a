//! Closes a billing: each closing has one key, one registration at the tax office and one invoice. The lines that
//! idempotency adds are marked `// once`. docs/how-to/billing.md shows this program.

use deadpool_postgres::Pool;
use pg_once::{Acted, Error, JobFailure, Json, Machine, OpenTransaction}; // once
use serde_json::json;
use uuid::Uuid;

use crate::common::http::{Ended, Http};

pub const PATH: &str = "/registrations";

const BILLING: &str = "SELECT total::text, invoices FROM billing WHERE id = $1";
const INVOICE: &str =
    "INSERT INTO invoice (billing_id, total, fiscal_no) VALUES ($1, $3::text::numeric, $2)";

pub struct Clerk {
    pub pool: Pool,
    pub machine: Machine, // once
    pub office: Http,
}

impl Clerk {
    pub async fn close(&self, id: Uuid) -> Result<Acted, Error> {
        let close = self.machine.row(id).action("close").requester("clerk"); // once
        close.run(&self.pool, |_, tx| self.invoice(id, tx)).await // once
    }

    /// The invoice commits with the end of the action, or neither does.
    async fn invoice(&self, id: Uuid, tx: OpenTransaction) -> Result<Option<Json>, JobFailure> {
        let billing = tx.query_one(BILLING, &[&id]).await?;
        // The office registers once for a key, which stays the same until a closing succeeds. A failed attempt may have
        // registered its total already, so the next attempt must send the same total. If the total can change, store it
        // before the first attempt, and let each attempt send the stored total.
        let (made, total): (i32, &str) = (billing.try_get("invoices")?, billing.try_get("total")?);
        let number = self.register(&format!("{id}/{made}"), total).await?;
        tx.execute(INVOICE, &[&id, &number, &total]).await?;
        Ok(Some(json!({"invoices": made + 1}).into())) // once
    }
}

impl Clerk {
    async fn register(&self, key: &str, total: &str) -> Result<String, JobFailure> {
        let body = json!({"total": total}).to_string();
        match self.office.post(PATH, key, &body).await {
            Ended::Done(body) => {
                let registered: serde_json::Value = serde_json::from_str(&body)?;
                Ok(registered["id"].as_str().unwrap_or_default().to_owned())
            }
            // Puts the billing back to `open`; the next attempt sends the same key.
            Ended::Refused(status, _) => Err(JobFailure::release(status)),
            Ended::NoAnswer(_, error) => Err(JobFailure::release(error)),
        }
    }
}
