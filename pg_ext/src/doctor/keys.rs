//! Keys that nobody resumes, leases that end too late, parked keys, undeclared scopes, and keys of another shard.

use super::{Report, Severity};
use crate::call::shown;
use crate::error::{Kind, Result};
use crate::key::record::{BY_LOOK, Col, KeyRow, TABLE as KEYS};
use crate::key::scopes::{ScopeNames, first_names};
use crate::machine::sql::literal;
use crate::metrics::leases::KeyLeases;
use crate::shard;
use crate::table::{ScanStep, Snapshot, Table};

/// A client that is alive has retried within this time.
const LONG_US: i64 = 600_000_000;

pub fn ask(report: &Report) -> Result<()> {
    let keys = KeyLeases::count()?;
    let more = if keys.cut_short { " or more" } else { "" };
    if keys.overdue > 0 && keys.oldest_us > LONG_US {
        report.add(
            Severity::Warning,
            format!("{}{more} unfinished requests wait to be resumed", keys.overdue),
            format!("the oldest for {} s", keys.oldest_us / 1_000_000),
            "Their clients have not retried. Run a completer: once.key_take_abandoned(scope), or the client crate's completer loop.",
        );
    }
    for (scope, key) in keys.too_long {
        report.add(
            Severity::Warning,
            format!("the lease of key \"{key}\" in scope \"{scope}\" ends more than max_lease_life from now"),
            "the clock has gone back, or max_lease_life is shorter than it was at the claim",
            format!("If its holder is dead: SELECT once.key_expire({}, {}).", literal(&scope), literal(&key)),
        );
    }
    if keys.parked > 0 {
        report.add(
            Severity::Info,
            format!("{}{more} keys are parked", keys.parked),
            "the outcome of their last attempt is unknown, or their attempts are used up; claims answer parked",
            "Find out the outcome of the foreign call, and give the verdict: once.key_resolve(scope, key, attempt, verdict).",
        );
    }
    Ok(())
}

/// Up to this many declared scopes and as many used scopes are compared by name. `foreign` reads up to this many keys.
const NAMES: usize = 1_000;
/// A row names up to this many scopes.
const NAMED: usize = 5;

/// Scopes need no declaration. But if some are declared, an undeclared name may be a mistake.
pub fn undeclared(report: &Report) -> Result<()> {
    let names = ScopeNames::begin()?;
    let declared = first_names(NAMES, |name| names.declared_after(name))?;
    if declared.is_empty() || declared.len() == NAMES {
        return Ok(());
    }
    let mut others = first_names(NAMES, |name| names.used_after(name))?;
    others.retain(|name| !declared.contains(name));
    if others.is_empty() {
        return Ok(());
    }
    let (declared, others) = (
        declared.iter().map(|name| shown(name)).collect::<Vec<_>>(),
        others.iter().map(|name| shown(name)).collect::<Vec<_>>(),
    );
    for name in &others {
        if let Some(meant) = declared.iter().find(|known| is_close(known, name)) {
            report.add(
                Severity::Warning,
                format!("scope \"{name}\" has keys and no options; \"{meant}\" has options"),
                "One of the names may be misspelt. Then the keys of one operation are in two scopes, and a duplicate is not recognised.",
                format!("If both are meant: SELECT once.scope_set({}, '{{}}').", literal(name)),
            );
        }
    }
    report.add(
        Severity::Info,
        format!("{} scopes have keys and no options", others.len()),
        others[..others.len().min(NAMED)].join(", "),
        "They have the defaults. If they are meant: SELECT once.scope_set(scope, '{}'). once.scope_list() lists all.",
    );
    Ok(())
}

/// Whether two names have at least five characters each and a Levenshtein distance of at most 2.
fn is_close(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().min(other.len()) < 5 || one.len().abs_diff(other.len()) > 2 {
        return false;
    }
    let mut costs: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut before = costs[0];
        costs[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = before + usize::from(a != b);
            before = costs[j + 1];
            costs[j + 1] = changed.min(before + 1).min(costs[j] + 1);
        }
    }
    costs[other.len()] <= 2
}

/// Reports how many keys of a sample belong to another shard.
pub fn foreign(report: &Report) -> Result<()> {
    if !shard::is_set()? {
        return Ok(());
    }
    let (mut looked, mut foreign) = (0, 0);
    let mut looks = 3 * NAMES;
    let (table, snapshot) = (Table::to_read(KEYS)?, Snapshot::latest());
    let mut scan = table.scan(BY_LOOK, &mut [], &snapshot)?;
    while looked < NAMES
        && let ScanStep::Row(slot) = scan.step(&mut looks)
    {
        let row = KeyRow::borrow(slot);
        let text = |col| row.bytes(col).unwrap_or_default();
        looked += 1;
        match shard::ensure_home(text(Col::Scope), text(Col::Key)) {
            Err(error) if error.kind == Kind::WrongShard => foreign += 1,
            home => home?,
        }
    }
    if foreign > 0 {
        report.add(
            Severity::Warning,
            format!("{foreign} of {looked} keys belong to another shard"),
            "claims of these keys raise ON007 here; calls with the token of such a key still work",
            "Look at the routing of your clients, and at once.shard_get().",
        );
    }
    Ok(())
}
