//! The outbox where deliveries fail: nacks, leases that ran out, retries, dead letters, redrives; the order of a
//! key through all of it.
//!
//! Events go by names here (their payloads), and time is pretended with `once.fake_now`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bounds;
mod dead;
mod expiry;
mod nacks;
mod operate;
mod order;
mod races;
mod refusals;
mod storm;

use pg_once_tests::{playground, stage, waiting};
