//! End-to-end tests of keys over real connections, one module for each theme.
//!
//! One binary and one cluster for all of them, a database of its own for each test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abandoned;
mod bad_input;
mod fingerprints;
mod ids;
mod inspect;
mod intake;
mod ledger;
mod lifetimes;
mod limits;
mod lowered;
mod outcomes;
mod owners;
mod payloads;
mod repeats;
mod roles;
mod scopes;
mod shards;
mod steps;
mod twice;
mod verdicts;

use pg_once_tests::{playground, waiting};
