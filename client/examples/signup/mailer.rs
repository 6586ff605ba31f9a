//! Sends one mail, and marks a user whose mail cannot be sent.
//!
//! Invariant: each request to the mail service has the event's delivery key; the service sends one mail
//! for a key. A mail service that does not dedupe sends a second mail if its first answer was lost. With
//! such a service, each mail should say that the reader can ignore a second copy.

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Error, Event, OpenTransaction, Undelivered};
use reqwest::StatusCode;
use serde::Deserialize;

use crate::common::http::Http;
use crate::common::worker::die;

const SENT: &str = "UPDATE app_user SET mail = 'sent' WHERE id = $1";
const UNDELIVERABLE: &str = "UPDATE app_user SET mail = 'undeliverable' WHERE id = $1";

pub const PATH: &str = "/mails";

#[derive(Deserialize)]
struct Welcome {
    user: i64,
}

pub struct Mailer {
    pub pool: Pool,
    pub http: Http,
    /// Whether the process dies between the mail and its record (for a test in main.rs).
    pub dies: bool,
}

impl Deliver for Mailer {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let welcome: Welcome = event.payload.parse().map_err(Undelivered::never)?;
        let (key, body) = (event.delivery_key.as_str(), event.payload.as_str());
        let ended = self.http.post(PATH, key, body).await;
        if self.dies {
            die();
        }
        // 422: there is no such mailbox, so a retry is pointless.
        ended.of_event(event, &[StatusCode::UNPROCESSABLE_ENTITY])?;
        let client = self.pool.get().await?;
        client.execute(SENT, &[&welcome.user]).await?;
        Ok(Acked::ByWorker)
    }

    /// Marks the user as not reachable by mail, in the transaction that makes the event dead.
    async fn dead(
        &self,
        transaction: &OpenTransaction,
        event: &Event,
        _: &Undelivered,
    ) -> Result<(), Error> {
        if let Ok(welcome) = event.payload.parse::<Welcome>() {
            transaction.execute(UNDELIVERABLE, &[&welcome.user]).await?;
        }
        Ok(())
    }
}
