//! Owns what a job is to its runner: items that are worked off one by one, and a way to undo.
//!
//! Invariant: the methods here are all that the caller writes. When each of them runs, in which
//! transaction, and what happens when the lease is lost or the job is cancelled, is the runner's
//! ([`JobRunner`]).

mod items;
mod outcome;
mod runner;
mod watch;

use std::future::Future;

use deadpool_postgres::Transaction;

use crate::error::BoxError;
use crate::{Action, CleanupItem, Json};

pub use outcome::{JobFailure, JobOutcome};
pub use runner::JobRunner;

/// A job whose items cost something outside the database, and which may be cancelled or die at any
/// moment.
///
/// The runner works it off so:
///
/// 1. [`next`](Job::next) finds an item that is not done, in the database: nothing that an earlier
///    holder has done is done again.
/// 2. [`work`](Job::work) does what costs: the foreign call, the artifact. No transaction is open.
/// 3. [`save`](Job::save) writes down that the item is done, in a transaction that commits only
///    while the lease is held and the job is not cancelled.
/// 4. When there is no next item, [`finish`](Job::finish) makes the job's last writes in the
///    transaction that ends the action, with [`result`](Job::result) in the row itself.
///
/// An item's row is there, with the name of its artifact, before the item is worked on; else nobody
/// would find the artifact of a worker that died. What attempts make under one name they would
/// delete for each other: put the action's token into the name ([`Action::token`]), under something
/// that the item's row names, such as a directory.
///
/// Implement the methods as `async fn`.
pub trait Job: Send + Sync {
    /// An item to work on.
    type Item: Send + Sync;
    /// What the work on an item has made, for [`Job::save`] to write down.
    type Made: Send + Sync;

    /// An item that is not done yet; `None` if all are. Asked after each item, and again after the
    /// database failed: only the database knows what is done.
    fn next(
        &mut self,
        action: &Action,
    ) -> impl Future<Output = Result<Option<Self::Item>, JobFailure>> + Send;

    /// Does the item's work outside the database. An earlier attempt may have begun it and left
    /// something behind. The future is dropped when the lease is lost.
    fn work(
        &mut self,
        action: &Action,
        item: &Self::Item,
    ) -> impl Future<Output = Result<Self::Made, JobFailure>> + Send;

    /// Writes down that the item is done, first the item, then what it costs. After a lost race it
    /// runs again, in a new transaction.
    fn save(
        &mut self,
        transaction: &Transaction<'_>,
        item: &Self::Item,
        made: &Self::Made,
    ) -> impl Future<Output = Result<(), JobFailure>> + Send;

    /// Other columns of the job's row to set when it is finished: a JSON object.
    fn result(&mut self) -> impl Future<Output = Result<Option<Json>, JobFailure>> + Send {
        async { Ok(None) }
    }

    /// The last writes of a job that succeeded. After a lost race it runs again, in a new
    /// transaction.
    fn finish(
        &mut self,
        transaction: &Transaction<'_>,
    ) -> impl Future<Output = Result<(), JobFailure>> + Send {
        let _ = transaction;
        async { Ok(()) }
    }

    /// The lease is lost and this item was at hand: deletes what this attempt has made of it, and
    /// only that. Others may be at the item by now.
    fn discard(&mut self, action: &Action, item: &Self::Item) -> impl Future<Output = ()> + Send;

    /// The job is cancelled: deletes the artifacts of these items, of whatever attempt. What is not
    /// there is deleted.
    fn clean(&self, items: Vec<CleanupItem>) -> impl Future<Output = Result<(), BoxError>> + Send;
}
