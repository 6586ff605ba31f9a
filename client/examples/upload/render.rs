//! Owns the job: a rendition of an upload, made by a service that charges for each rendition.
//!
//! Invariant: each request to the service has the event's delivery key, so a job that is run again after
//! a crash gets the rendition that was made already.

use deadpool_postgres::Pool;
use pg_once::{Acked, Deliver, Error, Event, OpenTransaction, Undelivered};
use reqwest::StatusCode;
use serde::Deserialize;

use crate::common::http::Http;
use crate::common::worker::die;

const DONE: &str =
    "UPDATE upload SET state = 'rendered', rendition = $3 WHERE object = $1 AND etag = $2";
const FAILED: &str = "UPDATE upload SET state = 'failed' WHERE object = $1 AND etag = $2";

pub const PATH: &str = "/renditions";

#[derive(Deserialize)]
struct Job {
    object: String,
    etag: String,
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

pub struct Renderer {
    pub pool: Pool,
    pub http: Http,
    /// Whether the process dies between the rendition and its record (for a test in main.rs).
    pub dies: bool,
}

impl Deliver for Renderer {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let job: Job = event.payload.parse().map_err(Undelivered::never)?;
        let (key, body) = (event.delivery_key.as_str(), event.payload.as_str());
        let ended = self.http.post(PATH, key, body).await;
        if self.dies {
            die();
        }
        // 415: the object is no picture, so a retry is pointless.
        let answer = ended.of_event(event, &[StatusCode::UNSUPPORTED_MEDIA_TYPE])?;
        let made: Made =
            serde_json::from_str(&answer).map_err(|error| Undelivered::retry("answer", error))?;
        let client = self.pool.get().await?;
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&job.object, &job.etag, &made.id];
        client.execute(DONE, &row).await?;
        Ok(Acked::ByWorker)
    }

    async fn dead(
        &self,
        transaction: &OpenTransaction,
        event: &Event,
        _: &Undelivered,
    ) -> Result<(), Error> {
        if let Ok(job) = event.payload.parse::<Job>() {
            transaction
                .execute(FAILED, &[&job.object, &job.etag])
                .await?;
        }
        Ok(())
    }
}
