//! The janitor: sweeps that nobody's failure stops, a procedure that commits between batches, what is shown of
//! both, and the background worker over real clusters that are killed, promoted, filled and shut down.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod all;
mod capacity;
mod cron;
mod databases;
mod due;
mod dying;
mod extension;
mod failing;
mod lock_timeout;
mod owners;
mod poison;
mod serving;
mod settings;
mod standby;
mod status;
mod troubles;
mod world;

use pg_once_tests::{playground, waiting};
