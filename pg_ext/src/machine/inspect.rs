//! machine_get shows a stored definition in the form that machine_define takes; machine_list shows some members of each
//! definition. Tables have their present names, and intervals are the texts that the definition gave.

use super::definition::Definition;
use super::stored::{self, MachineCol, StoredMachine};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown, varlena};
use crate::caller::Owner;
use crate::error::{Error, Result};
use crate::row::{self, Rows};
use crate::spi::{self, Kept};
use pgrx::pg_sys::{Datum, NAMEOID, OIDOID};
use std::ffi::CStr;

// A dropped table is shown by its oid.
const TABLE_NAME: &CStr = c"
    SELECT COALESCE((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
                       FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                      WHERE c.oid = $1), $1::text)";

// A dropped owner is shown by the name that is stored with the machine.
const OWNER_NAME: &CStr = c"
    SELECT COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = $1), $2)::text";

static NAME_OF_TABLE: Kept = Kept::new(TABLE_NAME, &[OIDOID]);
static NAME_OF_OWNER: Kept = Kept::new(OWNER_NAME, &[OIDOID, NAMEOID]);

/// `once.machine_get`.
pub fn machine_get(call: &Call) -> Result<Datum> {
    let name = call.text(0, "machine", SCOPE_MAX)?;
    let stored = StoredMachine::existing(name)?;
    if let Some(owner) = stored.owner()? {
        owner.ensure_member("machine", name)?;
    }
    described(&stored)
}

pub fn described(stored: &StoredMachine) -> Result<Datum> {
    let definition = serde_json::to_string(&as_written(stored)?);
    let text = definition.map_err(Error::internal)?;
    Ok(row::text(&from_utf8(&text)))
}

/// A stored machine in the form that machine_define takes.
fn as_written(stored: &StoredMachine) -> Result<Definition> {
    let mut definition = stored.definition()?;
    let table = |col| one_text(&NAME_OF_TABLE, &[stored.column(col)]);
    definition.table = table(MachineCol::Relation)?;
    if let Some(refund) = &mut definition.refund {
        refund.items = table(MachineCol::Items)?;
        refund.wallet = table(MachineCol::Wallet)?;
    }
    if let Some(owner) = stored.owner()? {
        let role = match owner {
            Owner::Role(role) => Some(role),
            Owner::Gone => None,
        };
        let name = one_text(
            &NAME_OF_OWNER,
            &[role, stored.column(MachineCol::OwnerName)],
        )?;
        definition.owner = Some(name);
    }
    definition.history_us = None;
    for step in &mut definition.steps {
        step.lease_us = None;
    }
    Ok(definition)
}

/// `once.machine_list`.
pub fn machine_list(call: &Call) -> Result<Datum> {
    let rows = Rows::begin(call);
    stored::each_stored(&mut |stored| {
        let definition = as_written(stored)?;
        let text = |text: &str| row::text(&from_utf8(text));
        let states: Vec<_> = definition
            .status_types
            .iter()
            .map(|s| from_utf8(s))
            .collect();
        let states: Vec<&[u8]> = states.iter().map(|s| &**s).collect();
        rows.push(&[
            Some(row::text(stored.name())),
            Some(text(&definition.table)),
            Some(Datum::from(stored.guarded())),
            definition.module.as_deref().map(text),
            definition.owner.as_deref().map(text),
            Some(row::texts(&states)),
        ]);
        Ok(())
    })?;
    Ok(call.return_null())
}

fn one_text(kept: &'static Kept, args: &[Option<Datum>]) -> Result<String> {
    let rows = spi::query(kept, args)?;
    Ok(spi::first(&rows).map_or(String::new(), |d| shown(varlena(d))))
}
