//! Statements on items, run with the caller's rights. Only some_of_all and the audit run as a table's owner.

use crate::error::Result;
use crate::machine::definition::Refund;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::machine::shape::RefundShape;
use crate::machine::sql::{fill, literal};
use crate::machine::statement::{NO, READ, ROW_SHARE};
use crate::spi::{SwitchedUser, column};
use crate::subxact;
use crate::table::Snapshot;
use crate::table::enums::is_enum;
use pgrx::pg_sys::{self, Datum};

/// The key of one item that satisfies `{which}`; $1 is the row's id. The outer LIMIT ends the scan after one item. The
/// CTE has no LIMIT, because with a LIMIT the server may plan a sequential scan.
const SOME: &str = "
    WITH fits AS MATERIALIZED (
        SELECT i.{item_id}::pg_catalog.text AS \"once$key\" FROM {items} AS i
         WHERE i.{subject} OPERATOR(pg_catalog.=) $1 AND {which})
    SELECT \"once$key\" FROM fits LIMIT 1";

/// $1 the row's id, $2 an item's key.
const ONE: &str = "
    SELECT FROM {items} AS i
     WHERE i.{subject} OPERATOR(pg_catalog.=) $1 AND {is_undecided}
       AND i.{item_id}::pg_catalog.text OPERATOR(pg_catalog.=) $2 {lock}";

/// $1 the row's id.
const WALLET: &str = "
    SELECT FROM {table} AS t, {wallet} AS w
     WHERE {id} OPERATOR(pg_catalog.=) $1 AND w.{wallet_id} OPERATOR(pg_catalog.=) t.{account}";

/// The items of a machine; `fill` makes statements in which the items have the alias i.
pub struct Items<'a> {
    pub machine: &'a Machine,
    pub refund: &'a Refund,
    pub shape: &'a RefundShape,
}

/// The state of the wanted items.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WhichItems {
    Undecided,
    Marked,
}

impl Items<'_> {
    /// 22023 where the machine declares no refund.
    pub fn of_machine(machine: &Machine) -> Result<Items<'_>> {
        let (refund, shape) = machine.refund()?;
        Ok(Items {
            machine,
            refund,
            shape,
        })
    }

    pub fn fill(&self, template: &str, more: &[(&str, &str)]) -> String {
        let parts = self.machine.parts();
        let shape = self.shape;
        let own = [
            ("table", parts.table.as_str()),
            ("id", &parts.id),
            ("items", &shape.items.name),
            ("item_id", &shape.item_id.name),
            ("subject", &shape.subject.name),
            ("marker", &shape.marker.name),
            ("amount", &shape.amount.name),
            ("wallet", &shape.wallet.name),
            ("wallet_id", &shape.wallet_id.name),
            ("balance", &shape.balance.name),
            ("account", &shape.account.name),
            ("marked", &literal(&self.refund.marked)),
            ("when", self.refund.when.as_deref().unwrap_or("true")),
            ("is_undecided", &self.is(WhichItems::Undecided)),
            ("is_marked", &self.is(WhichItems::Marked)),
        ];
        fill(template, &[own.as_slice(), more].concat())
    }

    /// The condition that an item is in state `which`. A NULL marker is always undecided.
    fn is(&self, which: WhichItems) -> String {
        let column = &self.shape.marker;
        let plain = format!("i.{}", column.name);
        // The operators of an enum do not accept a domain over it.
        let marker = match column.is_domain() && is_enum(column.base_type) {
            true => format!("{plain}::{}", column.base_type_name()),
            false => plain,
        };
        let equals = |v: &String| format!("{marker} OPERATOR(pg_catalog.=) {}", literal(v));
        match (which, &self.refund.undecided) {
            (WhichItems::Marked, _) => equals(&self.refund.marked),
            (WhichItems::Undecided, None) => format!("{marker} IS NULL"),
            (WhichItems::Undecided, Some(value)) => {
                format!("({marker} IS NULL OR {})", equals(value))
            }
        }
    }

    /// The key of one item in state `which`, even if a policy hides the item from the caller. Runs as the owner of the
    /// items table, as the server's checks of foreign keys do.
    pub fn some_of_all(&self, id: &RowId, which: WhichItems) -> Result<Option<Datum>> {
        let owner = self.shape.items.owner();
        let _owner = owner.map(SwitchedUser::to_owner_for_check);
        // A plan contains its role's policies, so the owner's plan is kept separately.
        self.find_one("of all", id, which)
    }

    /// The key of one item in state `which` in the latest snapshot, at every isolation level.
    pub fn some(&self, id: &RowId, which: WhichItems) -> Result<Option<Datum>> {
        self.find_one("visible", id, which)
    }

    fn find_one(&self, whose: &str, id: &RowId, which: WhichItems) -> Result<Option<Datum>> {
        let what = match which {
            WhichItems::Undecided => "undecided",
            WhichItems::Marked => "marked",
        };
        let key = format!("some {what}, {whose}");
        let types = [self.machine.id_type()];
        let plan = self.machine.plan(key, &types, [NO, READ, NO], || {
            self.fill(SOME, &[("which", &self.is(which))])
        })?;
        let rows = plan.query_latest(&[Some(id.value)])?;
        Ok(rows.first().and_then(|row| column(row, 0)))
    }

    /// Whether the snapshot shows the row's wallet to the caller. For use after `mark_and_credit` locked the tables.
    pub fn has_wallet(&self, id: &RowId, snapshot: &Snapshot) -> Result<bool> {
        let types = [self.machine.id_type()];
        let plan = (self.machine).plan("wallet", &types, [READ, NO, READ], || {
            self.fill(WALLET, &[])
        })?;
        Ok(!plan.query_with(&[Some(id.value)], snapshot)?.is_empty())
    }

    /// Whether the caller sees this undecided item, but a policy forbids its update. Does not wait: an item that
    /// another session has locked counts as updatable.
    pub fn is_kept_back(&self, id: &RowId, item: Datum) -> Result<bool> {
        if !self.shape.items.has_policies() {
            return Ok(false);
        }
        let is_there = |key, mode, lock| -> Result<bool> {
            let types = [self.machine.id_type(), pg_sys::TEXTOID];
            let plan = self.machine.plan(key, &types, [NO, mode, NO], || {
                self.fill(ONE, &[("lock", lock)])
            })?;
            Ok(!plan.query(&[Some(id.value), Some(item)])?.is_empty())
        };
        let is_seen = || is_there("item", READ, "");
        let lock = || is_there("item now", ROW_SHARE, "FOR NO KEY UPDATE OF i NOWAIT");
        Ok(is_seen()? && matches!(subxact::attempt(lock)?, Ok(false)) && is_seen()?)
    }
}
