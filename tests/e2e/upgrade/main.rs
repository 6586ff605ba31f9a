//! Upgrades from the first release: what was released (tests/upgrade/) works with the library that is here,
//! before and after `ALTER EXTENSION pg_once UPDATE`, and an upgraded database is the same as a new one.
//!
//! 0.1.0 is made from its own install script, which these tests put beside the present one in the private
//! server; the library is always the one that is here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test fails"
)]

mod catalog;
mod dumps;
mod old_data;
#[path = "../keys/playground.rs"]
mod playground;
mod released;
mod rights;
mod sessions;
mod symbols;
mod tour;
mod worker;
#[path = "../machines/world.rs"]
mod world;
