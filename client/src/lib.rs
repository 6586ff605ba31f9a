//! Client for the pg_once PostgreSQL extension: a repeated request takes effect once and gets the same answer.
//!
//! A [`Scope`] names an operation, a [`Key`] one logical request in it. [`Key::run`] does everything: claim, work,
//! stored answer, replay. [`Scope::completer`] finishes abandoned requests, whose clients have not retried.
//!
//! A [`Machine`] declares the states and moves of one of your tables; a [`MachineRow`] is one row of this table.
//! [`MachineRow::transition`] makes one declared move. [`MachineRow::claim`] leases the row for work that a crash can
//! interrupt, and [`MachineRow::job`] runs such work item by item. [`Cancel::teardown`] refunds the row's items and
//! calls your code that deletes their artifacts. The row becomes `cancelled` only after that.
//!
//! The events of a [`Topic`] commit with your own writes: call [`Topic::emit`] in your transaction. A
//! [`Subscriber::worker`] delivers them. An [`Inbox`] is for the receiver: each message is handled once, however often
//! it is delivered.
//!
//! [`Shards`] spreads tenants over many databases. Each single call that the runners and workers make is also a method
//! that takes the caller's [`Executor`]: a pool, a connection, or the caller's open transaction.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
//! # fn main() { with_database(async |pool, idempotency_key| {
//! use pg_once::{Done, Json, Outcome, Response, Scope};
//!
//! let order = serde_json::json!({"item": "book", "amount_cents": 1200});
//! let outcome = Scope::new("orders.create")
//!     .key(&idempotency_key)
//!     .run(&pool)
//!     .request(Json::of(&order)?)
//!     .run(|lease| {
//!         let pool = pool.clone();
//!         async move {
//!             let mut client = pool.get().await?;
//!             let transaction = client.transaction().await?;
//!             let answer = Response::new(201).with_body("made")?;
//!             // ... INSERT INTO orders, in the same transaction as the answer ...
//!             lease.complete(&transaction, &answer).await?;
//!             transaction.commit().await?;
//!             Ok(Done::Stored(answer))
//!         }
//!     })
//!     .await?;
//! assert!(matches!(outcome, Outcome::Ran(answer) if answer.code == 201));
//! # Ok(()) }) }
//! ```
//!
//! # Over sqlx
//!
//! With the feature `sqlx` an `sqlx::PgPool` is an executor, too; wrap a connection or transaction of sqlx in `Sqlx`.
//! sqlx names its prepared statements and keeps them. So a pooler in transaction mode must track prepared statements
//! (PgBouncer from 1.21, with `max_prepared_statements`). The outbox worker and the runners of jobs and actions need a
//! pool of deadpool.
//!
//! # When a future is dropped
//!
//! Every future here may be dropped at any await: by a timeout, a `select!`, a client that hangs up. If a call has been
//! sent by then, the server may or may not carry it out, as when the network loses an answer. Repeating the call has no
//! second effect (an emit needs its [`dedupe_key`](EmitOptions::dedupe_key) for that). If the dropped call took a
//! lease, only the same [holder](ClaimOptions::holder) can claim again before the lease expires. The helpers
//! ([`Key::run`], the workers) end their leases when their work ends, fails or panics, and when their stop signal
//! comes. When the helpers are dropped, their leases expire.
//!
//! # The pool
//!
//! A worker needs the connections that its running handlers hold, and one or two more connections. A lease is lost if
//! its heartbeat waits too long for a connection.
//!
//! A call may be dropped, or time out ([`Backoff::call_timeout`]). If it has waited a second by then, its pooled
//! connection is closed. So the pool drops connections to a vanished server (a failover, a firewall) one by one.
//! `tcp_user_timeout` and `keepalives_idle` in `tokio_postgres::Config` close every such connection, also a handler's.
//! Give the role a `statement_timeout` a little below the `call_timeout`, so that the server cancels long calls.
//! Without `target_session_attrs=read-write` the pool may keep connections to a standby after a failover (`25006`).

#![forbid(unsafe_code)]

mod action;
#[cfg(feature = "axum")]
pub mod axum;
mod cancel;
mod error;
mod executor;
pub mod http;
mod inbox;
mod interval;
mod json;
mod key;
mod machine;
mod options;
mod outbox;
mod retry;
mod run;
mod shards;
#[cfg(feature = "sqlx")]
mod sqlx;

pub use action::{Action, ActionClaim, ActionEnd, ActionOptions, ActionRecord, Extended, Released};
pub use cancel::{
    Amount, Cancel, CancelFinish, CancelRequest, Cancelled, CleanupItem, PendingCancel,
    RefundMismatch, Refunded, Teardown,
};
pub use error::{BoxError, Error, Kind};
pub use executor::{Args, Autocommit, Executor, Row};
pub use inbox::{Accepted, Barrier, Handled, Inbox, Operation};
pub use json::Json;
pub use key::{
    Abandoned, Claim, ClaimOptions, Key, KeyRecord, KeyStatus, Lease, OnExpiry, Response, Scope,
    ScopeOptions, Step, StepEnd, StepEvent, StepEvents, Verdict,
};
pub use machine::{
    Finding, Machine, MachineRow, MovedRow, Reason, RecordedMove, Transition, Transitioned,
};
pub use outbox::{
    Acked, Batch, DeadLetter, EmitOptions, Emitted, Event, FailedDelivery, NackOptions, Nacked,
    PendingEvent, Subscriber, SubscriberOptions, Topic, TopicOptions,
};
pub use retry::Backoff;
pub use run::{
    Acted, ActionRunner, Begin, Complete, Completed, Completer, Completion, Deliver, Delivered,
    Done, Failure, Job, JobFailure, JobOutcome, JobRunner, OpenRunner, OpenTransaction,
    OutboxWorker, Outcome, Runner, TeardownWorker, TestMode, TornDown, Undelivered, Waker,
};
pub use shards::Shards;
#[cfg(feature = "sqlx")]
pub use sqlx::Sqlx;
