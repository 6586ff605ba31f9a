//! machine_define and machine_drop: who may change a machine, and what a held lease forbids.
//!
//! A change of a machine holds the machine's lock (`lock_of`) exclusively to the end of the transaction; a claim shares
//! it. So each claim sees the change, or the change sees the claim. Under the lock everything is looked up in the
//! latest snapshot, at every isolation level.

use super::install;
use crate::action::lease::{self, Lease, LeaseCol};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown, utf8};
use crate::caller::{self, Owner};
use crate::cancel::pending;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::incarnation;
use crate::json::{self, Members};
use crate::machine::definition::Cancel;
use crate::machine::faults::{Faults, element, member, quoted};
use crate::machine::inspect;
use crate::machine::read;
use crate::machine::relation::Relation;
use crate::machine::stored::{StoredMachine, TABLE};
use crate::machine::validate::{self, Valid, ensure_owned};
use crate::machine::wait_for_claims;
use crate::row;
use crate::spi::{self, Kept};
use crate::table::{self, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{self, Datum, INT8OID, OIDOID, TEXTOID};
use serde_json::Value;
use std::collections::HashSet;
use std::ffi::CStr;

/// A definition has up to this many bytes after its conversion to jsonb and back to text.
const MOST_BYTES: usize = 1_000_000;

const STORE: &CStr = c"
    INSERT INTO once.machine (machine, revision, relation, items, wallet, guarded, owner, owner_name,
                              owner_incarnation, definition, table_names)
    VALUES ($1, $2, $3, $4, $5, false, $6, (SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = $6),
            CASE WHEN $6 IS NOT NULL THEN $7 END, $8::pg_catalog.json,
            (SELECT pg_catalog.array_agg(pg_catalog.format('%I.%I', s.nspname, c.relname) ORDER BY t.i)
               FROM pg_catalog.unnest(ARRAY[$3, $4, $5]) WITH ORDINALITY t (oid, i)
                    JOIN pg_catalog.pg_class c ON c.oid = t.oid
                    JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace))
    ON CONFLICT (machine) DO UPDATE SET
        revision = excluded.revision, relation = excluded.relation, items = excluded.items,
        wallet = excluded.wallet, owner = excluded.owner, owner_name = excluded.owner_name,
        owner_incarnation = excluded.owner_incarnation, definition = excluded.definition,
        table_names = excluded.table_names";

// A new row of once.janitor records no run. Until a sweep has succeeded, machine_assert reports the machine's claim
// states.
const WATCH: &CStr = c"
    INSERT INTO once.janitor (task, machine, done, failed) VALUES ('action_release', $1, 0, 0)
    ON CONFLICT (task, machine) DO NOTHING";

const FORGET: &CStr = c"
    WITH leases AS (DELETE FROM once.action_lease WHERE machine = $1),
         watched AS (DELETE FROM once.janitor WHERE task = 'action_release' AND machine = $1)
    DELETE FROM once.machine WHERE machine = $1";

const FORGET_LEASES: &CStr = c"DELETE FROM once.action_lease WHERE machine = $1";

static FORGOTTEN_LEASES: Kept = Kept::new(FORGET_LEASES, &[TEXTOID]);
static STORED: Kept = Kept::new(
    STORE,
    &[
        TEXTOID, INT8OID, OIDOID, OIDOID, OIDOID, OIDOID, INT8OID, TEXTOID,
    ],
);
static WATCHED: Kept = Kept::new(WATCH, &[TEXTOID]);
static FORGOTTEN: Kept = Kept::new(FORGET, &[TEXTOID]);

/// `once.machine_define`.
pub fn machine_define(call: &Call) -> Result<Datum> {
    let faults = Faults::default();
    let json = argument(call, &faults)?;
    table::ensure_writable(TABLE)?;
    let definition = read::definition(&json, &faults);
    let (name, owner) = (definition.machine.clone(), definition.owner.clone());
    let name = from_utf8(&name);
    // A caller without the right gets 42501, and does not see the faults.
    present_machine(&name)?;
    let valid = validate::validate(definition, faults)?;
    let mut present = present_machine(&name)?;
    let mut same = is_the_same(present.as_ref(), &valid, owner.as_ref())?;
    if !same {
        wait_for_claims(&valid.definition.machine)?;
        // Another session may have changed the machine during the wait.
        present = present_machine(&name)?;
        same = is_the_same(present.as_ref(), &valid, owner.as_ref())?;
    }
    if let Some(present) = present.as_ref().filter(|_| same) {
        return inspect::described(present);
    }
    if let Some(present) = &present {
        match has_table(present) {
            true => {
                ensure_leases_fit(present, &valid)?;
                ensure_teardowns_fit(present, &valid)?;
            }
            // The table is gone, so the leases of its rows are deleted.
            false => drop(spi::query_latest(
                &FORGOTTEN_LEASES,
                &[Some(row::text(&name))],
            )?),
        }
    }
    store(&valid, present.as_ref())?;
    table::tell_all(&[TABLE])?;
    if present.is_some_and(|p| p.guarded()) {
        install::move_guards(&name)?;
    }
    // A guard caches the definition until its table's relcache entry is invalidated.
    for table in [Some(valid.relation), valid.items].into_iter().flatten() {
        // SAFETY: the table is there, locked by its look-up.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
    }
    inspect::described(&StoredMachine::existing(&name)?)
}

/// The stored machine, if there is one; 42501 unless the caller may change it.
fn present_machine(name: &[u8]) -> Result<Option<StoredMachine>> {
    let present = StoredMachine::find(name)?;
    if let Some(present) = &present {
        ensure_may_change(present, name)?;
    }
    Ok(present)
}

/// Whether nothing would change. If so, machine_define waits for no claim: services may define machines at each boot.
fn is_the_same(
    present: Option<&StoredMachine>,
    valid: &Valid,
    owner_name: Option<&String>,
) -> Result<bool> {
    let Some(present) = present else {
        return Ok(false);
    };
    let same_owner = match (present.owner()?, valid.owner) {
        (None, None) => true,
        (Some(Owner::Role(stored)), Some(given)) => {
            stored.value() == given.value() && present.owner_name().as_ref() == owner_name
        }
        _ => false,
    };
    Ok(same_owner
        && present.tables() == [Some(valid.relation), valid.items, valid.wallet]
        && present.renamed_tables()?.is_empty()
        && present.definition()? == valid.definition)
}

fn has_table(stored: &StoredMachine) -> bool {
    stored.table().and_then(Relation::of).is_some()
}

/// The definition as a JSON object. A repeated member is a fault.
fn argument(call: &Call, faults: &Faults) -> Result<Value> {
    let bad = |problem: &str| {
        let hint = "Give a JSON object; docs/reference/machine.md lists its members.";
        Error::bad_argument("definition", problem, hint)
    };
    let given = call.bytes(0).ok_or_else(|| bad("must not be null"))?;
    let text = json::jsonb_text(json::to_jsonb(given)?);
    if text.len() > MOST_BYTES {
        return Err(bad("is longer than 1000000 bytes"));
    }
    let json: Value =
        serde_json::from_slice(&utf8(&text)).map_err(|e| bad(&format!("cannot be read: {e}")))?;
    if !json.is_object() {
        return Err(bad("must be a JSON object"));
    }
    note_repeated("", given, faults);
    Ok(json)
}

/// Adds a fault for each member that is repeated within one object.
fn note_repeated(path: &str, value: &[u8], faults: &Faults) {
    let mut seen = HashSet::new();
    for (name, value) in Members::of(value).into_iter().flatten() {
        let name = json::string(name)
            .map(|name| shown(&name))
            .unwrap_or_default();
        let path = member(path, &name);
        note_repeated(&path, value, faults);
        if !seen.insert(name) {
            faults.add(&path, "is there twice");
        }
    }
    for (i, value) in json::elements(value).into_iter().flatten().enumerate() {
        note_repeated(&element(path, i), value, faults);
    }
}

/// Raises 42501 unless the caller owns the table and is a member of the machine's owner, if it has one. If the table is
/// gone, membership is enough. If the machine has neither table nor owner, the caller must be a superuser.
fn ensure_may_change(stored: &StoredMachine, machine: &[u8]) -> Result<()> {
    let owner = stored.owner()?;
    if let Some(owner) = owner {
        owner.ensure_member("machine", machine)?;
    }
    match stored.table().and_then(Relation::of) {
        Some(table) => ensure_owned(table.oid, &table.name),
        None if owner.is_some() || caller::is_superuser() => Ok(()),
        None => Err(Error::new(
            Kind::NotYours,
            format!(
                "permission denied for machine \"{}\", whose table is gone",
                shown(machine)
            ),
        )
        .hint("Only a superuser may change a machine that has neither an owner nor a table.")),
    }
}

/// Raises 55006 if a held lease, live or overdue, does not fit the new definition's table, columns and statuses.
fn ensure_leases_fit(present: &StoredMachine, valid: &Valid) -> Result<()> {
    let (old, new) = (present.definition()?, &valid.definition);
    let moved =
        present.table() != Some(valid.relation) || (&old.id, &old.status) != (&new.id, &new.status);
    each_held(&from_utf8(&new.machine), |lease| {
        let statuses = [
            LeaseCol::ClaimInto,
            LeaseCol::RevertTo,
            LeaseCol::SuccessfulState,
        ];
        let statuses = statuses.map(|col| lease.text(col));
        let [into, revert, success] = &statuses;
        // An adopted lease has no successful_state.
        let is_gone = |s: &&String| !s.is_empty() && !new.status_types.contains(s);
        let is_cancelled = |c: &Cancel| !success.is_empty() && *success == c.to;
        let problem = if moved {
            "its table and columns cannot change".to_owned()
        } else if let Some(status) = statuses.iter().find(is_gone) {
            format!("status {} cannot be removed", quoted(status))
        } else if !new.is_claim_state(into) {
            format!("status {} must stay a claim state", quoted(into))
        } else if new.is_terminal(revert) || new.is_claim_state(revert) {
            format!(
                "status {} must not become terminal or a claim state",
                quoted(revert)
            )
        } else if new.is_claim_state(success) {
            format!("status {} must not become a claim state", quoted(success))
        } else if new.cancel.as_ref().is_some_and(is_cancelled) {
            let success = quoted(success);
            format!("status {success} must not become the cancelled state")
        } else {
            return Ok(());
        };
        Err(in_use(&new.machine, lease, &format!(", so {problem}")))
    })
}

fn in_use(machine: &str, lease: &Lease, so: &str) -> Error {
    let (machine, row) = (quoted(machine), quoted(&lease.text(LeaseCol::RowId)));
    Error::new(
        Kind::InUse,
        format!("machine {machine} is in use: row {row} is leased{so}"),
    )
    .hint(
        "Wait until its action is finished or released. A sweep ends the lease once it is overdue.",
    )
}

/// Calls `each` with each held lease of the machine in the latest snapshot. The lease of a deleted row counts until a
/// sweep deletes the lease.
fn each_held(machine: &[u8], mut each: impl FnMut(&Lease) -> Result<()>) -> Result<()> {
    let leases = Table::to_read(lease::TABLE)?;
    let key = &mut [ScanKey::text(1, row::text(machine))];
    let snapshot = Snapshot::latest();
    let mut scan = leases.scan(lease::BY_LOOK, key, &snapshot)?;
    while let Some(slot) = scan.advance() {
        let held = Lease::borrow(slot);
        if held.state() == lease::LeaseState::Held {
            each(&held)?;
        }
    }
    Ok(())
}

/// Raises 55006 if a teardown is open and the new definition changes how rows are torn down or makes a status terminal.
fn ensure_teardowns_fit(present: &StoredMachine, valid: &Valid) -> Result<()> {
    let old = present.definition()?;
    let same = (&old.cancel, &old.refund) == (&valid.definition.cancel, &valid.definition.refund)
        && present.tables() == [Some(valid.relation), valid.items, valid.wallet];
    let ends = |s: &String| old.status_types.contains(s) && !old.is_terminal(s);
    match old.cancel {
        Some(_) if !same || valid.definition.terminal.iter().any(ends) => {}
        _ => return Ok(()),
    }
    match pending::first_open(&from_utf8(&old.machine), present.table())? {
        None => Ok(()),
        Some(id) => Err(Error::new(
            Kind::InUse,
            format!(
                "machine {} is in use: row {} is being cancelled, so the definition's cancel and refund cannot change, and no status can become terminal",
                quoted(&old.machine),
                quoted(&id)
            ),
        )
        .hint("Finish the teardown first; once.cancel_pending lists what is left.")),
    }
}

fn store(valid: &Valid, present: Option<&StoredMachine>) -> Result<()> {
    let definition = serde_json::to_string(&valid.definition).map_err(Error::internal)?;
    let name = row::text(&from_utf8(&valid.definition.machine));
    let revision = present
        .map_or(0, |p| p.revision() + 1)
        .max(clock::real_us());
    spi::query(
        &STORED,
        &[
            Some(name),
            Some(Datum::from(revision)),
            Some(Datum::from(valid.relation)),
            valid.items.map(Datum::from),
            valid.wallet.map(Datum::from),
            valid.owner,
            Some(Datum::from(incarnation::present()?)),
            Some(row::text(&from_utf8(&definition))),
        ],
    )?;
    spi::query(&WATCHED, &[Some(name)])?;
    Ok(())
}

/// `once.machine_drop`.
pub fn machine_drop(call: &Call) -> Result<Datum> {
    let name = call.text(0, "machine", SCOPE_MAX)?;
    ensure_may_change(&StoredMachine::existing(name)?, name)?;
    table::ensure_writable(TABLE)?;
    wait_for_claims(&shown(name))?;
    // Another session may have changed or dropped the machine during the wait.
    let stored = StoredMachine::existing(name)?;
    ensure_may_change(&stored, name)?;
    if has_table(&stored) {
        each_held(name, |lease| Err(in_use(&shown(name), lease, "")))?;
    }
    install::replace_guards(&shown(name), &[])?;
    // Reads the latest snapshot, to delete also the leases that changed after this transaction's snapshot.
    spi::query_latest(&FORGOTTEN, &[Some(row::text(name))])?;
    table::tell_all(&[TABLE])?;
    Ok(call.return_null())
}
