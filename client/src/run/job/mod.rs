//! Owns the interface of a job: the work on each item, and the deletion of artifacts.
//!
//! Invariant: the caller writes only the methods of [`Job`]. The runner ([`JobRunner`]) decides when each method runs
//! and in which transaction, and handles a lost lease and a cancellation.

mod items;
mod outcome;
mod runner;

use std::future::Future;

use crate::error::BoxError;
use crate::{Action, CleanupItem, Json, OpenTransaction};

pub use outcome::{JobFailure, JobOutcome};
pub use runner::JobRunner;

/// A job whose items cost something outside the database, and which may be cancelled or die at any moment.
///
/// The runner works in this order:
///
/// 1. [`next`](Job::next) finds in the database an item that is not done. An item that an earlier holder has saved is
///    not repeated.
/// 2. [`work`](Job::work) does the costly part: the foreign call, the artifact. No transaction is open.
/// 3. [`save`](Job::save) records that the item is done, in a transaction that commits only while
///    the lease is held and the job is not cancelled.
/// 4. When there is no next item, [`result`](Job::result) gives values for columns of the row (not id, status, version,
///    cancel flag); then [`finish`](Job::finish) makes the job's last writes in the transaction that ends the action.
///
/// Before the work on an item, commit the item's row with the name of a directory for artifacts. By this name
/// [`clean`](Job::clean) finds the artifacts of a worker that died. In that directory use the token ([`Action::token`])
/// as the artifact's name, because attempts that use the same name would delete each other's artifacts.
///
/// Implement the methods as `async fn`.
pub trait Job: Send + Sync {
    /// An item to work on.
    type Item: Send + Sync;
    /// The result of the work on an item, for [`Job::save`].
    type Made: Send + Sync;

    /// Finds an item that is not done yet; `None` if all items are done. Called at the start, after each item, and
    /// after a lost race or connection, because only the database shows which items are done. The transaction commits
    /// before the work begins: make no foreign call in it.
    fn next(
        &mut self,
        transaction: &OpenTransaction,
        action: &Action,
    ) -> impl Future<Output = Result<Option<Self::Item>, JobFailure>> + Send;

    /// Does the item's work outside the database. An earlier attempt may have begun this work and made artifacts. The
    /// future is dropped when the lease is lost or the job is told to stop.
    fn work(
        &mut self,
        action: &Action,
        item: &Self::Item,
    ) -> impl Future<Output = Result<Self::Made, JobFailure>> + Send;

    /// Marks the item's row as done. If that changed the row, also charges for the item. If the row was done before,
    /// charges nothing. After a lost race the method runs again, in a new transaction.
    fn save(
        &mut self,
        transaction: &OpenTransaction,
        item: &Self::Item,
        made: &Self::Made,
    ) -> impl Future<Output = Result<(), JobFailure>> + Send;

    /// Returns values for columns of the job's row, to be set when the job is finished: a JSON object.
    fn result(&mut self) -> impl Future<Output = Result<Option<Json>, JobFailure>> + Send {
        async { Ok(None) }
    }

    /// Makes the last writes of a finished job. After a lost race or connection this runs again, in a new transaction.
    fn finish(
        &mut self,
        transaction: &OpenTransaction,
    ) -> impl Future<Output = Result<(), JobFailure>> + Send {
        let _ = transaction;
        async { Ok(()) }
    }

    /// Called with the unsaved item when the lease was lost or the job was told to stop. Deletes only this attempt's
    /// artifacts of the item, because another attempt may be working on the item by now.
    fn discard(&mut self, action: &Action, item: &Self::Item) -> impl Future<Output = ()> + Send;

    /// Called when the job is cancelled. Deletes the artifacts of these items, from all attempts. A missing
    /// artifact counts as deleted.
    fn clean(&self, items: Vec<CleanupItem>) -> impl Future<Output = Result<(), BoxError>> + Send;
}
