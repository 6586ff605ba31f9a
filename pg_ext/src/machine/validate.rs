//! Makes the stored definition from the caller's definition, or reports all faults.
//!
//! Missing rights or a lock timeout end the checks at once. A member that is missing or cannot be read is one fault,
//! and the checks that need it are skipped. `read` makes a tree of the definition. `rules` checks the tree without any
//! table. `check_table` and `money` compare the tree with the tables. They also replace each predicate by its stored
//! form.

use super::columns::{DefinedTable, owned_by_caller};
use super::definition::Definition;
use super::faults::{Faults, member, quoted};
use super::money::DefinedTables;
use super::stored::{MachineCol, StoredMachine, each_stored};
use super::{check_table, money, rules, wait_for_definitions};
use crate::call::from_utf8;
use crate::caller::{self, Owner};
use crate::error::{Error, Kind, Result};
use crate::outbox::topic::Topic;
use pgrx::pg_sys::{Datum, Oid};

/// A definition without faults, and other columns of its row in once.machine.
pub struct Valid {
    pub definition: Definition,
    pub relation: Oid,
    pub items: Option<Oid>,
    pub wallet: Option<Oid>,
    pub owner: Option<Datum>,
}

/// Checks a definition; `faults` has the faults found while reading it. The caller must own the table. The caller must
/// also be a member of the role that owns the machine, and of the roles that own its topics. Raises 42501 for any other
/// caller.
pub fn validate(mut definition: Definition, faults: Faults) -> Result<Valid> {
    let owner = owner(&definition, &faults)?;
    let named = |path, name: &str| DefinedTable::named(path, name, &faults);
    let machine = named("table", &definition.table)?;
    if let Some(table) = &machine {
        ensure_owned(table.oid, &table.name)?;
    }
    rules::check_rules(&definition, &faults);
    topics(&definition, &faults)?;
    let (items, wallet) = match &definition.refund {
        Some(r) => (
            named("refund.items", &r.items)?,
            named("refund.wallet", &r.wallet)?,
        ),
        None => (None, None),
    };
    if let Some(table) = &machine {
        nobody_else_has_it(&definition, table, &faults)?;
    }
    let tables = DefinedTables {
        machine,
        items,
        wallet,
    };
    against_tables(&mut definition, &tables, &faults)?;
    faults.into_result(&definition.machine)?;
    let oid = |table: &Option<DefinedTable>| table.as_ref().map(|table| table.oid);
    let no_table = || Error::internal("a definition without faults has no table");
    Ok(Valid {
        definition: definition.without_names(),
        relation: oid(&tables.machine).ok_or_else(no_table)?,
        items: oid(&tables.items),
        wallet: oid(&tables.wallet),
        owner,
    })
}

/// Compares a stored definition with the present tables. Returns one line for each fault.
pub fn recheck(stored: &StoredMachine) -> Result<Vec<String>> {
    let (mut definition, faults) = (stored.definition()?, Faults::default());
    let read = |col| stored.relation(col).map_or(Ok(None), DefinedTable::read);
    let tables = DefinedTables {
        machine: read(MachineCol::Relation)?,
        items: read(MachineCol::Items)?,
        wallet: read(MachineCol::Wallet)?,
    };
    against_tables(&mut definition, &tables, &faults)?;
    Ok(faults.into_lines())
}

fn against_tables(
    definition: &mut Definition,
    tables: &DefinedTables,
    faults: &Faults,
) -> Result<()> {
    if let Some(table) = &tables.machine {
        check_table::check_table(definition, table, faults)?;
    }
    match &mut definition.refund {
        Some(refund) => money::check_refund(refund, &definition.id, tables, faults),
        None => Ok(()),
    }
}

/// The role that owns the machine; 42501 unless the caller is a member of that role.
fn owner(definition: &Definition, faults: &Faults) -> Result<Option<Datum>> {
    let Some(name) = &definition.owner else {
        return Ok(None);
    };
    let role = caller::role_of_name(&from_utf8(name));
    match role {
        Some(role) => {
            Owner::Role(role).ensure_member("machine", &from_utf8(&definition.machine))?;
        }
        None => faults.add("owner", format!("there is no role {}", quoted(name))),
    }
    Ok(role)
}

/// Checks that each topic of `emit` exists, and that the caller may use it (42501). Moves do not check this right.
fn topics(definition: &Definition, faults: &Faults) -> Result<()> {
    for (path, topic) in definition.emits() {
        match Topic::named(&from_utf8(topic)) {
            Ok(_) => {}
            Err(e) if e.kind == Kind::UndefinedObject => faults.add(
                &member(&path, "emit"),
                format!(
                    "there is no topic {}; once.topic_set makes one",
                    quoted(topic)
                ),
            ),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// 42501 if the caller does not own the table.
pub fn ensure_owned(table: Oid, name: &str) -> Result<()> {
    if owned_by_caller(table) {
        return Ok(());
    }
    Err(Error::new(Kind::NotYours, format!("must be owner of table {name}")).hint(
        "Only the owner of a table may define or guard it. SET ROLE to that owner, or ask the owner.",
    ))
}

/// Checks that no other machine declares this table with this status column.
fn nobody_else_has_it(
    definition: &Definition,
    table: &DefinedTable,
    faults: &Faults,
) -> Result<()> {
    let (machine, status) = (&definition.machine, &definition.status);
    if machine.is_empty() || status.is_empty() {
        return Ok(());
    }
    wait_for_definitions(table)?;
    each_stored(&mut |stored| {
        if stored.table() != Some(table.oid) {
            return Ok(());
        }
        let other = stored.definition()?;
        if other.machine != *machine && other.status == *status {
            let (other, status, table) = (quoted(&other.machine), quoted(status), &table.name);
            let problem = format!("machine {other} has {table} and its column {status} already");
            faults.add("table", problem);
        }
        Ok(())
    })
}
