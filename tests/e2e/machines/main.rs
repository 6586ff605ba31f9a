//! End-to-end tests of machines and actions over real connections, one module for each theme.
//!
//! One binary and one cluster for all of them, a database of its own for each test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adopting;
mod after;
mod bad_input;
mod billing;
mod cases;
mod claim_races;
mod claims;
mod coverage;
mod definitions;
mod definitions_columns;
mod definitions_life;
mod definitions_refund;
mod definitions_rules;
mod definitions_when;
mod direct_moves;
mod drift;
mod hostile_triggers;
mod id_types;
mod ids;
mod lease_ends;
mod nested;
mod partitions;
mod patches;
mod plain_tables;
mod policies;
mod rights;
mod standing;
mod sweep_ends;
mod sweep_meanwhile;
mod sweep_rights;
mod sweeps;
mod transition_many;
mod transition_races;
mod transitions;
mod types;

use pg_once_tests::{machine as world, playground, waiting};
