//! The relay: sends each receipt as a webhook, with its delivery key as the Idempotency-Key.
//!
//! Invariant: at least once on the wire, once by the delivery key, which is the same on every attempt.

use anyhow::Result;
use pg_once::{Batch, Event, Topic};

use super::RECEIPTS;
use super::shop::TOPIC;
use crate::mortal::{Mortal, Point};
use crate::relay::{self, Handler};
use crate::{Service, crash};

const AFTER: &[Point] = &[
    ("once.outbox_take", "after_take"),
    ("once.outbox_ack", "after_ack"),
    ("once.outbox_nack", "after_nack"),
];

struct Webhook<'a> {
    service: &'a Service,
    exec: Mortal<'a>,
}

impl Handler for Webhook<'_> {
    async fn handle(&self, _: &Batch, event: &Event) -> Result<bool> {
        let body = event.payload.as_str().to_owned();
        let sent = self
            .service
            .outside
            .post(RECEIPTS, Some(&event.delivery_key), body)
            .await;
        crash::point("after_send");
        sent.map(|_| false)
    }

    async fn failed(&self, batch: &Batch, event: &Event, error: &str) -> Result<()> {
        relay::nack(&self.exec, batch, event, error).await
    }
}

pub async fn run(service: &Service) {
    let exec = Mortal {
        pool: &service.pool,
        before: &[],
        after: AFTER,
    };
    let webhook = Webhook { service, exec };
    let receipts = Topic::new(TOPIC).default_subscriber();
    relay::run(&exec, &receipts, service.lease, &webhook).await;
}
