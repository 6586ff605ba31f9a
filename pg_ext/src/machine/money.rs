//! The checks of `refund` against the tables of its items and wallets: keys, the columns that tie the tables
//! together, the marker, and types that lose nothing of an amount.

use super::columns::{Column, Table};
use super::draft::{Draft, Refund};
use super::faults::{Faults, quoted};
use super::fit::{
    column, compares_exactly, has_type, is_a_key, is_another, is_ours_to_set, is_seen_by_the_guard,
    when,
};
use super::predicate::Predicate;
use crate::call::from_utf8;
use crate::error::Result;
use crate::row;
use crate::spi::{self, Plan};
use crate::subxact;
use pgrx::pg_sys::{self, Oid};

/// The tables of a machine with `refund`; None: not there.
pub struct Tables<'a> {
    pub machine: Option<&'a Table>,
    pub items: Option<&'a Table>,
    pub wallet: Option<&'a Table>,
}

/// Runs the checks; answers the predicate as it is kept.
pub fn check(
    draft: &Draft,
    refund: &Refund,
    tables: &Tables,
    faults: &mut Faults,
) -> Result<Option<Predicate>> {
    tables_are_three(tables, faults);
    let when = match tables.items {
        Some(items) => of_items(refund, items, tables.machine, draft, faults)?,
        None => None,
    };
    if let Some(wallet) = tables.wallet {
        of_wallet(refund, wallet, tables.machine, faults);
    }
    if let (Some(items), Some(wallet)) = (tables.items, tables.wallet) {
        balance_holds_amounts(refund, items, wallet, faults);
    }
    Ok(when)
}

/// A row, its items and its wallet are locked one after another and changed by one statement.
fn tables_are_three(tables: &Tables, faults: &mut Faults) {
    let oid = |table: Option<&Table>| table.map(|table| table.oid);
    let same = |a: Option<&Table>, b: Option<&Table>| a.is_some() && oid(a) == oid(b);
    if same(tables.items, tables.machine) {
        faults.add("refund.items", "is the machine's own table");
    }
    if same(tables.wallet, tables.machine) {
        faults.add("refund.wallet", "is the machine's own table");
    }
    if same(tables.wallet, tables.items) {
        faults.add("refund.wallet", "is the table of the items");
    }
}

fn of_items(
    refund: &Refund,
    items: &Table,
    machine: Option<&Table>,
    draft: &Draft,
    faults: &mut Faults,
) -> Result<Option<Predicate>> {
    items.check("refund.items", faults);
    for (path, name) in [
        ("refund.subject", &refund.subject),
        ("refund.amount", &refund.amount),
    ] {
        if let Some(column) = column(items, path, name, &mut Faults::default()) {
            is_seen_by_the_guard(path, column, faults);
        }
    }
    if let Some(id) = column(items, "refund.item_id", &refund.item_id, faults) {
        is_a_key("refund.item_id", id, faults);
    }
    let key = [("refund.item_id", &refund.item_id)];
    if let Some(subject) = column(items, "refund.subject", &refund.subject, faults)
        && is_another("refund.subject", subject, &key, faults)
    {
        compares_exactly("refund.subject", subject, faults);
        let id = machine.and_then(|table| column(table, "", &draft.id, &mut Faults::default()));
        names_a_row("refund.subject", subject, "id", id, faults);
    }
    let others = [
        ("refund.item_id", &refund.item_id),
        ("refund.subject", &refund.subject),
        ("refund.amount", &refund.amount),
    ];
    if let Some(marker) = column(items, "refund.marker", &refund.marker, faults)
        && is_another("refund.marker", marker, &others, faults)
    {
        compares_exactly("refund.marker", marker, faults);
        is_ours_to_set("refund.marker", marker, faults);
        marker_tells_apart(refund, marker, faults)?;
    }
    if let Some(amount) = column(items, "refund.amount", &refund.amount, faults) {
        is_exact_money("refund.amount", amount, faults);
    }
    let when = when("refund.when", items, refund.when.as_deref(), faults)?;
    for name in when.iter().flat_map(|when| &when.columns) {
        if let Some(column) = column(
            items,
            "refund.when",
            &Some(name.clone()),
            &mut Faults::default(),
        ) {
            is_seen_by_the_guard("refund.when", column, faults);
        }
    }
    if let (Some(when), Some(marker)) = (&when, &refund.marker)
        && when.columns.contains(marker)
    {
        let problem = format!(
            "names the marker {}, which refund itself changes",
            quoted(marker)
        );
        faults.add("refund.when", problem);
    }
    Ok(when)
}

fn of_wallet(refund: &Refund, wallet: &Table, machine: Option<&Table>, faults: &mut Faults) {
    wallet.check("refund.wallet", faults);
    let id = column(wallet, "refund.wallet_id", &refund.wallet_id, faults);
    if let Some(id) = id {
        is_a_key("refund.wallet_id", id, faults);
    }
    if let Some(machine) = machine
        && let Some(account) = column(machine, "refund.account", &refund.account, faults)
    {
        compares_exactly("refund.account", account, faults);
        names_a_row("refund.account", account, "refund.wallet_id", id, faults);
    }
    let key = [("refund.wallet_id", &refund.wallet_id)];
    if let Some(balance) = column(wallet, "refund.balance", &refund.balance, faults)
        && is_another("refund.balance", balance, &key, faults)
    {
        is_exact_money("refund.balance", balance, faults);
        is_ours_to_set("refund.balance", balance, faults);
    }
}

