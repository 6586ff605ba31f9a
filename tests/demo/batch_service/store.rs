//! The artifacts: one file for each item, in a directory that all processes share.
//!
//! Invariant: an artifact's name and bytes follow from its item alone, so making it again changes
//! nothing; deleting one that is not there is success.

use std::io::{ErrorKind, Result};
use std::path::PathBuf;
use std::time::Duration;

use rand::Rng;

/// How long the costly service takes for an item, in milliseconds.
const TAKES_MS: std::ops::Range<u64> = 15..40;

#[derive(Clone)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The name of an item's artifact.
    pub fn name(job: i64, input: &str) -> String {
        format!("{job}-{input}")
    }

    /// Asks the costly service and keeps what it made.
    pub async fn make(&self, name: &str) -> Result<()> {
        let takes = rand::rng().random_range(TAKES_MS);
        tokio::time::sleep(Duration::from_millis(takes)).await;
        // A few bytes: not worth a thread of their own.
        std::fs::write(self.directory.join(name), format!("result of {name}\n"))
    }

    pub fn delete(&self, name: &str) -> Result<()> {
        match std::fs::remove_file(self.directory.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
