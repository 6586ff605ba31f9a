//! Tests of the client against a real server. `PG_ONCE_URL` names the database and a superuser. If that URL leads
//! through a pooler in transaction mode, `PG_ONCE_DIRECT_URL` names the same database without the pooler, for tests
//! that need a session of their own (`support::directly`).
//!
//! With `PG_ONCE_DRIVER=sqlx` the calls of the extension go over sqlx's pool (`support::Pool`).
//!
//! Failures are real: a terminated backend, a connection cut between the commit and its answer, a server that stops
//! answering. To see an expired lease, most tests use a session whose clock is ahead; they do not sleep.

// A test may panic, and its name is its documentation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod act;
mod action;
#[cfg(feature = "axum")]
mod axum;
mod billing;
mod cancel;
mod completer;
mod conformance;
mod errors;
mod executors;
mod fail;
mod http;
mod inbox;
mod job;
mod lost_answers;
mod machine;
mod order_service;
mod outbox;
mod outbox_worker;
mod proxy;
mod redirects;
mod run;
mod shards;
mod step_events;
mod support;
mod teardown;
mod teardown_worker;
mod trouble;
mod wait;
mod whose_key;