/// A column that holds another table's keys has a type of the same kind: integers, texts, or uuid.
fn names_a_row(path: &str, column: &Column, key: &str, of: Option<&Column>, faults: &mut Faults) {
    let Some(wanted) = of.filter(|of| of.family().is_some()) else {
        return;
    };
    if column.family() != wanted.family() {
        let (name, type_name) = (quoted(&column.name), &column.type_name);
        let problem = format!("is of type {type_name}, which cannot hold the {key} of type");
        faults.add(
            path,
            format!("column {name} {problem} {}", wanted.type_name),
        );
    }
}

/// The marker can hold `marked` and `undecided`, and they are two values.
fn marker_tells_apart(refund: &Refund, marker: &Column, faults: &mut Faults) -> Result<()> {
    let name = quoted(&marker.name);
    let (Some(marked), Some(undecided)) = (&refund.marked, &refund.undecided) else {
        return Ok(());
    };
    let mut fits = fits("refund.marked", marked, marker, faults)?;
    match undecided {
        None if marker.not_null => {
            let problem = format!("NULL means undecided, but column {name} is NOT NULL");
            faults.add("refund.undecided", problem);
        }
        None => {}
        Some(undecided) => {
            fits &= self::fits("refund.undecided", undecided, marker, faults)?;
            if fits && are_equal(marked, undecided, marker)? {
                let value = quoted(marked);
                faults.add(
                    "refund.undecided",
                    format!("is the same value as marked, {value}"),
                );
            }
        }
    }
    Ok(())
}

/// The marker's type reads the value, compares it, and stores a text as it is.
fn fits(path: &str, value: &str, marker: &Column, faults: &mut Faults) -> Result<bool> {
    let kept = match marker.base_type {
        pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID => {
            "(v.m::pg_catalog.text COLLATE pg_catalog.\"C\") OPERATOR(pg_catalog.=) $1"
        }
        _ => "true",
    };
    let problem = match look(&format!("{} AND {kept}", same("v.m")), &[value], marker)? {
        Ok(true) => return Ok(true),
        Ok(false) => "it would be another value there".to_owned(),
        Err(failure) => failure.message,
    };
    let (value, name) = (quoted(value), quoted(&marker.name));
    faults.add(
        path,
        format!("{value} does not fit column {name}: {problem}"),
    );
    Ok(false)
}

fn are_equal(marked: &str, undecided: &str, marker: &Column) -> Result<bool> {
    let sql = same(&format!("CAST($2 AS {})", marker.cast_to));
    Ok(look(&sql, &[marked, undecided], marker)?.unwrap_or(false))
}

/// The marker's value is this one, as its type compares values.
fn same(value: &str) -> String {
    format!("ROW(v.m)::pg_catalog.record OPERATOR(pg_catalog.=) ROW({value})::pg_catalog.record")
}

/// A condition over `v.m`, the first value as the marker's type.
fn look(
    condition: &str,
    values: &[&str],
    marker: &Column,
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

/// Amounts and balances are counted exactly.
fn is_exact_money(path: &str, column: &Column, faults: &mut Faults) {
    if digits(column).is_none() {
        let problem = "amounts and balances are integer or numeric";
        has_type(path, column, problem, faults);
    }
}

/// The balance's type holds every amount exactly.
fn balance_holds_amounts(refund: &Refund, items: &Table, wallet: &Table, faults: &mut Faults) {
    let silent = &mut Faults::default();
    let amount = column(items, "", &refund.amount, silent);
    let balance = column(wallet, "", &refund.balance, silent);
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

fn digits(column: &Column) -> Option<Digits> {
    Digits::of(column.base_type, column.modifier)
}

/// What a type can count.
#[derive(Clone, Copy)]
pub enum Digits {
    /// A whole number of so many digits; of every such number only with one digit less.
    Integer(i32),
    Numeric {
        before_point: i32,
        after_point: i32,
    },
    /// A numeric without limits.
    Any,
}

impl Digits {
    /// None: the type does not count exactly.
    pub fn of(base_type: Oid, modifier: i32) -> Option<Digits> {
        /// A type modifier counts from here.
        const HEADER: i32 = 4;
        let integer = |type_oid: Oid| match type_oid {
            pg_sys::INT2OID => Some(5),
            pg_sys::INT4OID => Some(10),
            pg_sys::INT8OID => Some(19),
            _ => None,
        };
        if let Some(digits) = integer(base_type) {
            return Some(Digits::Integer(digits));
        }
        if base_type != pg_sys::NUMERICOID {
            return None;
        }
        if modifier < HEADER {
            return Some(Digits::Any);
        }
        let modifier = modifier - HEADER;
        let precision = modifier >> 16 & 0xffff;
        // Eleven bits with a sign: a scale may be negative.
        let scale = ((modifier & 0x7ff) ^ 1024) - 1024;
        Some(Digits::Numeric {
            before_point: precision - scale,
            after_point: scale,
        })
    }

    /// Whether every value of the other type is one of this type, and the same. A numeric takes every integer
    /// type: most have fewer digits than a bigint could, and a larger number is an error, not another number.
    pub fn hold(self, other: Digits) -> bool {
        match (self, other) {
            (Digits::Any, _) => true,
            (_, Digits::Any) => false,
            (Digits::Integer(to), Digits::Integer(from)) => to >= from,
            (
                Digits::Integer(to),
                Digits::Numeric {
                    before_point,
                    after_point,
                },
            ) => after_point <= 0 && before_point < to,
            (Digits::Numeric { after_point, .. }, Digits::Integer(_)) => after_point >= 0,
            (
                Digits::Numeric {
                    before_point,
                    after_point,
                },
                Digits::Numeric {
                    before_point: most,
                    after_point: finest,
                },
            ) => after_point >= finest && before_point >= most,
        }
    }
}
