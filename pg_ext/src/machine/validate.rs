//! A definition, from the JSON that somebody wrote to what is stored; or everything that is wrong with it.
//!
//! No check stops another: what is missing or of the wrong type is one fault, and only the checks that need it
//! are left out. `draft` reads the members, `rules` looks at what they say together, `fit` and `money` at
//! the tables, and this file puts the definition together once nothing is wrong.

use super::columns::{Table, owned_by_caller};
use super::definition::{self, Definition};
use super::draft::Draft;
use super::faults::{Faults, quoted};
use super::predicate::Predicate;
use super::stored::{Col, each_stored};
use super::{fit, money, rules, wait_for_definitions};
use crate::call::from_utf8;
use crate::caller::{self, Owner};
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::{Datum, Oid};
use serde_json::Value;

/// A definition that is right, and what stands beside it in once.machine.
pub struct Valid {
    pub definition: Definition,
    pub relation: Oid,
    pub items: Option<Oid>,
    pub wallet: Option<Oid>,
    pub owner: Option<Datum>,
}

/// Checks a draft; the faults are those of reading it. 42501 where the table is not the caller's, or the
/// owner not a role of the caller's.
pub fn validate(draft: Draft, mut faults: Faults) -> Result<Valid> {
    let found = &mut faults;
    let owner = owner(&draft, found)?;
    let table = named("table", draft.table.as_ref(), found)?;
    if let Some(table) = &table {
        ensure_callers(table)?;
    }
    rules::check(&draft, found);
    let [items, wallet] = of_refund(&draft, found)?;
    if let Some(table) = &table {
        nobody_else_has_it(&draft, table, found)?;
    }
    let (whens, refund_when) = against_tables(&draft, [&table, &items, &wallet], found)?;
    if let Some(error) = faults.into_error(draft.machine.as_deref()) {
        return Err(error);
    }
    let oid = |table: &Option<Table>| table.as_ref().map(|table| table.oid);
    let relation = oid(&table);
    let (items, wallet) = (oid(&items), oid(&wallet));
    match (built(draft, whens, refund_when), relation) {
        (Some(definition), Some(relation)) => Ok(Valid {
            definition,
            relation,
            items,
            wallet,
            owner,
        }),
        _ => Err(Error::new(
            Kind::Internal,
            "a definition without faults lacks a member",
        )),
    }
}

/// What is wrong with a stored definition, now that its tables may have changed; one line each.
pub fn recheck(json: &Value) -> Result<Vec<String>> {
    let mut faults = Faults::default();
    let draft = Draft::read(json, &mut faults).unwrap_or_default();
    let table = named("table", draft.table.as_ref(), &mut faults)?;
    let [items, wallet] = of_refund(&draft, &mut faults)?;
    against_tables(&draft, [&table, &items, &wallet], &mut faults)?;
    Ok(faults.into_lines())
}

fn named(path: &str, name: Option<&String>, faults: &mut Faults) -> Result<Option<Table>> {
    match name {
        Some(name) => Table::named(path, name, faults),
        None => Ok(None),
    }
}

/// The tables of the items and of the wallets.
fn of_refund(draft: &Draft, faults: &mut Faults) -> Result<[Option<Table>; 2]> {
    let refund = draft.refund.as_ref();
    let items = named(
        "refund.items",
        refund.and_then(|r| r.items.as_ref()),
        faults,
    )?;
    let wallet = named(
        "refund.wallet",
        refund.and_then(|r| r.wallet.as_ref()),
        faults,
    )?;
    Ok([items, wallet])
}

/// The checks against the machine's, the items' and the wallets' table; the predicates as they are kept.
fn against_tables(
    draft: &Draft,
    [machine, items, wallet]: [&Option<Table>; 3],
    faults: &mut Faults,
) -> Result<(Vec<Option<Predicate>>, Option<Predicate>)> {
    let whens = match machine {
        Some(table) => fit::check(draft, table, faults)?,
        None => Vec::new(),
    };
    let refund_when = match &draft.refund {
        Some(refund) => {
            let tables = money::Tables {
                machine: machine.as_ref(),
                items: items.as_ref(),
                wallet: wallet.as_ref(),
            };
            money::check(draft, refund, &tables, faults)?
        }
        None => None,
    };
    Ok((whens, refund_when))
}

