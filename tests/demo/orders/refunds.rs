//! The worker that carries refunds from the outbox to a bank that would pay a repeated one twice.
//!
//! Invariant: a delivery has one attempt. Whatever becomes of its answer, nothing is sent again until the
//! bank's ledger has been read.

use std::time::Duration;

use anyhow::{Result, bail};
use pg_once::{NackOptions, Topic};
use serde::Deserialize;
use serde_json::json;
use tokio_postgres::Client;

use super::bank_process::Bank;
use super::caller::Caller;

pub const TOPIC: &str = "select once.topic_set('refunds', '{}');
    select once.subscriber_set('refunds', 'default', '{\"max_attempts\": 1}')";

const TIMEOUT: Duration = Duration::from_millis(1000);
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1";

/// The refund's key, by which the bank's ledger names it, and the order that it is for.
#[derive(Deserialize)]
struct Refund {
    reference: String,
    order: String,
}

pub struct Carrier {
    bank: Caller,
    nowhere: Caller,
    pub sent: usize,
}

impl Carrier {
    pub fn new(bank: &Bank) -> Self {
        Self {
            bank: Caller::new(&bank.url(), TIMEOUT),
            nowhere: Caller::new(NOWHERE, TIMEOUT),
            sent: 0,
        }
    }

    /// Delivers what is due; what is not answered is dead.
    pub async fn carry(&mut self, worker: &Client) -> Result<()> {
        let refunds = Topic::new("refunds").default_subscriber();
        while let Some(batch) = refunds.take(worker, 1, None).await? {
            for event in &batch.events {
                match self.send(&event.payload.parse()?).await {
                    Ok(()) => {
                        batch.ack(worker, None).await?;
                    }
                    Err(error) => {
                        let failed = NackOptions::new().error(format!("{error:#}"));
                        batch.nack(worker, None, &failed).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The first does not reach the bank, and the second's answer gets lost: both look the same from here.
    async fn send(&mut self, refund: &Refund) -> Result<()> {
        self.sent += 1;
        let bank = match self.sent {
            1 => &self.nowhere,
            _ => &self.bank,
        };
        let body = json!({ "reference": refund.order, "amount_cents": 0, "customer": "" });
        let key = Some(refund.reference.as_str());
        let answer = bank.post("/reversals", key, body.to_string()).await;
        if self.sent == 2 {
            bail!("the answer was lost");
        }
        answer.map(drop)
    }
}
