//! Handles notices that an object was uploaded: each change of its content gets one job, however many notices arrive.
//!
//! Stores send a notice at least once. For a repeated message the inbox returns the first verdict; a new message about
//! the same content changes no row, and emits nothing. If notices may overtake each other, keep the store's sequence
//! number in the row, and let only a notice with a greater number change the row.
//!
//! `// once` marks the lines that make a consumer handle each message once. The lines that emit the job have no mark.
//!
//! The job is an event. Invariant: the message, the upload's row and this event commit together.

use deadpool_postgres::Pool;
use pg_once::{EmitOptions, Error, Handled, Inbox, Json, Topic}; // once
use serde::{Deserialize, Serialize};
use serde_json::json;

pub const TABLES: &str = "CREATE TABLE upload (object text PRIMARY KEY, etag text NOT NULL, \
    state text NOT NULL DEFAULT 'uploaded', rendition text)";
const INSERT: &str = "INSERT INTO upload (object, etag) VALUES ($1, $2) ON CONFLICT (object) DO UPDATE \
    SET etag = $2, state = 'uploaded', rendition = NULL WHERE upload.etag <> $2";

/// The store's message about an upload.
#[derive(Clone, Deserialize)]
pub struct Notice {
    pub message_id: String,
    pub object: String,
    pub etag: String,
}

/// The verdict on a notice.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Verdict {
    /// The job that this notice made.
    pub job: Option<i64>,
}

#[derive(Clone)]
pub struct Uploads {
    pub pool: Pool,
    pub inbox: Inbox, // once
    pub jobs: Topic,
}

impl Uploads {
    /// Handles a notice. Call this in the endpoint that the store calls, and answer 2xx only after `Ok`.
    pub async fn uploaded(&self, notice: &Notice) -> Result<Handled<Verdict>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let Notice {
            message_id,
            object,
            etag,
        } = notice;
        let note = async || {
            if transaction.execute(INSERT, &[object, etag]).await? == 0 {
                return Ok(Verdict { job: None });
            }
            let job = Json::of(&json!({"object": object, "etag": etag}))?;
            let emitted = self
                .jobs
                .emit(&transaction, &job, &EmitOptions::new())
                .await?;
            Ok::<_, Error>(Verdict {
                job: Some(emitted.event_id),
            })
        };
        let handled = self.inbox.once(&transaction, message_id, note).await?; // once
        transaction.commit().await?;
        Ok(handled)
    }
}
