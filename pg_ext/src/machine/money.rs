//! The checks of `refund` against the tables of its items and wallets: keys, the columns that join the tables, the
//! marker, and the types of amounts and balances.

use super::check_table::{NamedColumn, when};
use super::columns::{DefinedColumn, DefinedTable};
use super::definition::Refund;
use super::faults::{Faults, quoted};
use crate::call::from_utf8;
use crate::error::Result;
use crate::row;
use crate::spi::{self, Plan};
use crate::subxact;
use pgrx::pg_sys::{self, Oid};

/// The tables of a definition; None: not there.
pub struct DefinedTables {
    pub machine: Option<DefinedTable>,
    pub items: Option<DefinedTable>,
    pub wallet: Option<DefinedTable>,
}

/// Runs the checks; `id` is the name of the machine's id column. Replaces `when` by its stored form.
pub fn check_refund(
    refund: &mut Refund,
    id: &str,
    tables: &DefinedTables,
    faults: &Faults,
) -> Result<()> {
    tables_are_three(tables, faults);
    let machine = tables.machine.as_ref();
    if let Some(items) = &tables.items {
        let id = machine.and_then(|machine| machine.column(id));
        of_items(refund, items, id, faults)?;
    }
    if let Some(wallet) = &tables.wallet {
        of_wallet(refund, wallet, machine, faults);
    }
    if let (Some(items), Some(wallet)) = (&tables.items, &tables.wallet) {
        balance_holds_amounts(refund, items, wallet, faults);
    }
    Ok(())
}

/// The three tables must differ: one statement changes items and wallet, and locks them after the machine's row.
fn tables_are_three(tables: &DefinedTables, faults: &Faults) {
    let oid = |table: &Option<DefinedTable>| table.as_ref().map(|table| table.oid);
    let [machine, items, wallet] = [&tables.machine, &tables.items, &tables.wallet].map(oid);
    let same = |a: Option<Oid>, b: Option<Oid>| a.is_some() && a == b;
    if same(items, machine) {
        faults.add("refund.items", "is the machine's own table");
    }
    if same(wallet, machine) {
        faults.add("refund.wallet", "is the machine's own table");
    }
    if same(wallet, items) {
        faults.add("refund.wallet", "is the table of the items");
    }
}

/// Checks the items' table; `id` is the machine's id column.
fn of_items(
    refund: &mut Refund,
    items: &DefinedTable,
    id: Option<&DefinedColumn>,
    faults: &Faults,
) -> Result<()> {
    items.check("refund.items", faults);
    let column = |path, name: &str| NamedColumn::find(items, path, name, faults);
    let others = [
        ("refund.item_id", refund.item_id.as_str()),
        ("refund.subject", &refund.subject),
        ("refund.amount", &refund.amount),
    ];
    if let Some(item_id) = column("refund.item_id", &refund.item_id) {
        item_id.is_a_key();
    }
    if let Some(subject) = column("refund.subject", &refund.subject) {
        subject.is_seen_by_the_guard();
        if subject.is_another(&others[..1]) {
            subject.compares_exactly();
            names_a_row(&subject, "id", id);
        }
    }
    if let Some(marker) = column("refund.marker", &refund.marker)
        && marker.is_another(&others)
    {
        marker.compares_exactly();
        marker.is_ours_to_set();
        marker_tells_apart(refund, &marker)?;
    }
    if let Some(amount) = column("refund.amount", &refund.amount) {
        amount.is_seen_by_the_guard();
        is_exact_money(&amount);
    }
    let Some(when) = when("refund.when", items, refund.when.as_deref(), faults)? else {
        return Ok(());
    };
    for name in &when.columns {
        if let Some(column) = column("refund.when", name) {
            column.is_seen_by_the_guard();
        }
    }
    if when.columns.contains(&refund.marker) {
        let marker = quoted(&refund.marker);
        let problem = format!("names the marker {marker}, which refund itself changes");
        faults.add("refund.when", problem);
    }
    refund.when = Some(when.text);
    Ok(())
}

