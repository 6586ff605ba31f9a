//! The relay: sends each receipt as a webhook, with its delivery key as the Idempotency-Key.
//!
//! Invariant: at least once on the wire, once by the delivery key, which is the same on every attempt.

use pg_once::{Acked, Deliver, Event, Topic, Undelivered};

use super::RECEIPTS;
use super::shop::TOPIC;
use crate::caller::Caller;
use crate::{Service, crash};

struct Webhook(Caller);

impl Deliver for Webhook {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        crash::point("before_send");
        let body = event.payload.as_str().to_owned();
        let sent = self.0.post(RECEIPTS, Some(&event.delivery_key), body).await;
        crash::point("after_send");
        sent.map(|_| Acked::ByWorker)
            .map_err(|error| Undelivered::retry("webhook", format!("{error:#}")))
    }
}

/// For ever.
pub async fn run(service: &Service) {
    let receipts = Topic::new(TOPIC).default_subscriber();
    service
        .work_off(&receipts, Webhook(service.outside.clone()))
        .await;
}
