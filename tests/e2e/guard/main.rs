//! The guard: whoever writes by hand meets the machine's declaration, and the API's own writes pass.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test fails"
)]

#[path = "../keys/playground.rs"]
mod playground;
#[path = "../waiting.rs"]
mod waiting;
#[path = "../machines/world.rs"]
mod world;