fn of_wallet(
    refund: &Refund,
    wallet: &DefinedTable,
    machine: Option<&DefinedTable>,
    faults: &Faults,
) {
    wallet.check("refund.wallet", faults);
    let column = |path, name: &str| NamedColumn::find(wallet, path, name, faults);
    let id = column("refund.wallet_id", &refund.wallet_id);
    if let Some(id) = &id {
        id.is_a_key();
    }
    if let Some(machine) = machine
        && let Some(account) = NamedColumn::find(machine, "refund.account", &refund.account, faults)
    {
        account.compares_exactly();
        names_a_row(&account, "refund.wallet_id", id.map(|id| id.column));
    }
    if let Some(balance) = column("refund.balance", &refund.balance)
        && balance.is_another(&[("refund.wallet_id", &refund.wallet_id)])
    {
        is_exact_money(&balance);
        balance.is_ours_to_set();
    }
}

/// A column that holds another table's keys must have a type of the same kind as the key: integer, text or uuid.
fn names_a_row(names: &NamedColumn, key: &str, of: Option<&DefinedColumn>) {
    let Some(wanted) = of.filter(|of| of.family().is_some()) else {
        return;
    };
    if names.column.family() != wanted.family() {
        let (name, type_name, wanted) = (names.name(), &names.column.type_name, &wanted.type_name);
        names.fault(format!(
            "column {name} is of type {type_name}, which cannot hold the {key} of type {wanted}"
        ));
    }
}

/// Checks that the marker can hold `marked` and `undecided`, and that the two values differ.
fn marker_tells_apart(refund: &Refund, marker: &NamedColumn) -> Result<()> {
    const MARKED: &str = "refund.marked";
    const UNDECIDED: &str = "refund.undecided";
    let (faults, marked) = (marker.faults, &refund.marked);
    if faults.has(MARKED) || faults.has(UNDECIDED) {
        return Ok(());
    }
    let is_marked = fits(MARKED, marked, marker)?;
    let Some(undecided) = &refund.undecided else {
        if marker.column.not_null {
            let name = marker.name();
            let problem = format!("NULL means undecided, but column {name} is NOT NULL");
            faults.add(UNDECIDED, problem);
        }
        return Ok(());
    };
    if fits(UNDECIDED, undecided, marker)?
        && is_marked
        && are_equal(marked, undecided, marker.column)?
    {
        let problem = format!("is the same value as marked, {}", quoted(marked));
        faults.add(UNDECIDED, problem);
    }
    Ok(())
}

/// Checks that the marker's type can read and compare the value; text, varchar and char must store it unchanged.
fn fits(path: &str, value: &str, marker: &NamedColumn) -> Result<bool> {
    let kept = match marker.column.base_type {
        pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID => {
            "(v.m::pg_catalog.text COLLATE pg_catalog.\"C\") OPERATOR(pg_catalog.=) $1"
        }
        _ => "true",
    };
    let condition = format!("{} AND {kept}", same("v.m"));
    let problem = match ask_marker(&condition, &[value], marker.column)? {
        Ok(true) => return Ok(true),
        Ok(false) => "it would be another value there".to_owned(),
        Err(failure) => failure.message,
    };
    let (value, name) = (quoted(value), marker.name());
    let problem = format!("{value} does not fit column {name}: {problem}");
    marker.faults.add(path, problem);
    Ok(false)
}

fn are_equal(marked: &str, undecided: &str, marker: &DefinedColumn) -> Result<bool> {
    let sql = same(&format!("CAST($2 AS {})", marker.cast_to));
    Ok(ask_marker(&sql, &[marked, undecided], marker)?.unwrap_or(false))
}

