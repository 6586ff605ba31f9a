//! Races over one key: whoever loses learns so at once, and nothing happens twice.
//!
//! Where the contract lets a call wait, the wait is seen in the server before the other side goes on;
//! nothing here depends on a sleep.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abandoned;
mod claims;
mod fences;
mod grants;
mod others;
mod told_leases;

use pg_once_tests::{playground, waiting};
