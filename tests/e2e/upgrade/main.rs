//! `ALTER EXTENSION pg_once UPDATE`: an upgraded database is the same as a new one, and what was stored, granted and
//! prepared before goes on.
//!
//! From the version that is here to a made-up next one (tests/upgrade/README.md), both with the library that is here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod catalog;
#[path = "../nothing_lost/content.rs"]
mod content;
mod data;
#[path = "../janitor/world.rs"]
mod janitor;
mod next;
mod rights;
mod sessions;
mod symbols;

use pg_once_tests::playground;
