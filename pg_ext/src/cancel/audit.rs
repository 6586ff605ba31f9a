//! `cancel_audit`: compares the marked items with the recorded refunds.
//!
//! Items and refunds are read under one snapshot, so a concurrent cancel_refund is seen in both or not at all. Both are
//! read in the order of the ids as bytes and merged, so no list is held in memory. Deleted rows are not audited.

use super::items::Items;
use super::numeric;
use super::record::{REFUNDS, REFUNDS_BY_ROW, RefundCol, RefundRecord};
use crate::call::{Call, SCOPE_MAX, from_utf8, varlena};
use crate::error::Result;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::statement::{NO, READ};
use crate::row::{self, Rows};
use crate::spi::column;
use crate::table::{Scan, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};
use std::cmp::Ordering;

/// How many subjects one fetch reads.
const CHUNK: i64 = 1_000;

const MARKED: &str = "
    SELECT i.{subject}::pg_catalog.text COLLATE pg_catalog.\"C\" AS \"once$subject\",
           COALESCE(pg_catalog.sum(i.{amount}::pg_catalog.\"numeric\"), 0)
      FROM {items} AS i WHERE {is_marked} AND ({when}) AND {one}
     GROUP BY 1 ORDER BY 1";

/// $1 the row's id.
const ONE: &str = "i.{subject} OPERATOR(pg_catalog.=) $1";

const PRESENT: &str = "SELECT 1 FROM {table} AS t WHERE {id} OPERATOR(pg_catalog.=) $1";

/// `once.cancel_audit`.
pub fn cancel_audit(call: &Call) -> Result<Datum> {
    let machine = Machine::for_tables(call.text(0, "machine", SCOPE_MAX)?)?;
    // An audit ignores owners and rights on the tables.
    machine.as_owner(|| audit(call, &machine))?;
    Ok(call.return_null())
}

fn audit(call: &Call, machine: &Machine) -> Result<()> {
    let items = Items::of_machine(machine)?;
    let id = match call.datum(1) {
        None => None,
        Some(_) => Some(machine.id(call, 1)?),
    };
    let (key, one, types, args) = match &id {
        None => ("audit", "true".to_owned(), vec![], vec![]),
        Some(id) => (
            "audit one",
            items.fill(ONE, &[]),
            vec![machine.id_type()],
            vec![Some(id.value)],
        ),
    };
    // Locks the table before the items, as all calls do.
    machine
        .shape
        .table
        .lock_with_all_below(pg_sys::AccessShareLock);
    let plan = machine.plan(key, &types, [NO, READ, NO], || {
        items.fill(MARKED, &[("one", &one)])
    })?;
    plan.hold()?;
    let snapshot = Snapshot::now();
    let table = Table::to_read(REFUNDS)?;
    let mut keys = vec![ScanKey::text(1, row::text(&from_utf8(machine.name())))];
    keys.extend(id.iter().map(|id| ScanKey::text(2, row::text(&id.text))));
    let mut audit = Audit {
        machine,
        rows: Rows::begin(call),
        snapshot: &snapshot,
        scan: Some(table.scan(REFUNDS_BY_ROW, &mut keys, &snapshot)?),
        next: None,
        ahead: None,
    };
    audit.advance();
    plan.stream(&args, &snapshot, CHUNK, |rows| {
        for row in &rows {
            if let (Some(subject), Some(marked)) = (column(row, 0), column(row, 1)) {
                audit.compare(varlena(subject), marked)?;
            }
        }
        Ok(true)
    })?;
    audit.rest()
}

/// The recorded refunds, merged with the marked sums.
struct Audit<'a> {
    machine: &'a Machine,
    rows: Rows,
    snapshot: &'a Snapshot,
    scan: Option<Scan<'a>>,
    /// The next row that has refunds, and their sum.
    next: Option<(Vec<u8>, Datum)>,
    /// The first refund of the row that follows `next`.
    ahead: Option<(Vec<u8>, Datum)>,
}

impl Audit<'_> {
    fn advance(&mut self) {
        self.next = self.ahead.take().or_else(|| self.refund());
        let Some((id, mut total)) = self.next.take() else {
            return;
        };
        while let Some((other, amount)) = self.refund() {
            if other != id {
                self.ahead = Some((other, amount));
                break;
            }
            let sum = numeric::sum(total, amount);
            row::free(total);
            row::free(amount);
            total = sum;
        }
        self.next = Some((id, total));
    }

    /// The next refund of the machine's table.
    fn refund(&mut self) -> Option<(Vec<u8>, Datum)> {
        let table = self.machine.shape.table.oid.to_u32();
        while let Some(slot) = self.scan.as_mut().and_then(Scan::advance) {
            let refund = RefundRecord::borrow(slot);
            let relation = refund.raw(RefundCol::Relation).map(|d| d.value() as u32);
            if let (true, Some(amount)) = (relation == Some(table), refund.raw(RefundCol::Amount)) {
                let id = refund.bytes(RefundCol::RowId).unwrap_or_default().to_vec();
                return Some((id, row::copied(amount)));
            }
        }
        self.scan = None;
        None
    }

    /// Reports the rows before `subject`: they have refunds but no marked item. Then compares the subject's sums.
    fn compare(&mut self, subject: &[u8], marked: Datum) -> Result<()> {
        while let Some((id, refunded)) = self.next.take() {
            match id.as_slice().cmp(subject) {
                Ordering::Less => {
                    self.settle(&id, numeric::zero(), refunded)?;
                    self.advance();
                }
                Ordering::Equal => {
                    self.advance();
                    return self.settle(&id, marked, refunded);
                }
                Ordering::Greater => {
                    self.next = Some((id, refunded));
                    break;
                }
            }
        }
        self.tell(subject, marked, numeric::zero())
    }

    /// Reports the remaining refunds, which have no marked item.
    fn rest(&mut self) -> Result<()> {
        while let Some((id, refunded)) = self.next.take() {
            self.settle(&id, numeric::zero(), refunded)?;
            self.advance();
        }
        Ok(())
    }

    /// Compares both sums of a row that has refunds.
    fn settle(&self, id: &[u8], marked: Datum, refunded: Datum) -> Result<()> {
        self.tell(id, marked, refunded)?;
        row::free(refunded);
        Ok(())
    }

    fn tell(&self, id: &[u8], marked: Datum, refunded: Datum) -> Result<()> {
        if numeric::equal(marked, refunded) || !self.is_present(id)? {
            return Ok(());
        }
        self.rows.push(&[
            Some(row::text(id)),
            Some(marked),
            Some(refunded),
            Some(numeric::difference(refunded, marked)),
        ]);
        Ok(())
    }

    fn is_present(&self, id: &[u8]) -> Result<bool> {
        let Ok(id) = RowId::read(self.machine.shape.id.base_type, id, "id") else {
            return Ok(false);
        };
        let machine = self.machine;
        let present = machine.plan("present", &[machine.id_type()], [READ, NO, NO], || {
            machine.parts().fill(PRESENT, &[])
        })?;
        let found = present.query_with(&[Some(id.value)], self.snapshot)?;
        Ok(!found.is_empty())
    }
}
