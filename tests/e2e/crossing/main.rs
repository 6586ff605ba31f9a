//! Two services with different roles in one database: whatever one of them tries, it does not read, take, move or
//! stop what is the other's, and no byte of it stands in the refusal.
//!
//! Each noun's own tests (keys/owners, keys/roles, outbox_options/owners, machines/rights) say that
//! its functions ask who owns a scope, topic or machine. Here a service with every right that grant_role has goes
//! after another one that is at work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod borrowed;
mod calls;
mod hijack;
mod mistakes;
mod roles;
mod services;
mod tables;

use pg_once_tests::playground;
