//! Rows without their lease or teardown, for `machine_check`.

use super::check::{Findings, as_owner};
use crate::call::shown;
use crate::cancel::adopt::{Orphan, orphans};
use crate::error::Result;
use crate::machine::model::Machine;
use std::collections::BTreeMap;

/// Up to this many rows of one kind are counted.
const MOST_ORPHANS: i64 = 1_000;
/// A problem names up to this many rows.
const NAMED: usize = 5;

/// Finds orphaned rows. Reads the table as its owner.
pub(super) fn search(machine: &Machine, found: &mut Findings) -> Result<()> {
    let table = &machine.shape.table;
    for kind in [Orphan::Claimed, Orphan::Flagged] {
        let mut left = MOST_ORPHANS;
        let mut by_status: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let searched = as_owner(machine, || {
            orphans(machine, kind, &mut |id, status| {
                let ids = by_status.entry(shown(status)).or_default();
                ids.push(shown(&id.text));
                left -= 1;
                Ok(left > 0)
            })
        })?;
        if let Err(failure) = searched {
            found.add(
                format!(
                    "rows of {} could not be read: {}",
                    table.name, failure.message
                ),
                "Read the table as its owner to see why.",
            );
            // The search for the other kind would fail in the same way.
            return Ok(());
        }
        for (status, ids) in by_status {
            let (number, named) = (ids.len(), ids.len().min(NAMED));
            let s = if number == 1 { "" } else { "s" };
            let more = if left == 0 { " or more" } else { "" };
            let rows = format!("{number} row{s}{more}");
            let more = if number > NAMED { ", ..." } else { "" };
            let ids = ids[..named].join(", ") + more;
            match kind {
                Orphan::Claimed => found.add(
                    format!("{rows} in claim state \"{status}\" without a lease: {ids}"),
                    "Call once.action_adopt(machine); the next sweep reverts them.",
                ),
                Orphan::Flagged => found.add(
                    format!("{rows} in \"{status}\" with the cancel flag set without once.cancel_request: {ids}"),
                    "Call once.action_adopt(machine): cancel_pending lists them then.",
                ),
            }
        }
    }
    Ok(())
}
