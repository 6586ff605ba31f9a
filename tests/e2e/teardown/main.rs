//! Teardown of a job that is cancelled while it runs: points come back exactly once, artifacts are gone,
//! `cancelled` is written last, and dying anywhere and starting over comes to the same end.
//!
//! The tables and the machine are those of `sql/examples/batch_job.*`, as a user would copy them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actor;
mod amounts;
mod audit;
mod cases;
mod dump;
mod explorer;
mod finish;
mod killed;
mod pages;
mod policies;
mod prefixes;
mod requests;
mod shapes;
mod shop;
mod stage;
mod storms;

use pg_once_tests::{playground, waiting};
