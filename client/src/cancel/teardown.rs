//! Owns tearing one row down: refund, clean up, confirm, finish.
//!
//! Invariant: a teardown begins at the top whatever an earlier attempt has done, and each step commits by itself. So a
//! teardown may stop anywhere, and any session may run it again. The terminal move comes only after the callback has
//! deleted everything listed.

use std::future::Future;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Cancel, Cancelled, CleanupItem};
use crate::error::BoxError;
use crate::options::setters;
use crate::{Autocommit, Backoff, Error, Json, Kind};

/// How often late items may send one teardown back to the top.
const ROUNDS: u32 = 10;

/// How many items are listed at a time, unless the caller says otherwise.
const PAGE: i32 = 1000;

/// Tears one row down; made by [`Cancel::teardown`].
#[derive(Debug)]
#[must_use = "a teardown does nothing until `run` is called"]
pub struct Teardown<'e, E> {
    exec: &'e E,
    cancel: Cancel,
    page: i32,
    max_items: Option<i32>,
    patch: Option<Json>,
    backoff: Backoff,
}

impl Cancel {
    /// Prepares to tear the row down. The executor is one on which each call commits by itself: a pool or a connection.
    pub fn teardown<E: Autocommit>(self, exec: &E) -> Teardown<'_, E> {
        Teardown {
            exec,
            cancel: self,
            page: PAGE,
            max_items: None,
            patch: None,
            backoff: Backoff::default(),
        }
    }
}

impl<E: Autocommit> Teardown<'_, E> {
    setters! {
        /// How many items one refund marks, at most; by default all of them in one statement.
        max_items: i32,
        /// Other columns of the row to set with the terminal move.
        patch: Json,
    }

    /// The most items for one call of `clean`; by default 1000.
    pub fn page(mut self, items: i32) -> Self {
        self.page = items;
        self
    }

    /// How calls to the database are retried.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Refunds everything, lets `clean` delete the artifacts, and makes the terminal move.
    ///
    /// `clean` gets the items a page at a time, including items that an earlier attempt has cleaned, so a missing
    /// artifact must count as deleted. Where the machine declares no `refund` there are no items, and only the terminal
    /// move is made. When `clean` fails, this returns [`Error::Other`] and the row is not cancelled; run it again.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::{CancelFinish, CleanupItem};
    ///
    /// async fn delete(items: Vec<CleanupItem>) -> Result<(), pg_once::BoxError> {
    ///     for item in items {
    ///         let row: serde_json::Value = item.item.parse()?;
    ///         println!("deleting {}", row["artifact"]);
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let cancel = machine.row(job).cancel();
    /// cancel.request(&pool).await?;
    /// let cancelled = cancel.clone().teardown(&pool).run(delete).await?;
    /// assert_eq!(cancelled.outcome, CancelFinish::Cancelled);
    /// assert_eq!((&*cancelled.status, cancelled.items_total), ("cancelled", 3));
    /// // If the answer was lost, run it again: that changes nothing.
    /// let again = cancel.teardown(&pool).run(delete).await?;
    /// assert_eq!((again.outcome, again.items_total), (CancelFinish::Done, 3));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Other`] from `clean`; `ON002` if the flag is not set, a lease is on the row, or the row has another
    /// terminal status; `ON005` if items kept coming.
    pub async fn run<C, F, X>(self, mut clean: C) -> Result<Cancelled, Error>
    where
        C: FnMut(Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        if !self.has_items().await? {
            return self.finish().await;
        }
        let mut round = 1;
        loop {
            let pass = self.refund().await?;
            self.clean(&mut clean).await?;
            let confirm = || self.cancel.confirm(self.exec, pass);
            let confirmed = self.backoff.retry(confirm).await?;
            let last = round == ROUNDS;
            if confirmed || last {
                match self.finish().await {
                    // An item was added after the refund.
                    Err(error) if error.kind() == Kind::TeardownIncomplete && !last => {}
                    end => return end,
                }
            }
            tracing::debug!(row = ?self.cancel.row(), round, "items were added late; from the top");
            tokio::time::sleep(self.backoff.wait(round)).await;
            round += 1;
        }
    }

    /// Whether the machine declares a `refund`, and so has items to mark and to clean.
    async fn has_items(&self) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct Definition {
            refund: Option<IgnoredAny>,
        }
        let machine = self.cancel.row().machine();
        let definition = self.backoff.retry(|| machine.get(self.exec)).await?;
        Ok(definition.parse::<Definition>()?.refund.is_some())
    }

    async fn finish(&self) -> Result<Cancelled, Error> {
        let finish = || self.cancel.finish(self.exec, self.patch.as_ref());
        self.backoff.retry(finish).await
    }

    /// Marks everything; returns the pass to confirm.
    async fn refund(&self) -> Result<i64, Error> {
        let mut in_vain = 0;
        loop {
            let refund = || self.cancel.refund(self.exec, self.max_items);
            let refunded = self.backoff.retry(refund).await?;
            // Late items are for the next round, which waits first.
            if !refunded.remaining || in_vain == ROUNDS {
                return Ok(refunded.pass);
            }
            if refunded.items == 0 {
                in_vain += 1;
                tokio::time::sleep(self.backoff.wait(in_vain)).await;
            }
        }
    }

    async fn clean<C, F, X>(&self, clean: &mut C) -> Result<(), Error>
    where
        C: FnMut(Vec<CleanupItem>) -> F,
        F: Future<Output = Result<(), X>>,
        X: Into<BoxError>,
    {
        let mut after: Option<String> = None;
        loop {
            let list = || self.cancel.items(self.exec, after.as_deref(), self.page);
            let items = self.backoff.retry(list).await?;
            let Some(last) = items.last() else {
                return Ok(());
            };
            after = Some(last.item_id.clone());
            clean(items).await.map_err(Error::other)?;
        }
    }
}
