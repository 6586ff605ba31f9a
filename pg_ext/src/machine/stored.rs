//! The rows of once.machine: what was defined, and whose it is.

use super::definition::Definition;
use crate::call::{shown, utf8, varlena};
use crate::caller::Owner;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{Datum, Oid};

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

/// The row of once.machine that a name stands for.
pub struct StoredMachine {
    slot: Slot,
}

impl StoredMachine {
    /// The committed row; 42704 where there is none.
    pub fn existing(machine: &[u8]) -> Result<StoredMachine> {
        StoredMachine::find(machine)?.ok_or_else(|| unknown(machine))
    }

    pub fn find(machine: &[u8]) -> Result<Option<StoredMachine>> {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(machine))];
        let slot = table.find(BY_NAME, key, &Snapshot::latest())?;
        Ok(slot.map(|slot| StoredMachine { slot }))
    }

    /// The machine's, in the database's encoding.
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

    /// The machine's own table.
    pub fn table(&self) -> Option<Oid> {
        self.relation(MachineCol::Relation)
    }

    /// The machine's table, its items' and the wallets'.
    pub fn tables(&self) -> [Option<Oid>; 3] {
        [MachineCol::Relation, MachineCol::Items, MachineCol::Wallet].map(|col| self.relation(col))
    }

    pub fn guarded(&self) -> bool {
        self.column(MachineCol::Guarded)
            .is_some_and(|d| d.value() != 0)
    }

    pub fn owner(&self) -> Result<Option<Owner>> {
        Owner::stored(
            self.column(MachineCol::Owner),
            self.column(MachineCol::OwnerName),
            self.column(MachineCol::OwnerIncarnation),
        )
    }

    /// The caller may use the machine.
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
            .hint("If the library is older than the definition, load the newer one.")
        };
        let stored = self
            .column(MachineCol::Definition)
            .ok_or_else(|| damaged(String::new()))?;
        serde_json::from_slice(&utf8(varlena(stored))).map_err(|e| damaged(e.to_string()))
    }
}

/// The names of all machines.
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

/// Shows every machine's row, by name.
pub fn each_stored(each: &mut dyn FnMut(&StoredMachine) -> Result<()>) -> Result<()> {
    for name in names()? {
        if let Some(stored) = StoredMachine::find(&name)? {
            each(&stored)?;
        }
    }
    Ok(())
}

/// What stands for an error of a machine that has another owner: it may quote a row.
pub const NOT_TOLD: &str = "told to the owner of the machine";

/// The names (text[]) of the machines that are closed to the caller.
pub fn closed_to_caller() -> Result<Datum> {
    let mut closed = Vec::new();
    each_stored(&mut |stored| {
        if !stored.is_open() {
            closed.push(stored.name().to_vec());
        }
        Ok(())
    })?;
    let names: Vec<&[u8]> = closed.iter().map(Vec::as_slice).collect();
    Ok(row::texts(&names))
}

pub fn unknown(machine: &[u8]) -> Error {
    Error::new(
        Kind::UndefinedObject,
        format!("machine \"{}\" does not exist", shown(machine)),
    )
    .hint("Register it with once.machine_define(definition).")
}
