//! Owns the noun `cancel`: a teardown whose terminal state comes last.
//!
//! A teardown, in the order of its calls: [`Cancel::request`] sets the row's flag. Once no lease is on the row,
//! [`Cancel::refund`] refunds its items. [`Cancel::items`] lists the artifacts to delete, [`Cancel::confirm`] confirms
//! their deletion, and [`Cancel::finish`] makes the terminal move. [`Teardown::run`] makes all of these calls but the
//! request. Any session may repeat a single call, or the whole sequence.
//!
//! Invariant: only [`Cancel::finish`] makes the terminal move. If the machine declares a `refund`, the move comes after
//! the refund and after the caller has confirmed that the artifacts are deleted.

mod amount;
mod pending;
mod teardown;

use tokio_postgres::types::Type;

use crate::executor::{column, of_row, value};
use crate::{Error, Executor, Json, MachineRow};

pub use amount::Amount;
pub use pending::{PendingCancel, RefundMismatch};
pub use teardown::Teardown;

const REQUEST: &str = "SELECT * FROM once.cancel_request(machine => $1, id => $2)";
// Amounts are read as text: the driver has no type for `numeric`, and a float would round.
const REFUND: &str = "SELECT items, amount::text AS amount, items_total, \
                      amount_total::text AS amount_total, remaining, pass \
                      FROM once.cancel_refund(machine => $1, id => $2, max_items => $3)";
const ITEMS: &str = "SELECT * FROM once.cancel_items(machine => $1, id => $2, \
                             after_id => $3, max => $4)";
const CONFIRM: &str = "SELECT once.cancel_confirm(machine => $1, id => $2, pass => $3)";
const FINISH: &str = "SELECT outcome, status, items_total, amount_total::text AS amount_total \
                      FROM once.cancel_finish(machine => $1, id => $2, patch => $3)";

/// The cancellation of one row; made by [`MachineRow::cancel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cancel {
    row: MachineRow,
}

/// The answer of [`Cancel::request`]. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelRequest {
    /// No lease is on the row and none can begin now: tear it down.
    Teardown {
        /// The row's status.
        status: String,
    },
    /// A holder has a lease on the row. The holder sees the flag, releases the row and tears it down. If the holder
    /// dies, [`Machine::cancel_pending`](crate::Machine::cancel_pending) lists the row after a sweep has reverted it.
    Accepted {
        /// The claim state that the row is in.
        status: String,
    },
    /// The row is cancelled already.
    Done {
        /// The cancelled status.
        status: String,
    },
    /// The row has a terminal status other than the cancelled one.
    TooLate {
        /// The terminal status that the row has.
        status: String,
    },
    /// There is no such row.
    NotFound,
}

/// The answer of [`Cancel::refund`].
#[derive(Clone, Debug)]
pub struct Refunded {
    /// How many items this call marked.
    pub items: i64,
    /// The amount that this call refunded.
    pub amount: Amount,
    /// How many items this teardown has marked in all.
    pub items_total: i64,
    /// The amount that this teardown has refunded in all.
    pub amount_total: Amount,
    /// Whether some items are still undecided; if so, call again.
    pub remaining: bool,
    /// The number to pass to [`Cancel::confirm`]. It grows with each refund that marks items.
    pub pass: i64,
}

/// An item whose artifact is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanupItem {
    /// The item's key, as text.
    pub item_id: String,
    /// The item's row of the items table.
    pub item: Json,
    /// The item's shard, set only by a teardown worker over shards. Items of different shards may have the same id.
    pub shard: Option<usize>,
}

/// Which call of [`Cancel::finish`] made the terminal move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelFinish {
    /// This call made it.
    Cancelled,
    /// The row was cancelled already, by an earlier call or by an UPDATE while the guard was off.
    Done,
}

/// The answer of [`Cancel::finish`]: the row is cancelled.
#[derive(Clone, Debug)]
pub struct Cancelled {
    /// Whether this call made the terminal move.
    pub outcome: CancelFinish,
    /// The cancelled state.
    pub status: String,
    /// How many items the teardown has marked in all.
    pub items_total: i64,
    /// The amount that the teardown has refunded in all.
    pub amount_total: Amount,
}

impl MachineRow {
    /// The row's cancellation.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        Cancel { row: self.clone() }
    }
}

impl Cancel {
    /// The row.
    #[must_use]
    pub const fn row(&self) -> &MachineRow {
        &self.row
    }

