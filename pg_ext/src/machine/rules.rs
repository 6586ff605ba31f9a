//! The checks that need no table: the six rules of claim states, and what statuses may follow each other.
//! One function for each check; a mistake that two checks would find is reported by the one that names it best.

use super::draft::{Claim, Draft, Step};
use super::faults::{Faults, member, quoted};
use std::collections::{HashMap, HashSet};

/// A draft and what the checks look up in it.
struct Looked<'a> {
    draft: &'a Draft,
    /// None where status_types cannot be read.
    declared: Option<HashSet<&'a str>>,
    terminal: HashSet<&'a str>,
    /// The first claim into each claim state.
    claims: HashMap<&'a str, Claim<'a>>,
}

/// Runs them all.
pub fn check(draft: &Draft, faults: &mut Faults) {
    let mut claims = HashMap::new();
    for claim in draft.claims() {
        claims.entry(claim.into).or_insert(claim);
    }
    let all = draft.status_types.as_ref();
    let looked = &Looked {
        draft,
        declared: all.map(|all| all.iter().map(String::as_str).collect()),
        terminal: draft
            .terminal
            .iter()
            .map(|(_, status)| status.as_str())
            .collect(),
        claims,
    };
    statuses_are_declared(looked, faults);
    terminal_statuses_have_no_way_out(looked, faults);
    claim_states_are_in_no_transition(looked, faults);
    claim_states_are_not_terminal(looked, faults);
    for step in &draft.steps {
        rules_of_a_step(step, faults);
        claim_states_are_no_step_status(looked, step, faults);
        requesters_have_a_success(step, faults);
    }
    same_claim_state_same_revert(looked, faults);
    claim_states_are_no_success(looked, faults);
    reverts_lead_to_a_status_that_waits(looked, faults);
    steps_are_unique(draft, faults);
    cancel_ends_in_a_status_of_its_own(looked, faults);
    if draft.refund.is_some() && draft.cancel.is_none() {
        faults.add(
            "refund",
            "needs the member \"cancel\": only a cancelled row is refunded",
        );
    }
}

/// Every status that is named anywhere is in status_types; of claim states this is rule 2.
fn statuses_are_declared(looked: &Looked, faults: &mut Faults) {
    let (draft, Some(all)) = (looked.draft, &looked.declared) else {
        return;
    };
    let declared = |status: &str| all.contains(status);
    let mut named = |path: &str, status: Option<&str>| {
        if let Some(status) = status.filter(|s| !declared(s)) {
            faults.add(path, format!("{} is not in status_types", quoted(status)));
        }
    };
    for (path, status) in &draft.terminal {
        named(path, Some(status));
    }
    for transition in &draft.transitions {
        for (path, status) in &transition.from {
            named(path, Some(status));
        }
        named(&member(&transition.path, "to"), transition.to.as_deref());
    }
    for step in &draft.steps {
        named(&member(&step.path, "status"), step.status.as_deref());
    }
    for success in draft.successes() {
        named(&success.path, Some(success.status));
    }
    if let Some(cancel) = &draft.cancel {
        named("cancel.to", cancel.to.as_deref());
    }
    for claim in draft.claims() {
        for (role, status) in [("claim_into", claim.into), ("revert_to", claim.revert)] {
            if !declared(status) {
                let problem = format!("{role} {} is not in status_types (rule 2)", quoted(status));
                faults.add(&claim.path, problem);
            }
        }
    }
}

/// No transition and no step leads out of a terminal status.
fn terminal_statuses_have_no_way_out(looked: &Looked, faults: &mut Faults) {
    let draft = looked.draft;
    let from_transitions = draft
        .transitions
        .iter()
        .flat_map(|t| t.from.iter().cloned());
    let from_steps = draft
        .steps
        .iter()
        .filter_map(|step| Some((member(&step.path, "status"), step.status.clone()?)));
    for (path, status) in from_transitions.chain(from_steps) {
        if looked.terminal.contains(status.as_str()) {
            faults.add(
                &path,
                format!("{} is terminal: nothing leads out of it", quoted(&status)),
            );
        }
    }
}

/// Only a lease's claim enters a claim state, and only its end leaves it.
fn claim_states_are_in_no_transition(looked: &Looked, faults: &mut Faults) {
    let mut named = |path: &str, status: &str| {
        if let Some(claim) = looked.claims.get(status) {
            let (status, by) = (quoted(status), &claim.path);
            faults.add(
                path,
                format!("{status} is a claim state ({by}): no transition has it"),
            );
        }
    };
    for transition in &looked.draft.transitions {
        for (path, status) in &transition.from {
            named(path, status);
        }
        if let Some(to) = &transition.to {
            named(&member(&transition.path, "to"), to);
        }
    }
}

/// A row in a claim state goes on from there.
fn claim_states_are_not_terminal(looked: &Looked, faults: &mut Faults) {
    for (path, status) in &looked.draft.terminal {
        if let Some(claim) = looked.claims.get(status.as_str()) {
            let (status, by) = (quoted(status), &claim.path);
            faults.add(
                path,
                format!("{status} is a claim state ({by}) and cannot be terminal"),
            );
        }
    }
}

