//! The rows of once.machine.

use super::definition::Definition;
use crate::call::{shown, utf8, varlena};
use crate::caller::Owner;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{self, Kept, text, yes};
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{Datum, Oid, TEXTOID};
use std::ffi::CStr;

pub const TABLE: Name = c"machine";

pub const BY_NAME: Name = c"machine_pkey";

/// Columns of once.machine.
#[derive(Clone, Copy)]
pub enum MachineCol {
    Machine = 1,
    Revision,
    Relation,
    Items,
    Wallet,
    Guarded,
    Owner,
    OwnerName,
    OwnerIncarnation,
    Definition,
}

// The tables of machine $1 that were renamed since it was defined: the old name, the present name, and whether another
// table has the old name.
const RENAMED: &CStr = c"
    SELECT n.name, pg_catalog.format('%I.%I', s.nspname, c.relname),
           EXISTS (SELECT FROM pg_catalog.pg_class o JOIN pg_catalog.pg_namespace p ON p.oid = o.relnamespace
                    WHERE pg_catalog.format('%I.%I', p.nspname, o.relname) = n.name)
      FROM once.machine m
           CROSS JOIN LATERAL ROWS FROM (
               pg_catalog.unnest(m.table_names),
               pg_catalog.unnest(pg_catalog.array_remove(
                   ARRAY[m.relation::oid, m.items::oid, m.wallet::oid], NULL))) n (name, oid)
           JOIN pg_catalog.pg_class c ON c.oid = n.oid
           JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
     WHERE m.machine = $1 AND n.name <> pg_catalog.format('%I.%I', s.nspname, c.relname)";

static RENAMED_TABLES: Kept = Kept::new(RENAMED, &[TEXTOID]);

/// A machine's table that was renamed since the machine was defined.
pub struct RenamedTable {
    pub name_then: String,
    pub name_now: String,
    /// Whether another table has the old name now.
    pub is_swapped: bool,
}

/// A row of once.machine.
pub struct StoredMachine {
    slot: Slot,
}

impl StoredMachine {
    /// The row in the latest snapshot; 42704 if there is none.
    pub fn existing(machine: &[u8]) -> Result<StoredMachine> {
        StoredMachine::find(machine)?.ok_or_else(|| unknown(machine))
    }

    pub fn find(machine: &[u8]) -> Result<Option<StoredMachine>> {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(machine))];
        let slot = table.find(BY_NAME, key, &Snapshot::latest())?;
        Ok(slot.map(|slot| StoredMachine { slot }))
    }

    /// The machine's name in the database's encoding.
    pub fn name(&self) -> &[u8] {
        self.column(MachineCol::Machine)
            .map(varlena)
            .unwrap_or_default()
    }

    pub fn column(&self, col: MachineCol) -> Option<Datum> {
        self.slot.column(col as usize)
    }

    pub fn revision(&self) -> i64 {
        self.column(MachineCol::Revision)
            .map_or(0, |d| d.value() as i64)
    }

    pub fn relation(&self, col: MachineCol) -> Option<Oid> {
        self.column(col).map(|d| Oid::from(d.value() as u32))
    }

    pub fn table(&self) -> Option<Oid> {
        self.relation(MachineCol::Relation)
    }

    /// The tables of the machine, its items and the wallets.
    pub fn tables(&self) -> [Option<Oid>; 3] {
        [MachineCol::Relation, MachineCol::Items, MachineCol::Wallet].map(|col| self.relation(col))
    }

    pub fn renamed_tables(&self) -> Result<Vec<RenamedTable>> {
        let renamed = |row: &spi::Row| RenamedTable {
            name_then: text(row, 0),
            name_now: text(row, 1),
            is_swapped: yes(row, 2),
        };
        let rows = spi::query(&RENAMED_TABLES, &[Some(row::text(self.name()))])?;
        Ok(rows.iter().map(renamed).collect())
    }

    pub fn guarded(&self) -> bool {
        self.column(MachineCol::Guarded)
            .is_some_and(|d| d.value() != 0)
    }

    /// The owner's name as it was stored.
    pub fn owner_name(&self) -> Option<String> {
        let name = self.column(MachineCol::OwnerName)?;
        // SAFETY: a `name` datum ends with NUL.
        let name = unsafe { CStr::from_ptr(name.cast_mut_ptr()) };
        Some(shown(name.to_bytes()))
    }

    pub fn owner(&self) -> Result<Option<Owner>> {
        Owner::stored(
            self.column(MachineCol::Owner),
            self.column(MachineCol::OwnerName),
            self.column(MachineCol::OwnerIncarnation),
        )
    }

    /// Whether the caller may use the machine.
    pub fn is_open(&self) -> bool {
        let is_member = |owner: Owner| owner.ensure_member("machine", b"").is_ok();
        self.owner().is_ok_and(|owner| owner.is_none_or(is_member))
    }

    pub fn definition(&self) -> Result<Definition> {
        let damaged = |e: String| {
            Error::new(
                Kind::InvalidDefinition,
                "a stored definition cannot be read",
            )
            .detail(e)
            .hint("If the library is older than the definition, load the newer library.")
        };
        let stored = self
            .column(MachineCol::Definition)
            .ok_or_else(|| damaged(String::new()))?;
        serde_json::from_slice(&utf8(varlena(stored))).map_err(|e| damaged(e.to_string()))
    }
}

pub fn names() -> Result<Vec<Vec<u8>>> {
    let table = Table::to_read(TABLE)?;
    let mut names = Vec::new();
    let snapshot = Snapshot::latest();
    let mut scan = table.scan(BY_NAME, &mut [], &snapshot)?;
    while let Some(slot) = scan.advance() {
        if let Some(name) = slot.column(MachineCol::Machine as usize) {
            names.push(varlena(name).to_vec());
        }
    }
    Ok(names)
}

/// Visits every machine's row, by name.
pub fn each_stored(each: &mut dyn FnMut(&StoredMachine) -> Result<()>) -> Result<()> {
    for name in names()? {
        if let Some(stored) = StoredMachine::find(&name)? {
            each(&stored)?;
        }
    }
    Ok(())
}

pub fn unknown(machine: &[u8]) -> Error {
    Error::new(
        Kind::UndefinedObject,
        format!("machine \"{}\" does not exist", shown(machine)),
    )
    .hint("Register it with once.machine_define(definition).")
}
