//! The checks of a definition against its own table: columns that exist and have usable types, statuses that
//! the column can hold, predicates. One function for each check; what needs a table or a column that is not
//! there is left out, and the missing one is the fault.

use super::columns::{Column, Table};
use super::draft::Draft;
use super::faults::{Faults, element, member, quoted};
use super::predicate::{self, Predicate};
use crate::call::{from_utf8, shown, varlena};
use crate::error::Result;
use crate::row;
use crate::spi::Plan;
use crate::subxact;
use pgrx::pg_sys;

/// Runs the checks of the machine's own table; `whens` are the transitions' predicates as they are kept.
pub fn check(draft: &Draft, table: &Table, faults: &mut Faults) -> Result<Vec<Option<Predicate>>> {
    table.check("table", faults);
    if let Some(id) = column(table, "id", &draft.id, faults) {
        is_a_key("id", id, faults);
        is_seen_by_the_guard("id", id, faults);
    }
    if let Some(status) = column(table, "status", &draft.status, faults)
        && is_another("status", status, &[("id", &draft.id)], faults)
        && is_a_status(status, faults)
    {
        is_ours_to_set("status", status, faults);
        statuses_fit(draft, status, faults)?;
    }
    let before = [("id", &draft.id), ("status", &draft.status)];
    if let Some(version) = column(table, "version", &draft.version, faults)
        && is_another("version", version, &before, faults)
    {
        is_exactly("version", version, pg_sys::INT8OID, "bigint", faults);
        is_not_null("version", version, faults);
        is_ours_to_set("version", version, faults);
    }
    let before = [before.as_slice(), &[("version", &draft.version)]].concat();
    if let Some(cancel) = &draft.cancel
        && let Some(flag) = column(table, "cancel.flag", &cancel.flag, faults)
        && is_another("cancel.flag", flag, &before, faults)
    {
        is_exactly("cancel.flag", flag, pg_sys::BOOLOID, "boolean", faults);
        is_not_null("cancel.flag", flag, faults);
        is_ours_to_set("cancel.flag", flag, faults);
    }
    let whens = draft.transitions.iter().map(|transition| {
        let path = member(&transition.path, "when");
        when(&path, table, transition.when.as_deref(), faults)
    });
    whens.collect()
}

/// The column that a member names, where it names one.
pub fn column<'a>(
    table: &'a Table,
    path: &str,
    name: &Option<String>,
    faults: &mut Faults,
) -> Option<&'a Column> {
    table.column(path, name.as_deref()?, faults)
}

/// A column has one part to play.
pub fn is_another(
    path: &str,
    column: &Column,
    others: &[(&str, &Option<String>)],
    faults: &mut Faults,
) -> bool {
    let same = others
        .iter()
        .find(|(_, name)| name.as_deref() == Some(&column.name));
    if let Some((other, _)) = same {
        faults.add(
            path,
            format!("column {} is {other} already", quoted(&column.name)),
        );
    }
    same.is_none()
}

/// Rows are found by it: a type with one canonical text, exact comparison, NOT NULL, unique.
pub fn is_a_key(path: &str, column: &Column, faults: &mut Faults) {
    if column.family().is_none() {
        let problem = "a key is an integer, uuid, text or varchar, or a domain over one of these";
        has_type(path, column, problem, faults);
    }
    compares_exactly(path, column, faults);
    is_not_null(path, column, faults);
    if !column.unique {
        let name = quoted(&column.name);
        let problem = "needs a valid unique index on it alone, not partial and not deferrable";
        faults.add(path, format!("column {name} {problem}"));
    }
}

pub fn has_type(path: &str, column: &Column, problem: &str, faults: &mut Faults) {
    let (name, type_name) = (quoted(&column.name), &column.type_name);
    faults.add(
        path,
        format!("column {name} is of type {type_name}; {problem}"),
    );
}

/// A text that only looks the same is another one.
pub fn compares_exactly(path: &str, column: &Column, faults: &mut Faults) {
    if !column.deterministic {
        let name = quoted(&column.name);
        faults.add(
            path,
            format!("column {name} has a collation that is not deterministic"),
        );
    }
}

pub fn is_not_null(path: &str, column: &Column, faults: &mut Faults) {
    if !column.not_null {
        faults.add(
            path,
            format!("column {} must be NOT NULL", quoted(&column.name)),
        );
    }
}

