//! Works off a topic: takes a batch, hands its events one after another to a handler, and acks or
//! nacks each.
//!
//! Invariant: the batch's lease is extended while its events are handled; when it is lost, what is
//! left of it is dropped. Behind a failed event of an order_key nothing of that key is handled.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use pg_once::{Autocommit, Batch, Event, NackOptions, Subscriber};

/// Looks again so soon when nothing was due.
const IDLE: Duration = Duration::from_millis(60);
const BATCH: i32 = 8;

/// What is done with an event.
pub trait Handler {
    /// True: it was acked in a transaction of the handler's own; false: it is to be acked.
    async fn handle(&self, batch: &Batch, event: &Event) -> Result<bool>;

    /// Says that it failed. The handler may end something of its own in the same transaction.
    async fn failed(&self, batch: &Batch, event: &Event, error: &str) -> Result<()>;
}

/// For ever.
pub async fn run<E: Autocommit, H: Handler>(
    exec: &E,
    subscriber: &Subscriber,
    lease: Duration,
    handler: &H,
) {
    loop {
        match subscriber.take(exec, BATCH, Some(lease)).await {
            Ok(Some(batch)) => {
                tokio::select! {
                    ended = serve(exec, &batch, handler) => ended.unwrap_or_else(|error| {
                        // Its connection was cut, or the lease is lost: the events come again.
                        eprintln!("{subscriber:?}: {error:#}");
                    }),
                    () = keep(exec, &batch, lease) => {}
                }
            }
            Ok(None) => tokio::time::sleep(IDLE).await,
            Err(error) => {
                eprintln!("{subscriber:?}: {error}");
                tokio::time::sleep(IDLE).await;
            }
        }
    }
}

async fn serve<E: Autocommit, H: Handler>(exec: &E, batch: &Batch, handler: &H) -> Result<()> {
    let mut failed = HashSet::new();
    for event in &batch.events {
        if event.order_key.is_some() && failed.contains(&event.order_key) {
            continue;
        }
        match handler.handle(batch, event).await {
            Ok(true) => {}
            Ok(false) => {
                batch.ack(exec, Some(&[event.event_id])).await?;
            }
            Err(error) => {
                let error = format!("{error:#}");
                handler.failed(batch, event, &error).await?;
                failed.insert(event.order_key.clone());
            }
        }
    }
    Ok(())
}

/// Ends when the lease is lost.
async fn keep<E: Autocommit>(exec: &E, batch: &Batch, lease: Duration) {
    loop {
        tokio::time::sleep(lease / 3).await;
        match batch.extend(exec, None).await {
            Err(error) if !error.is_retryable() => return,
            _ => {}
        }
    }
}

/// A plain nack.
pub async fn nack<E: Autocommit>(
    exec: &E,
    batch: &Batch,
    event: &Event,
    error: &str,
) -> Result<()> {
    let options = NackOptions::new().error(error);
    batch.nack(exec, Some(&[event.event_id]), &options).await?;
    Ok(())
}
