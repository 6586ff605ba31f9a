//! `scope_list`, and the names of scopes: those that are declared and those that have keys.

use super::record::{BY_LOOK, Col, TABLE as KEYS};
use super::scope::{self, all_options};
use crate::call::{Call, SCOPE_MAX, varlena};
use crate::error::Result;
use crate::row::{self, Rows};
use crate::table::{Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

const MOST: i32 = 10_000;

/// Names in the order of bytes, each found by one probe, however many rows it has.
pub struct ScopeNames {
    table: Table,
    index: Name,
    /// Number of the column in the table.
    column: usize,
    snapshot: Snapshot,
}

impl ScopeNames {
    /// Scopes with options of their own.
    pub fn declared() -> Result<ScopeNames> {
        ScopeNames::of(scope::TABLE, scope::BY_SCOPE, 1)
    }

    /// Scopes with keys.
    pub fn used() -> Result<ScopeNames> {
        ScopeNames::of(KEYS, BY_LOOK, Col::Scope as usize)
    }

    fn of(table: Name, index: Name, column: usize) -> Result<ScopeNames> {
        Ok(ScopeNames {
            table: Table::to_read(table)?,
            index,
            column,
            snapshot: Snapshot::latest(),
        })
    }

    /// The first name behind this one.
    pub fn after(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let keys = &mut [ScanKey::text_above(1, row::text(name))];
        let found = self.table.find(self.index, keys, &self.snapshot)?;
        let name = found.and_then(|slot| slot.column(self.column).map(|d| varlena(d).to_vec()));
        Ok(name)
    }

    /// The first ones, at most `max`.
    pub fn first(&self, max: usize) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        while names.len() < max
            && let Some(next) = self.after(names.last().map_or(b"", |name| name))?
        {
            names.push(next);
        }
        Ok(names)
    }
}

/// `once.scope_list`.
pub fn scope_list(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST)?;
    let mut at = call
        .opt_text(1, "after", SCOPE_MAX)?
        .unwrap_or_default()
        .to_vec();
    let rows = Rows::begin(call);
    let (declared, used) = (ScopeNames::declared()?, ScopeNames::used()?);
    for _ in 0..max {
        let with_keys = used.after(&at)?;
        let Some(next) = with_keys.iter().cloned().chain(declared.after(&at)?).min() else {
            break;
        };
        rows.push(&[
            Some(row::text(&next)),
            Some(all_options(&next)?),
            Some(Datum::from(with_keys.as_ref() == Some(&next))),
        ]);
        at = next;
    }
    Ok(call.return_null())
}
