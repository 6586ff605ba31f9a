//! Owns two lists of a machine's rows: those with a pending teardown, and those whose refunds do not add up.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::Amount;
use crate::executor::{call, column};
use crate::{Error, Executor, Machine, MachineRow, Row};

const PENDING: &str = "SELECT id, status, requested_at, items_total, \
                       amount_total::text AS amount_total \
                       FROM once.cancel_pending(machine => $1, max => $2)";
const AUDIT: &str = "SELECT id, marked_amount::text AS marked_amount, \
                     refunded_amount::text AS refunded_amount, difference::text AS difference \
                     FROM once.cancel_audit(machine => $1, id => $2)";

/// A row whose teardown is pending: flagged, not leased, and in no terminal status.
#[derive(Clone, Debug)]
pub struct PendingCancel {
    /// The row.
    pub row: MachineRow,
    /// Its status.
    pub status: String,
    /// When its teardown began: at the request, or when the extension found a flag that was set by hand.
    pub requested_at: SystemTime,
    /// How many items its teardown has marked so far.
    pub items_total: i64,
    /// The amount that its teardown has refunded so far.
    pub amount_total: Amount,
}

/// A row whose marked items and recorded refunds disagree.
#[derive(Clone, Debug)]
pub struct RefundMismatch {
    /// The row.
    pub row: MachineRow,
    /// The total of its marked items for which the definition's `when` is true.
    pub marked_amount: Amount,
    /// The total of its recorded refunds.
    pub refunded_amount: Amount,
    /// `refunded_amount` minus `marked_amount`.
    pub difference: Amount,
}

impl Machine {
    /// Lists up to `max` rows for a teardown worker, the oldest request first.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// machine.row(job).cancel().request(&pool).await?;
    /// let pending = machine.cancel_pending(&pool, 100).await?;
    /// assert_eq!(pending.len(), 1);
    /// assert_eq!(pending[0].row, machine.row(job));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` for a bad argument.
    pub async fn cancel_pending<E: Executor>(
        &self,
        exec: &E,
        max: i32,
    ) -> Result<Vec<PendingCancel>, Error> {
        let rows = call(exec, PENDING, &[self.as_str()], &[(&max, Type::INT4)]).await?;
        rows.iter().map(|row| self.pending(row)).collect()
    }

    /// Lists the rows whose recorded refunds differ from the refundable total of their marked items. An empty answer:
    /// all rows agree. Deleted rows are not audited.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` if it declares no `refund`; `42501` without the right to observe.
    pub async fn cancel_audit<E: Executor>(&self, exec: &E) -> Result<Vec<RefundMismatch>, Error> {
        self.audit(exec, None).await
    }

    async fn audit<E: Executor>(
        &self,
        exec: &E,
        id: Option<&str>,
    ) -> Result<Vec<RefundMismatch>, Error> {
        let rows = call(exec, AUDIT, &[self.as_str()], &[(&id, Type::TEXT)]).await?;
        rows.iter().map(|row| self.mismatch(row)).collect()
    }

    fn pending(&self, row: &Row) -> Result<PendingCancel, Error> {
        Ok(PendingCancel {
            row: self.row(column::<&str>(row, "id")?),
            status: column(row, "status")?,
            requested_at: column(row, "requested_at")?,
            items_total: column(row, "items_total")?,
            amount_total: column(row, "amount_total")?,
        })
    }

    fn mismatch(&self, row: &Row) -> Result<RefundMismatch, Error> {
        Ok(RefundMismatch {
            row: self.row(column::<&str>(row, "id")?),
            marked_amount: column(row, "marked_amount")?,
            refunded_amount: column(row, "refunded_amount")?,
            difference: column(row, "difference")?,
        })
    }
}

impl super::Cancel {
    /// [`Machine::cancel_audit`] for this row only; `None`: the totals agree, or there is no such row.
    ///
    /// # Errors
    /// As [`Machine::cancel_audit`].
    pub async fn audit<E: Executor>(&self, exec: &E) -> Result<Option<RefundMismatch>, Error> {
        let row = self.row();
        Ok(row.machine().audit(exec, Some(row.id())).await?.pop())
    }
}
