//! Checks a definition against the machine's table: the columns exist and have usable types, the status column can hold
//! each status, and each predicate is valid. One function per check. A missing table or column is one fault, and the
//! checks that need this table or column are skipped.

use super::columns::{DefinedColumn, DefinedTable};
use super::definition::Definition;
use super::faults::{Faults, element, quoted};
use super::predicate::{self, Predicate};
use crate::call::{from_utf8, shown, varlena};
use crate::error::Result;
use crate::row;
use crate::spi::{self, Plan};
use crate::subxact;
use pgrx::pg_sys;

/// Runs the checks against the machine's own table. Replaces the `when` of each transition by its stored form.
pub fn check_table(
    definition: &mut Definition,
    table: &DefinedTable,
    faults: &Faults,
) -> Result<()> {
    table.check("table", faults);
    let d = &*definition;
    let column = |path, name: &str| NamedColumn::find(table, path, name, faults);
    if let Some(id) = column("id", &d.id) {
        id.is_a_key();
        id.is_seen_by_the_guard();
    }
    let version = d.version.as_deref().unwrap_or_default();
    let taken = [
        ("id", d.id.as_str()),
        ("status", &d.status),
        ("version", version),
    ];
    if let Some(status) = column("status", &d.status)
        && status.is_another(&taken[..1])
        && status.is_a_status()
    {
        status.is_ours_to_set();
        statuses_fit(&d.status_types, &status)?;
    }
    if let Some(version) = column("version", version)
        && version.is_another(&taken[..2])
    {
        version.is_exactly(pg_sys::INT8OID, "bigint");
        version.is_not_null();
        version.is_ours_to_set();
    }
    let flag = d.cancel.as_ref().map_or("", |cancel| &cancel.flag);
    if let Some(flag) = column("cancel.flag", flag)
        && flag.is_another(&taken)
    {
        flag.is_exactly(pg_sys::BOOLOID, "boolean");
        flag.is_not_null();
        flag.is_ours_to_set();
    }
    for (i, transition) in definition.transitions.iter_mut().enumerate() {
        let path = format!("transitions[{i}].when");
        let when = when(&path, table, transition.when.as_deref(), faults)?;
        transition.when = when.map(|when| when.text);
    }
    Ok(())
}

/// A column, and the path of the definition's member that names it. The column's faults are added under this path.
pub struct NamedColumn<'a> {
    path: &'a str,
    pub column: &'a DefinedColumn,
    pub faults: &'a Faults,
}

impl<'a> NamedColumn<'a> {
    /// None: the member names no column, or (a fault) a column that does not exist.
    pub fn find(
        table: &'a DefinedTable,
        path: &'a str,
        name: &str,
        faults: &'a Faults,
    ) -> Option<Self> {
        let column = table.column(name);
        if column.is_none() && !name.is_empty() {
            faults.add(
                path,
                format!("{} has no column {}", table.name, quoted(name)),
            );
        }
        column.map(|column| NamedColumn {
            path,
            column,
            faults,
        })
    }

    pub fn fault(&self, problem: impl AsRef<str>) {
        self.faults.add(self.path, problem);
    }

    pub fn name(&self) -> String {
        quoted(&self.column.name)
    }

    /// Whether none of these other members names the column. If one of them does, adds a fault.
    pub fn is_another(&self, others: &[(&str, &str)]) -> bool {
        let same = others.iter().find(|(_, name)| *name == self.column.name);
        if let Some((other, _)) = same {
            self.fault(format!(
                "column {} is the column of {other} already",
                self.name()
            ));
        }
        same.is_none()
    }

    /// Checks that the column can be a key: NOT NULL, unique, of a type with canonical texts, and compared exactly.
    pub fn is_a_key(&self) {
        if self.column.family().is_none() {
            self.has_type(
                "a key is an integer, uuid, text or varchar, or a domain over one of these",
            );
        }
        self.compares_exactly();
        self.is_not_null();
        if !self.column.unique {
            let problem = "needs a valid unique index on it alone, not partial and not deferrable";
            self.fault(format!("column {} {problem}", self.name()));
        }
    }