fn is_exactly(path: &str, column: &Column, wanted: pg_sys::Oid, name: &str, faults: &mut Faults) {
    if column.base_type != wanted {
        has_type(path, column, &format!("it must be {name}"), faults);
    }
}

/// A guard before the row sees a generated column as it was, not as it will be.
pub fn is_seen_by_the_guard(path: &str, column: &Column, faults: &mut Faults) {
    if column.computed {
        let name = quoted(&column.name);
        faults.add(
            path,
            format!("column {name} is generated: the guard cannot see what it becomes"),
        );
    }
}

/// A column that we write: nobody can set a generated one, and a write to a partition key moves the row from
/// under whoever waits for it.
pub fn is_ours_to_set(path: &str, column: &Column, faults: &mut Faults) {
    let name = quoted(&column.name);
    if column.generated {
        faults.add(
            path,
            format!("column {name} is generated and cannot be set"),
        );
    }
    if column.partition_key {
        faults.add(path, format!("the table is partitioned by column {name}"));
    }
}

/// A text, a varchar or an enum, or a domain over one of these.
fn is_a_status(column: &Column, faults: &mut Faults) -> bool {
    let usable = column.is_enum || matches!(column.base_type, pg_sys::TEXTOID | pg_sys::VARCHAROID);
    if !usable {
        let problem = "a status is a text, varchar or enum, or a domain over one of these";
        has_type("status", column, problem, faults);
    }
    compares_exactly("status", column, faults);
    usable
}

/// Every status can stand in the column: it is a label of the enum, short enough, and the domain accepts it.
fn statuses_fit(draft: &Draft, column: &Column, faults: &mut Faults) -> Result<()> {
    let all = draft.status_types.as_deref().unwrap_or_default();
    let name = quoted(&column.name);
    for (i, problem) in misfits(all, &column.cast_to)? {
        let status = all.get(i).map(|s| quoted(s)).unwrap_or_default();
        let path = element("status_types", i);
        faults.add(
            &path,
            format!("{status} does not fit column {name}: {problem}"),
        );
    }
    Ok(())
}

/// Those of the texts that are another text as a value of the type, or none. All in one look; only where
/// that fails one by one, in subtransactions that write nothing.
fn misfits(texts: &[String], type_name: &str) -> Result<Vec<(usize, String)>> {
    let look = |texts: &[String]| {
        let bytes: Vec<_> = texts.iter().map(|t| from_utf8(t)).collect();
        let array = row::texts(&bytes.iter().map(|b| b.as_ref()).collect::<Vec<_>>());
        let sql = format!(
            "SELECT (s.i - 1)::pg_catalog.int4, CAST(s.t AS {type_name})::pg_catalog.text
               FROM pg_catalog.unnest($1) WITH ORDINALITY s (t, i)
              WHERE (CAST(s.t AS {type_name})::pg_catalog.text COLLATE pg_catalog.\"C\")
                    OPERATOR(pg_catalog.<>) s.t"
        );
        let plan = Plan::prepare(&sql, &[pg_sys::TEXTARRAYOID], "a status")?;
        plan.query(&[Some(array)])
    };
    let changed = |row: &crate::spi::Row| {
        let value = |i: usize| row.get(i).copied().flatten();
        let stored = value(1)
            .map(|d| quoted(&shown(varlena(d))))
            .unwrap_or_default();
        let i = value(0).map_or(0, |d| d.value());
        (i, format!("there it would be {stored}"))
    };
    if let Ok(rows) = subxact::attempt(|| look(texts))? {
        return Ok(rows.iter().map(changed).collect());
    }
    let mut found = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        match subxact::attempt(|| look(std::slice::from_ref(text)))? {
            Ok(rows) => found.extend(rows.iter().map(|row| (i, changed(row).1))),
            Err(failure) => found.push((i, failure.message)),
        }
    }
    Ok(found)
}

/// A predicate that is well formed, as it is kept.
pub fn when(
    path: &str,
    table: &Table,
    text: Option<&str>,
    faults: &mut Faults,
) -> Result<Option<Predicate>> {
    let Some(text) = text else {
        return Ok(None);
    };
    match predicate::read(table.oid, text)? {
        Ok(predicate) => Ok(Some(predicate)),
        Err(failure) => {
            faults.add(path, failure);
            Ok(None)
        }
    }
}