/// The role that owns the machine, one that the caller is a member of.
fn owner(draft: &Draft, faults: &mut Faults) -> Result<Option<Datum>> {
    let (Some(name), machine) = (&draft.owner, draft.machine.as_deref().unwrap_or_default()) else {
        return Ok(None);
    };
    let role = caller::role_of_name(&from_utf8(name));
    match role {
        Some(role) => Owner::Role(role).ensure_member("machine", &from_utf8(machine))?,
        None => faults.add("owner", format!("there is no role {}", quoted(name))),
    }
    Ok(role)
}

/// 42501 where the caller does not own the table.
fn ensure_callers(table: &Table) -> Result<()> {
    match owned_by_caller(table.oid) {
        true => Ok(()),
        false => Err(not_yours(&table.name)),
    }
}

/// 42501 for a table that is not the caller's.
pub fn not_yours(table: &str) -> Error {
    Error::new(Kind::NotYours, format!("must be owner of table {table}")).hint(
        "A machine belongs to who owns its table; ask them, or SET ROLE to the table's owner.",
    )
}

/// No other machine has this table and status column.
fn nobody_else_has_it(draft: &Draft, table: &Table, faults: &mut Faults) -> Result<()> {
    let (Some(machine), Some(status)) = (&draft.machine, &draft.status) else {
        return Ok(());
    };
    wait_for_definitions(table)?;
    each_stored(&mut |stored| {
        if stored.relation(Col::Relation) != Some(table.oid) {
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

/// The definition as it is stored; None only where a member is missing, which is a fault before this.
fn built(
    draft: Draft,
    whens: Vec<Option<Predicate>>,
    refund_when: Option<Predicate>,
) -> Option<Definition> {
    let transitions = draft
        .transitions
        .into_iter()
        .zip(whens)
        .map(|(transition, when)| {
            Some(definition::Transition {
                from: transition
                    .from
                    .into_iter()
                    .map(|(_, status)| status)
                    .collect(),
                to: transition.to?,
                when: when.map(|when| when.text),
            })
        });
    let steps = draft.steps.into_iter().map(|step| {
        let claims = step.claim_state?.into_iter();
        let successes = step.successful_state?.into_iter();
        let (lease, lease_us) = step.lease.unzip();
        Some(definition::Step {
            step_key: step.step_key?,
            status: step.status?,
            claim_state: claims
                .map(|(who, pair)| Some((who, pair?)))
                .collect::<Option<_>>()?,
            successful_state: successes
                .map(|(who, to)| Some((who, to?)))
                .collect::<Option<_>>()?,
            lease,
            lease_us,
            action: step.action,
        })
    });
    let cancel = match draft.cancel {
        Some(cancel) => Some(definition::Cancel {
            flag: cancel.flag?,
            to: cancel.to?,
        }),
        None => None,
    };
    let refund = match draft.refund {
        Some(refund) => Some(definition::Refund {
            item_id: refund.item_id?,
            subject: refund.subject?,
            marker: refund.marker?,
            marked: refund.marked?,
            undecided: refund.undecided?,
            when: refund_when.map(|when| when.text),
            amount: refund.amount?,
            wallet_id: refund.wallet_id?,
            balance: refund.balance?,
            account: refund.account?,
        }),
        None => None,
    };
    Some(Definition {
        transitions: transitions.collect::<Option<_>>()?,
        steps: steps.collect::<Option<_>>()?,
        cancel,
        refund,
        machine: draft.machine?,
        id: draft.id?,
        status: draft.status?,
        version: draft.version,
        status_types: draft.status_types?,
        terminal: draft
            .terminal
            .into_iter()
            .map(|(_, status)| status)
            .collect(),
    })
}