    /// Asks for the cancellation: sets the row's flag. No action can begin on a flagged row.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::CancelRequest;
    ///
    /// match machine.row(job).cancel().request(&pool).await? {
    ///     CancelRequest::Teardown { status } => assert_eq!(status, "queued"), // tear it down
    ///     CancelRequest::Accepted { .. } => println!("its holder will tear it down"),
    ///     CancelRequest::Done { .. } => println!("it is cancelled"),
    ///     CancelRequest::TooLate { status } => println!("it is {status} already"),
    ///     CancelRequest::NotFound => println!("no such job"),
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` if it declares no `cancel`; `42501` without the
    /// right to update the table.
    pub async fn request<E: Executor>(&self, exec: &E) -> Result<CancelRequest, Error> {
        let row = self.row.call(exec, REQUEST, &[]).await?;
        let outcome: &str = column(&row, "outcome")?;
        if outcome == "not_found" {
            return Ok(CancelRequest::NotFound);
        }
        let status = column(&row, "status")?;
        Ok(match outcome {
            "teardown" => CancelRequest::Teardown { status },
            "accepted" => CancelRequest::Accepted { status },
            "done" => CancelRequest::Done { status },
            "too_late" => CancelRequest::TooLate { status },
            other => return Err(Error::Answer(format!("cancel outcome {other:?}"))),
        })
    }

    /// Marks the undecided items (at most `max_items`) and, in the same statement, refunds those for which the
    /// definition's `when` is true. A repeated call refunds nothing twice.
    ///
    /// # Errors
    /// `ON002` if the flag is not set, a lease is on the row, or the row has a terminal status other than the cancelled
    /// one; `22023` for a bad amount, or if the machine declares no `refund`; `23503` if the wallet is missing.
    pub async fn refund<E: Executor>(
        &self,
        exec: &E,
        max_items: Option<i32>,
    ) -> Result<Refunded, Error> {
        let own = [(&max_items as _, Type::INT4)];
        Refunded::of_row(&self.row.call(exec, REFUND, &own).await?)
    }

    /// Lists a page of the marked items, sorted by key; the caller deletes their artifacts. For the next page, pass the
    /// last `item_id` as `after_id`. If a page has fewer than `max` items, no page follows it.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` for a bad argument.
    pub async fn items<E: Executor>(
        &self,
        exec: &E,
        after_id: Option<&str>,
        max: i32,
    ) -> Result<Vec<CleanupItem>, Error> {
        let own = [(&after_id as _, Type::TEXT), (&max as _, Type::INT4)];
        let rows = self.row.rows(exec, ITEMS, &own).await?;
        rows.iter().map(CleanupItem::of_row).collect()
    }

    /// Records that the artifacts of the marked items are deleted. Get `pass` from a refund, then list the items and
    /// delete their artifacts, then confirm. `false`: a later refund has marked more items; list the items again.
    ///
    /// # Errors
    /// `ON002` as [`Cancel::refund`]; `22023` for a pass that no refund returned.
    pub async fn confirm<E: Executor>(&self, exec: &E, pass: i64) -> Result<bool, Error> {
        let own = [(&pass as _, Type::INT8)];
        value(&self.row.call(exec, CONFIRM, &own).await?)
    }

    /// Makes the terminal move; `patch` sets other columns of the row. Call it in a transaction that wrote no items:
    /// after such a write, the call can deadlock. A later call changes nothing and answers [`CancelFinish::Done`].
    ///
    /// # Errors
    /// `ON005` while an item is undecided or the last pass is not confirmed; `ON002` as [`Cancel::refund`].
    pub async fn finish<E: Executor>(
        &self,
        exec: &E,
        patch: Option<&Json>,
    ) -> Result<Cancelled, Error> {
        let own = [(&patch as _, Type::JSON)];
        let row = self.row.call(exec, FINISH, &own).await?;
        let outcome = match column(&row, "outcome")? {
            "cancelled" => CancelFinish::Cancelled,
            "done" => CancelFinish::Done,
            other => return Err(Error::Answer(format!("cancel outcome {other:?}"))),
        };
        Ok(Cancelled {
            outcome,
            status: column(&row, "status")?,
            items_total: column(&row, "items_total")?,
            amount_total: column(&row, "amount_total")?,
        })
    }
}

of_row!(CleanupItem: item_id, item; shard);
of_row!(Refunded: items, amount, items_total, amount_total, remaining, pass);
