//! `scope_list`, and the names of declared scopes and of scopes that have keys.

use super::record::{self, BY_LOOK};
use super::scope::{self, all_options};
use crate::call::{Call, SCOPE_MAX, varlena};
use crate::error::Result;
use crate::row::{self, Rows};
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

const MOST_SCOPES: i32 = 10_000;
/// The search for a key of a scope stops after this many index entries; an old snapshot keeps those of deleted keys.
const MOST_ENTRIES: usize = 1_000;

/// The names of scopes in byte order. Index probes find the next name, however many keys a scope has.
pub struct ScopeNames {
    keys: Table,
    options: Table,
    snapshot: Snapshot,
}

impl ScopeNames {
    pub fn begin() -> Result<ScopeNames> {
        Ok(ScopeNames {
            keys: Table::to_read(record::TABLE)?,
            options: Table::to_read(scope::TABLE)?,
            snapshot: Snapshot::latest(),
        })
    }

    /// The first scope after this name that has options of its own.
    pub fn declared_after(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let range = &mut [ScanKey::text_above(1, row::text(name))];
        let found = self.options.find(scope::BY_SCOPE, range, &self.snapshot)?;
        Ok(found.and_then(|slot| slot.column(1).map(|d| varlena(d).to_vec())))
    }

    /// The first scope after this name that has keys. After MOST_ENTRIES entries of deleted keys in one scope, the
    /// search stops and returns this scope. It is then unknown whether the scope has keys.
    pub fn used_after(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut name = name.to_vec();
        loop {
            let range = ScanKey::text_above(1, row::text(&name));
            let Some(next) = record::first_scope(&self.keys, range, &self.snapshot)? else {
                return Ok(None);
            };
            let of_scope = &mut [ScanKey::text(1, row::text(&next))];
            if self
                .keys
                .may_find(BY_LOOK, of_scope, &self.snapshot, MOST_ENTRIES)?
            {
                return Ok(Some(next));
            }
            name = next;
        }
    }
}

/// The first `max` names. `after` finds the name that follows a given one.
pub fn first_names(
    max: usize,
    after: impl Fn(&[u8]) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    while names.len() < max
        && let Some(next) = after(names.last().map_or(b"", |name| name))?
    {
        names.push(next);
    }
    Ok(names)
}

/// `once.scope_list`.
pub fn scope_list(call: &Call) -> Result<Datum> {
    let max = call.limit(0, "max", MOST_SCOPES)?;
    let after = call.opt_text(1, "after", SCOPE_MAX)?;
    let mut at = after.unwrap_or_default().to_vec();
    let rows = Rows::begin(call);
    let names = ScopeNames::begin()?;
    for _ in 0..max {
        let (used, declared) = (names.used_after(&at)?, names.declared_after(&at)?);
        let Some(next) = used.iter().chain(&declared).min() else {
            break;
        };
        rows.push(&[
            Some(row::text(next)),
            Some(all_options(next)?),
            Some(Datum::from(used.as_ref() == Some(next))),
        ]);
        at = next.clone();
    }
    Ok(call.return_null())
}