/// The condition that the marker equals this value by the comparison of the marker's type.
fn same(value: &str) -> String {
    format!("ROW(v.m)::pg_catalog.record OPERATOR(pg_catalog.=) ROW({value})::pg_catalog.record")
}

/// Evaluates a condition over `v.m`, which is the first value cast to the marker's type.
fn ask_marker(
    condition: &str,
    values: &[&str],
    marker: &DefinedColumn,
) -> Result<std::result::Result<bool, subxact::Failure>> {
    let type_name = &marker.cast_to;
    let sql =
        format!("SELECT COALESCE({condition}, false) FROM (SELECT CAST($1 AS {type_name})) v (m)");
    subxact::attempt(|| {
        let types = vec![pg_sys::TEXTOID; values.len()];
        let plan = Plan::prepare(&sql, &types, "a marker")?;
        let values: Vec<_> = values
            .iter()
            .map(|v| Some(row::text(&from_utf8(v))))
            .collect();
        let rows = plan.query(&values)?;
        Ok(spi::first(&rows).is_some_and(|d| d.value() != 0))
    })
}

/// Checks that an amount or a balance has an exact type.
fn is_exact_money(column: &NamedColumn) {
    if digits(column.column).is_none() {
        column.has_type("amounts and balances are integer or numeric");
    }
}

/// Checks that the balance's type holds the amounts ([`Digits::hold`]).
fn balance_holds_amounts(
    refund: &Refund,
    items: &DefinedTable,
    wallet: &DefinedTable,
    faults: &Faults,
) {
    let (amount, balance) = (items.column(&refund.amount), wallet.column(&refund.balance));
    if let (Some(amount), Some(balance)) = (amount, balance)
        && let (Some(from), Some(to)) = (digits(amount), digits(balance))
        && !to.hold(from)
    {
        let (balance, to) = (quoted(&balance.name), &balance.type_name);
        let (amount, from) = (quoted(&amount.name), &amount.type_name);
        let problem =
            format!("column {balance} of type {to} cannot hold every {amount} of type {from}");
        faults.add("refund.balance", problem);
    }
}

fn digits(column: &DefinedColumn) -> Option<Digits> {
    Digits::of_type(column.base_type, column.modifier)
}

/// The digits of a type before and after the point.
#[derive(Clone, Copy)]
pub struct Digits {
    before_point: i32,
    after_point: i32,
    /// An integer type holds all numbers of fewer than `before_point` digits, but not all of exactly `before_point`.
    is_integer: bool,
}

impl Digits {
    /// None: the type is not exact.
    pub fn of_type(base_type: Oid, modifier: i32) -> Option<Digits> {
        /// The server adds this to a numeric's type modifier.
        const HEADER: i32 = 4;
        let (before_point, after_point) = match base_type {
            pg_sys::INT2OID => (5, 0),
            pg_sys::INT4OID => (10, 0),
            pg_sys::INT8OID => (19, 0),
            pg_sys::NUMERICOID if modifier < HEADER => (i32::MAX, i32::MAX),
            pg_sys::NUMERICOID => {
                let modifier = modifier - HEADER;
                let precision = modifier >> 16 & 0xffff;
                // Eleven bits with a sign: a scale may be negative.
                let scale = ((modifier & 0x7ff) ^ 1024) - 1024;
                (precision - scale, scale)
            }
            _ => return None,
        };
        Some(Digits {
            before_point,
            after_point,
            is_integer: base_type != pg_sys::NUMERICOID,
        })
    }

    /// Whether this type holds every value of the other exactly. If a numeric is to hold integers, only its scale is
    /// checked: a scale of at least 0 rounds no integer. An integer with too many digits raises an error when stored.
    pub fn hold(self, other: Digits) -> bool {
        match (self.is_integer, other.is_integer) {
            (false, true) => self.after_point >= 0,
            (true, false) => other.after_point <= 0 && other.before_point < self.before_point,
            _ => self.before_point >= other.before_point && self.after_point >= other.after_point,
        }
    }
}
