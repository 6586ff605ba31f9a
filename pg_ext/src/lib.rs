//! pg_once: idempotency keys, state machines, a transactional outbox and teardowns. This file is the table of contents.
//!
//! The modules from shard to role are the nouns. Each has a file in `sql/` with its SQL names, arguments and comments.
//! Exceptions: `guard`, machine_check and machine_assert are in machine.sql, action_adopt in action.sql, topic_list in
//! outbox.sql, doctor and verify in metrics.sql. `exports.rs` connects each C symbol to its function, and so imports
//! every noun. The server also calls `janitor/worker` (the background worker) and `guard` (triggers on users' tables).
//!
//! A noun imports only nouns listed before it, and shared mechanisms; a shared mechanism imports no noun
//! (`tests/e2e/layers.rs`). Two stacks are built on shard and outbox: one is key and inbox; the other is machine,
//! action, cancel and guard. An action uses key's fingerprints. The janitor, metrics and doctor are above both stacks.
#![allow(
    clippy::missing_safety_doc,
    reason = "safety is said at each unsafe block"
)]

// Nouns, the lowest layer first.

// The part of all keys, messages and sagas that belongs to this database.
mod shard;

// Events that leave the database: emitted, taken, acknowledged, retried.
mod outbox;

// One logical request, one execution: claims, fences, answers that are replayed.
mod key;

// Messages and saga steps that are handled once.
mod inbox;

// The declared states and moves of one of the user's tables, and `transition`. A definition is checked in
// machine/validate.rs; machine_check (doctor/check.rs) compares a stored definition with today's tables.
mod machine;

// Work on one row under a lease.
mod action;

// Teardowns (refunds and clean-up first, the terminal state last) and cancel_audit.
mod cancel;

// Triggers that refuse undeclared writes. machine_define and machine_drop are here: they change leases and teardowns.
mod guard;

// The sweeps.
mod janitor;

// Numbers for an exporter.
mod metrics;

// Problems and their next steps: doctor, verify, machine_check and machine_assert.
mod doctor;

// Rights of roles.
mod role;

// The C symbols of the SQL functions.
mod exports;

// Shared mechanisms. Errors and arguments:
mod call;
mod error;
mod json;
mod options;
mod raise;
mod settings;
// Rows in and out: answers of functions, the extension's own tables, SQL.
mod row;
mod spi;
mod table;
// The caller, the time, and the incarnation of the database.
mod caller;
mod clock;
mod incarnation;
// Digests: of names, and of a call's arguments (to recognize a repeated call).
mod digest;
// Counts of claims in shared memory, subtransactions, the records of sweep tasks, try-locks.
mod counters;
mod subxact;
mod swept;
mod trylock;

pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../sql/key.sql", name = "key");
pgrx::extension_sql_file!(
    "../sql/incarnation.sql",
    name = "incarnation",
    requires = ["key"]
);
pgrx::extension_sql_file!(
    "../sql/shard.sql",
    name = "shard",
    requires = ["incarnation"]
);
pgrx::extension_sql_file!("../sql/machine.sql", name = "machine", requires = ["shard"]);
pgrx::extension_sql_file!("../sql/action.sql", name = "action", requires = ["machine"]);
pgrx::extension_sql_file!("../sql/cancel.sql", name = "cancel", requires = ["action"]);
pgrx::extension_sql_file!("../sql/outbox.sql", name = "outbox", requires = ["cancel"]);
pgrx::extension_sql_file!("../sql/inbox.sql", name = "inbox", requires = ["outbox"]);
pgrx::extension_sql_file!("../sql/janitor.sql", name = "janitor", requires = ["inbox"]);
pgrx::extension_sql_file!(
    "../sql/metrics.sql",
    name = "metrics",
    requires = ["janitor"]
);
pgrx::extension_sql_file!("../sql/role.sql", name = "role", finalize);

/// Called once by the server when the library is loaded: registers the `once.*` settings, the background worker and the
/// counters.
#[allow(non_snake_case, reason = "the server looks this name up")]
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::register();
    janitor::register_worker();
    counters::register();
}

#[cfg(any(test, feature = "pg_test"))]
#[path = "../../pgrx-tests/inbox.rs"]
mod inbox_tests;
#[cfg(any(test, feature = "pg_test"))]
#[path = "../../pgrx-tests/janitor.rs"]
mod janitor_tests;
#[cfg(any(test, feature = "pg_test"))]
#[path = "../../pgrx-tests/key.rs"]
mod key_tests;
#[cfg(any(test, feature = "pg_test"))]
#[path = "../../pgrx-tests/outbox.rs"]
mod outbox_tests;
#[cfg(any(test, feature = "pg_test"))]
#[path = "../../pgrx-tests/role.rs"]
mod role_tests;

/// Required by `cargo pgrx test`.
#[cfg(test)]
pub mod pg_test {
    /// Nothing to prepare.
    pub fn setup(_options: Vec<&str>) {}

    /// The tests need no setting of their own.
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec![]
    }
}
