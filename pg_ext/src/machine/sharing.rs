//! What two machines may have in common and should not: a cancel flag, or items by the same subject and marker.
//!
//! It is allowed, because machines over one table may be meant to be cancelled together; `machine_check` tells
//! what comes of it. A machine of another owner is not named.

use super::definition::{Definition, Refund};
use super::model::Machine;
use super::sql::ident;
use super::stored::{Col, Stored, each_stored};
use crate::error::Result;

/// Problems with what to do about them.
pub fn found(machine: &Machine) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let table = Some(machine.shape.table.oid);
    let items = machine.shape.refund.as_ref().map(|r| r.items.oid);
    each_stored(&mut |stored| {
        let same_table = stored.relation(Col::Relation) == table;
        let same_items = items.is_some() && stored.relation(Col::Items) == items;
        if !same_table && !same_items {
            return Ok(());
        }
        let other = stored.definition()?;
        if other.machine == machine.name() {
            return Ok(());
        }
        let name = named(stored, &other);
        let ours = &machine.definition;
        if same_table && let Some(flag) = shared_flag(ours, &other) {
            found.push((
                format!("the cancel flag {} is that of {name}, too", ident(flag)),
                "Give each machine a flag of its own: with both guards on neither can be cancelled, with one a row is flagged for a teardown that only the other knows of.".to_owned(),
            ));
        }
        if same_items
            && let Some(Refund {
                subject, marker, ..
            }) = shared_items(ours, &other)
        {
            let (subject, marker) = (ident(subject), ident(marker));
            found.push((
                format!("its items are those of {name}, too: by {subject}, marked in {marker}"),
                "Give each machine items, a subject or a marker of its own: one refunds what is the other's.".to_owned(),
            ));
        }
        Ok(())
    })?;
    Ok(found)
}

fn named(stored: &Stored, other: &Definition) -> String {
    match stored.is_open() {
        true => format!("machine \"{}\"", other.machine),
        false => "a machine of another owner".to_owned(),
    }
}

fn shared_flag<'a>(ours: &'a Definition, other: &Definition) -> Option<&'a str> {
    let (ours, other) = (ours.cancel.as_ref()?, other.cancel.as_ref()?);
    (ours.flag == other.flag).then_some(ours.flag.as_str())
}

fn shared_items<'a>(ours: &'a Definition, other: &Definition) -> Option<&'a Refund> {
    let (ours, other) = (ours.refund.as_ref()?, other.refund.as_ref()?);
    (ours.subject == other.subject && ours.marker == other.marker).then_some(ours)
}
