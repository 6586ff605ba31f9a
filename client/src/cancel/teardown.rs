//! Owns the teardown of one row: refund, clean up, confirm, finish.
//!
//! Invariant: each run makes all calls from the refund on, whatever an earlier run has done, and each call commits by
//! itself. So a run may stop anywhere, and any session may run the teardown again. The terminal move comes only after
//! the callback has succeeded for every listed item.

use std::future::Future;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Cancel, Cancelled, CleanupItem};
use crate::error::BoxError;
use crate::options::setters;
use crate::{Autocommit, Backoff, Error, Json, Kind};

/// Upper limit of the rounds of refund and cleanup in one run: an item that is added late needs another round.
const ROUNDS: u32 = 10;

/// The default of [`Teardown::page`].
const PAGE: i32 = 1000;

/// The teardown of one row; made by [`Cancel::teardown`].
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
    /// Prepares to tear the row down. Each call on `exec` must commit by itself: pass a pool or a connection.
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
        /// Upper limit of the items that one refund marks; by default it marks all items, in one statement.
        max_items: i32,
        /// Other columns of the row to set with the terminal move.
        patch: Json,
    }

    /// Upper limit of the items that one call of `clean` gets; by default 1000.
    pub fn page(mut self, items: i32) -> Self {
        self.page = items;
        self
    }

    /// How calls to the database are retried.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Refunds the items, lets `clean` delete their artifacts, and makes the terminal move.
    ///
    /// `clean` gets the items a page at a time, including items that an earlier run has cleaned, so a missing artifact
    /// must count as deleted. If the machine declares no `refund`, it has no items, and `run` only makes the terminal
    /// move. If `clean` fails, `run` returns [`Error::Other`] without the terminal move; run the teardown again.
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
    /// // If the answer was lost, run the teardown again: after the terminal move it changes nothing.
    /// let again = cancel.teardown(&pool).run(delete).await?;
    /// assert_eq!((again.outcome, again.items_total), (CancelFinish::Done, 3));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Other`] from `clean`; `ON002` if the flag is not set, a lease is on the row, or the row has a terminal
    /// status other than the cancelled one; `ON005` if items are still undecided or unconfirmed after ten rounds.
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
                    // For example, an item was added after the refunds. The next round marks it.
                    Err(error) if error.kind() == Kind::TeardownIncomplete && !last => {}
                    end => return end,
                }
            }
            tracing::debug!(row = ?self.cancel.row(), round, "items were added late; another round");
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

    /// Marks the undecided items; returns the pass for `confirm`.
    async fn refund(&self) -> Result<i64, Error> {
        let mut in_vain = 0;
        loop {
            let refund = || self.cancel.refund(self.exec, self.max_items);
            let refunded = self.backoff.retry(refund).await?;
            // Gives up after ten refunds that marked nothing and one more. `run` goes on in its next round.
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