    pub fn has_type(&self, problem: &str) {
        let (name, type_name) = (self.name(), &self.column.type_name);
        self.fault(format!("column {name} is of type {type_name}; {problem}"));
    }

    /// Checks that the column's collation makes no two different texts equal.
    pub fn compares_exactly(&self) {
        if !self.column.deterministic {
            let name = self.name();
            self.fault(format!(
                "column {name} has a collation that is not deterministic"
            ));
        }
    }

    fn is_not_null(&self) {
        if !self.column.not_null {
            self.fault(format!("column {} must be NOT NULL", self.name()));
        }
    }

    fn is_exactly(&self, wanted: pg_sys::Oid, name: &str) {
        if self.column.base_type != wanted {
            self.has_type(&format!("it must be {name}"));
        }
    }

    /// Checks that the column is not generated: a guard that fires before a write cannot see the column's new value.
    pub fn is_seen_by_the_guard(&self) {
        if self.column.computed {
            let name = self.name();
            self.fault(format!(
                "column {name} is generated: the guard cannot see its new value"
            ));
        }
    }

    /// Adds a fault for a generated column, which no UPDATE can set. Also adds a fault for a column of a partition key.
    /// An UPDATE of such a column can put the row into another partition.
    pub fn is_ours_to_set(&self) {
        let name = self.name();
        if self.column.generated {
            self.fault(format!("column {name} is generated and cannot be set"));
        }
        if self.column.partition_key {
            self.fault(format!("the table is partitioned by column {name}"));
        }
    }

    /// Checks the type (text, varchar, enum, or a domain over one) and the collation. Returns whether the type fits.
    fn is_a_status(&self) -> bool {
        let is_text = matches!(self.column.base_type, pg_sys::TEXTOID | pg_sys::VARCHAROID);
        let usable = self.column.is_enum || is_text;
        if !usable {
            self.has_type("a status is a text, varchar or enum, or a domain over one of these");
        }
        self.compares_exactly();
        usable
    }
}

/// Checks that the column can hold each status: a label of the enum, not too long, and accepted by the domain.
fn statuses_fit(statuses: &[String], column: &NamedColumn) -> Result<()> {
    for (i, status) in statuses.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
        if let Some(problem) = misfit(status, &column.column.cast_to)? {
            let (status, name) = (quoted(status), column.name());
            let problem = format!("{status} does not fit column {name}: {problem}");
            column.faults.add(&element("status_types", i), problem);
        }
    }
    Ok(())
}

/// Why a type cannot hold a text: the type would change the text, or refuses it. None: the text is stored unchanged.
fn misfit(text: &str, type_name: &str) -> Result<Option<String>> {
    let sql = format!("SELECT CAST($1 AS {type_name})::pg_catalog.text");
    let stored = subxact::attempt(|| {
        let plan = Plan::prepare(&sql, &[pg_sys::TEXTOID], "a status")?;
        let rows = plan.query(&[Some(row::text(&from_utf8(text)))])?;
        Ok(spi::first(&rows).map_or(String::new(), |d| shown(varlena(d))))
    })?;
    Ok(match stored {
        Ok(stored) if stored == text => None,
        Ok(stored) => Some(format!("it would be stored as {}", quoted(&stored))),
        Err(failure) => Some(failure.message),
    })
}

/// Reads a predicate and makes its stored form; adds a fault if it is refused.
pub fn when(
    path: &str,
    table: &DefinedTable,
    text: Option<&str>,
    faults: &Faults,
) -> Result<Option<Predicate>> {
    let Some(text) = text else {
        return Ok(None);
    };
    match predicate::read_predicate(table.oid, text)? {
        Ok(predicate) => Ok(Some(predicate)),
        Err(failure) => {
            faults.add(path, failure);
            Ok(None)
        }
    }
}