/// Rules 3, 4 and 5.
fn rules_of_a_step(step: &Step, faults: &mut Faults) {
    for claim in step.claims() {
        let into = quoted(claim.into);
        if claim.into == claim.revert {
            faults.add(
                &claim.path,
                format!("claim_into and revert_to are both {into} (rule 3)"),
            );
        }
        if step.status.as_deref() == Some(claim.into) {
            faults.add(
                &claim.path,
                format!("claim_into {into} is the step's status (rule 4)"),
            );
        }
        if success_of(&claim) == Some(claim.into) {
            let problem = format!("claim_into {into} is its successful_state (rule 5)");
            faults.add(&claim.path, problem);
        }
    }
}

/// Where this claim's requester goes on success.
fn success_of<'a>(claim: &Claim<'a>) -> Option<&'a str> {
    claim.step.success_entry(claim.requester)?.1
}

/// A step begins where a row waits; its own claim states are rule 4's.
fn claim_states_are_no_step_status(looked: &Looked, step: &Step, faults: &mut Faults) {
    let Some(status) = &step.status else {
        return;
    };
    let by_itself = step.claims().any(|claim| claim.into == status);
    if let Some(claim) = looked.claims.get(status.as_str()).filter(|_| !by_itself) {
        let (status, by) = (quoted(status), &claim.path);
        let problem = format!("{status} is a claim state ({by}): no step begins in it");
        faults.add(&member(&step.path, "status"), problem);
    }
}

/// Every requester with a claim state has somewhere to go: its own successful_state, or anybody's.
fn requesters_have_a_success(step: &Step, faults: &mut Faults) {
    if step.successful_state.is_none() {
        return;
    }
    for requester in step
        .claim_state
        .iter()
        .flatten()
        .map(|(requester, _)| requester)
    {
        if step.success_entry(requester).is_none() {
            let path = member(&member(&step.path, "claim_state"), requester);
            faults.add(
                &path,
                "has no successful_state, neither its own nor that of \"*\"",
            );
        }
    }
}

/// Rule 6: whoever meets a row in a claim state knows where it goes back to.
fn same_claim_state_same_revert(looked: &Looked, faults: &mut Faults) {
    for claim in looked.draft.claims() {
        let Some(first) = looked.claims.get(claim.into) else {
            continue;
        };
        if first.revert != claim.revert {
            let (into, revert) = (quoted(claim.into), quoted(claim.revert));
            let (other, by) = (quoted(first.revert), &first.path);
            let problem =
                format!("{into} reverts to {revert} here and to {other} in {by} (rule 6)");
            faults.add(&claim.path, problem);
        }
    }
}

/// Success leads out of the lease; into the claim's own claim state it is rule 5's.
fn claim_states_are_no_success(looked: &Looked, faults: &mut Faults) {
    for success in looked.draft.successes() {
        let by_rule_5 = success.step.claims().any(|claim| {
            let entry = success.step.success_entry(claim.requester);
            claim.into == success.status && entry.is_some_and(|(name, _)| name == success.requester)
        });
        if let Some(claim) = looked.claims.get(success.status).filter(|_| !by_rule_5) {
            let (status, by) = (quoted(success.status), &claim.path);
            let problem = format!("{status} is a claim state ({by}): no success leads into it");
            faults.add(&success.path, problem);
        }
    }
}

/// A row that a sweep reverts can be claimed again: revert_to is neither terminal nor a claim state (its own
/// is rule 3's).
fn reverts_lead_to_a_status_that_waits(looked: &Looked, faults: &mut Faults) {
    for claim in looked.draft.claims() {
        let revert = quoted(claim.revert);
        if looked.terminal.contains(claim.revert) {
            faults.add(&claim.path, format!("revert_to {revert} is terminal"));
        }
        if claim.revert != claim.into
            && let Some(other) = looked.claims.get(claim.revert)
        {
            let by = &other.path;
            faults.add(
                &claim.path,
                format!("revert_to {revert} is a claim state ({by})"),
            );
        }
    }
}

/// (step_key, status) names one step.
fn steps_are_unique(draft: &Draft, faults: &mut Faults) {
    let mut seen = HashMap::new();
    for step in &draft.steps {
        let (Some(key), Some(status)) = (&step.step_key, &step.status) else {
            continue;
        };
        if let Some(first) = seen.get(&(key, status)) {
            let (key, status) = (quoted(key), quoted(status));
            faults.add(
                &step.path,
                format!("step {key} in status {status} is there twice, see {first}"),
            );
            continue;
        }
        seen.insert((key, status), &step.path);
    }
}

/// cancel.to is terminal and only cancel_finish writes it: it is nobody else's target. (As a revert's it is
/// terminal, which is a fault already.)
fn cancel_ends_in_a_status_of_its_own(looked: &Looked, faults: &mut Faults) {
    let draft = looked.draft;
    let Some(to) = draft
        .cancel
        .as_ref()
        .and_then(|cancel| cancel.to.as_deref())
    else {
        return;
    };
    let declared = looked.declared.as_ref().is_none_or(|all| all.contains(to));
    if declared && !looked.terminal.contains(to) {
        faults.add("cancel.to", format!("{} is not terminal", quoted(to)));
    }
    let problem = format!(
        "{} is cancel.to: only cancel_finish leads there",
        quoted(to)
    );
    for transition in draft
        .transitions
        .iter()
        .filter(|t| t.to.as_deref() == Some(to))
    {
        faults.add(&member(&transition.path, "to"), &problem);
    }
    for success in draft.successes().filter(|success| success.status == to) {
        faults.add(&success.path, &problem);
    }
    if !looked.terminal.contains(to) {
        for claim in draft.claims().filter(|claim| claim.revert == to) {
            faults.add(&claim.path, format!("revert_to {problem}"));
        }
    }
}
