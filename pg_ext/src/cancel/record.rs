//! Rows of `once.cancel` and `once.refund`. Calls lock the user's row first, so no write to the two tables waits. Only
//! the sweep's close_orphaned has no user's row to lock; it skips locked teardowns.

use super::numeric;
use crate::call::from_utf8;
use crate::caller;
use crate::clock;
use crate::error::{Error, Result};
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::row;
use crate::table::{self, Name, ScanKey, Snapshot, Table, WriteOutcome};
use pgrx::pg_sys::{Datum, Oid};

pub const TABLE: Name = c"cancel";
const BY_ROW: Name = c"cancel_pkey";
pub const BY_OPEN: Name = c"cancel_open";
pub const REFUNDS: Name = c"refund";
pub const REFUNDS_BY_ROW: Name = c"refund_row";

/// Columns of once.cancel, from 1.
#[derive(Clone, Copy)]
pub enum TeardownCol {
    Machine = 1,
    RowId,
    Relation,
    RequestedAt,
    FinishedAt,
    Open,
    Pass,
    ConfirmedPass,
    ItemsTotal,
    AmountTotal,
}

table::columns!(TeardownCol);

/// A row of once.cancel.
pub type Teardown = table::Record<TeardownCol, 10>;

impl Teardown {
    /// The row's stored teardown, if it belongs to the machine's present table.
    pub fn find(machine: &Machine, id: &RowId, snapshot: &Snapshot) -> Result<Option<Teardown>> {
        let found = Teardown::any(&Table::to_read(TABLE)?, machine, id, snapshot)?;
        Ok(found.filter(|t| t.is_of(machine)))
    }

    /// Begins the teardown of a row, unless one is open.
    pub fn begin(machine: &Machine, id: &RowId) -> Result<Teardown> {
        let table = Table::to_write(TABLE)?;
        let snapshot = Snapshot::latest();
        let mut teardown =
            Teardown::any(&table, machine, id, &snapshot)?.unwrap_or_else(Teardown::empty);
        if teardown.is_open() && teardown.is_of(machine) {
            return Ok(teardown);
        }
        teardown.put_text(TeardownCol::Machine, Some(&from_utf8(machine.name())));
        teardown.put_text(TeardownCol::RowId, Some(&id.text));
        teardown.put(
            TeardownCol::Relation,
            Some(Datum::from(machine.shape.table.oid)),
        );
        teardown.put_i64(TeardownCol::RequestedAt, clock::now_us()?);
        teardown.put(TeardownCol::FinishedAt, None);
        teardown.put(TeardownCol::Open, Some(Datum::from(true)));
        teardown.put_i64(TeardownCol::Pass, 0);
        teardown.put_i64(TeardownCol::ConfirmedPass, 0);
        teardown.put_i64(TeardownCol::ItemsTotal, 0);
        teardown.put(TeardownCol::AmountTotal, Some(numeric::zero()));
        match teardown.tid() {
            Some(_) => teardown.store()?,
            None => teardown.insert(&table)?,
        }
        // Reads the row again, because an update needs its tid.
        Teardown::any(&table, machine, id, &Snapshot::latest())?
            .ok_or_else(|| Error::internal("a teardown that was just begun is gone"))
    }

    /// Writes the changed row back.
    pub fn store(&self) -> Result<()> {
        let table = Table::to_write(TABLE)?;
        let outcome = match self.tid() {
            Some(tid) => self.update_at(&table, tid)?,
            None => WriteOutcome::Changed,
        };
        match outcome {
            WriteOutcome::Done => Ok(()),
            _ => Err(Error::retry_transaction("a teardown of pg_once")),
        }
    }

    pub fn is_open(&self) -> bool {
        self.raw(TeardownCol::Open).is_some_and(|d| d.value() != 0)
    }

    pub fn is_of(&self, machine: &Machine) -> bool {
        self.relation() == Some(machine.shape.table.oid)
    }

    /// The table of the user's row.
    pub fn relation(&self) -> Option<Oid> {
        self.raw(TeardownCol::Relation)
            .map(|d| Oid::from(d.value() as u32))
    }

    pub fn amount_total(&self) -> Datum {
        self.raw(TeardownCol::AmountTotal)
            .unwrap_or_else(numeric::zero)
    }

    fn any(
        table: &Table,
        machine: &Machine,
        id: &RowId,
        snapshot: &Snapshot,
    ) -> Result<Option<Teardown>> {
        let keys = &mut [
            ScanKey::text(1, row::text(&from_utf8(machine.name()))),
            ScanKey::text(2, row::text(&id.text)),
        ];
        Ok(table.find(BY_ROW, keys, snapshot)?.map(Teardown::load))
    }
}

/// Columns of once.refund, from 1.
#[derive(Clone, Copy)]
pub enum RefundCol {
    Machine = 1,
    RowId,
    Relation,
    Pass,
    At,
    Items,
    Amount,
    Wallet,
    Role,
}

table::columns!(RefundCol);

/// A row of once.refund.
pub type RefundRecord = table::Record<RefundCol, 9>;

pub fn note_refund(
    machine: &Machine,
    id: &RowId,
    pass: i64,
    items: i64,
    amount: Datum,
    wallet: Option<Datum>,
) -> Result<()> {
    let mut refund = RefundRecord::empty();
    refund.put_text(RefundCol::Machine, Some(&from_utf8(machine.name())));
    refund.put_text(RefundCol::RowId, Some(&id.text));
    let table = Datum::from(machine.shape.table.oid);
    refund.put(RefundCol::Relation, Some(table));
    refund.put_i64(RefundCol::Pass, pass);
    refund.put_i64(RefundCol::At, clock::now_us()?);
    refund.put_i64(RefundCol::Items, items);
    refund.put(RefundCol::Amount, Some(amount));
    refund.put(RefundCol::Wallet, wallet);
    refund.put_text(RefundCol::Role, Some(&caller::name()));
    refund.insert(&Table::to_write(REFUNDS)?)
}
