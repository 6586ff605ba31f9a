//! The checks that need no table: rules 2 to 6 of claim states (rule 1 is `claim_state` in read.rs), and the moves
//! between statuses. One function per check; if two checks find the same mistake, the more precise check reports it.

use super::after::Emitting;
use super::definition::{ANYBODY, Definition, Step};
use super::faults::{Faults, element, member, quoted};
use std::collections::{HashMap, HashSet};

pub fn check_rules(definition: &Definition, faults: &Faults) {
    let claims = claims(definition);
    let mut claimed = HashMap::new();
    for claim in &claims {
        claimed.entry(claim.into).or_insert(claim);
    }
    let rules = Rules {
        definition,
        mentions: mentions(definition),
        terminal: not_empty(&definition.terminal),
        claims: &claims,
        claimed,
        faults,
    };
    rules.statuses_are_declared();
    rules.terminal_statuses_have_no_way_out();
    rules.claim_states_are_in_no_transition();
    rules.claim_states_are_not_terminal();
    rules.rules_3_4_and_5();
    rules.claim_states_are_no_step_status();
    rules.requesters_have_a_success();
    rules.same_claim_state_same_revert();
    rules.claim_states_are_no_success();
    rules.reverts_lead_to_a_status_that_waits();
    rules.steps_are_unique();
    rules.one_move_emits_one_topic();
    rules.cancel_ends_in_a_status_of_its_own();
    rules.refund_needs_cancel();
}

/// A definition and the indexes that the checks use. Members that could not be read are left out.
struct Rules<'a> {
    definition: &'a Definition,
    /// Every place that names a status, except the members status_types and claim_state. The checks of these places add
    /// their faults in the order of this list.
    mentions: Vec<Mention<'a>>,
    terminal: HashSet<&'a str>,
    /// In the order of the steps and then of the requesters.
    claims: &'a [DeclaredClaim<'a>],
    /// The first claim into each claim state.
    claimed: HashMap<&'a str, &'a DeclaredClaim<'a>>,
    faults: &'a Faults,
}

struct Mention<'a> {
    path: String,
    place: Place<'a>,
    status: &'a str,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Terminal,
    From,
    To,
    StepStatus(&'a Step),
    /// The entry of this requester in the step's `successful_state`.
    Success(&'a Step, &'a str),
    CancelTo,
}

/// One requester's claim state.
struct DeclaredClaim<'a> {
    path: String,
    step: &'a Step,
    requester: &'a str,
    into: &'a str,
    revert: &'a str,
}

fn not_empty(texts: &[String]) -> HashSet<&str> {
    let texts = texts.iter().map(String::as_str);
    texts.filter(|text| !text.is_empty()).collect()
}

fn in_step(i: usize, name: &str) -> String {
    member(&element("steps", i), name)
}

fn mentions(definition: &Definition) -> Vec<Mention<'_>> {
    let mut all = Vec::new();
    let mut add = |path, place, status| {
        let mention = Mention {
            path,
            place,
            status,
        };
        all.push(mention);
    };
    for (i, status) in definition.terminal.iter().enumerate() {
        add(element("terminal", i), Place::Terminal, status.as_str());
    }
    for (i, transition) in definition.transitions.iter().enumerate() {
        let path = element("transitions", i);
        let from = member(&path, "from");
        for (i, status) in transition.from.iter().enumerate() {
            add(element(&from, i), Place::From, status);
        }
        add(member(&path, "to"), Place::To, &transition.to);
    }
    for (i, step) in definition.steps.iter().enumerate() {
        add(in_step(i, "status"), Place::StepStatus(step), &step.status);
    }
    for (i, step) in definition.steps.iter().enumerate() {
        let path = in_step(i, "successful_state");
        for (requester, status) in &step.successful_state {
            let place = Place::Success(step, requester);
            add(member(&path, requester), place, status);
        }
    }
    if let Some(cancel) = &definition.cancel {
        add("cancel.to".to_owned(), Place::CancelTo, &cancel.to);
    }
    all.retain(|mention| !mention.status.is_empty());
    all
}

fn claims(definition: &Definition) -> Vec<DeclaredClaim<'_>> {
    let mut all = Vec::new();
    for (i, step) in definition.steps.iter().enumerate() {
        let path = in_step(i, "claim_state");
        for (requester, (into, revert)) in &step.claim_state {
            all.push(DeclaredClaim {
                path: member(&path, requester),
                step,
                requester,
                into,
                revert,
            });
        }
    }
    all.retain(|claim| !claim.into.is_empty());
    all
}

impl<'a> Rules<'a> {
    fn fault(&self, mention: &Mention, problem: String) {
        self.faults.add(&mention.path, problem);
    }

    /// Adds a fault if the status is a claim state; `so` ends the fault's text.
    fn refuse_claim_state(&self, mention: &Mention, so: &str) {
        if let Some(claim) = self.claimed.get(mention.status) {
            let (status, by) = (quoted(mention.status), &claim.path);
            self.fault(mention, format!("{status} is a claim state ({by}){so}"));
        }
    }

    /// Every status that is named anywhere is in status_types; for claim_into and revert_to this is rule 2.
    fn statuses_are_declared(&self) {
        let all = not_empty(&self.definition.status_types);
        if all.is_empty() {
            return;
        }
        for mention in &self.mentions {
            if !all.contains(mention.status) {
                let status = quoted(mention.status);
                self.fault(mention, format!("{status} is not in status_types"));
            }
        }
        for claim in self.claims {
            for (role, status) in [("claim_into", claim.into), ("revert_to", claim.revert)] {
                if !all.contains(status) {
                    let status = quoted(status);
                    let problem = format!("{role} {status} is not in status_types (rule 2)");
                    self.faults.add(&claim.path, problem);
                }
            }
        }
    }

    /// No transition and no step leads out of a terminal status.
    fn terminal_statuses_have_no_way_out(&self) {
        for mention in &self.mentions {
            let leads_out = matches!(mention.place, Place::From | Place::StepStatus(_));
            if leads_out && self.terminal.contains(mention.status) {
                let status = quoted(mention.status);
                let problem = format!("{status} is terminal: nothing leads out of it");
                self.fault(mention, problem);
            }
        }
    }

    /// Only a claim moves a row into a claim state, and only the end of the lease moves the row out of it.
    fn claim_states_are_in_no_transition(&self) {
        for mention in &self.mentions {
            if matches!(mention.place, Place::From | Place::To) {
                self.refuse_claim_state(mention, ": no transition has it");
            }
        }
    }

    /// A row in a claim state must be able to leave it.
    fn claim_states_are_not_terminal(&self) {
        for mention in &self.mentions {
            if matches!(mention.place, Place::Terminal) {
                self.refuse_claim_state(mention, " and cannot be terminal");
            }
        }
    }

    fn rules_3_4_and_5(&self) {
        for claim in self.claims {
            let (into, step) = (quoted(claim.into), claim.step);
            let success = step.success_of(Some(claim.requester));
            let broken = [
                (claim.into == claim.revert)
                    .then(|| format!("claim_into and revert_to are both {into} (rule 3)")),
                (claim.into == step.status)
                    .then(|| format!("claim_into {into} is the step's status (rule 4)")),
                (success == Some(claim.into))
                    .then(|| format!("claim_into {into} is its successful_state (rule 5)")),
            ];
            for problem in broken.into_iter().flatten() {
                self.faults.add(&claim.path, problem);
            }
        }
    }

    /// A step begins in a status where a row waits, so not in a claim state. If the step itself declares the claim
    /// state, rule 4 reports the fault.
    fn claim_states_are_no_step_status(&self) {
        for mention in &self.mentions {
            if let Place::StepStatus(step) = mention.place
                && !step
                    .claim_state
                    .values()
                    .any(|(into, _)| into == mention.status)
            {
                self.refuse_claim_state(mention, ": no step begins in it");
            }
        }
    }

    /// Every requester with a claim state has a successful_state: its own, or that of "*".
    fn requesters_have_a_success(&self) {
        for (i, step) in self.definition.steps.iter().enumerate() {
            let goes = |requester: &String| step.success_of(Some(requester)).is_some();
            for requester in step.claim_state.keys().filter(|requester| !goes(requester)) {
                if !step.successful_state.is_empty() {
                    let path = member(&in_step(i, "claim_state"), requester);
                    let problem = "has no successful_state, neither its own nor that of \"*\"";
                    self.faults.add(&path, problem);
                }
            }
        }
    }

    /// Rule 6: a claim state has one revert_to.
    fn same_claim_state_same_revert(&self) {
        for claim in self.claims {
            if let Some(first) = self.claimed.get(claim.into)
                && first.revert != claim.revert
            {
                let (into, revert) = (quoted(claim.into), quoted(claim.revert));
                let (other, by) = (quoted(first.revert), &first.path);
                let problem =
                    format!("{into} reverts to {revert} here and to {other} in {by} (rule 6)");
                self.faults.add(&claim.path, problem);
            }
        }
    }

    /// Success ends the lease, so a successful_state is no claim state.
    fn claim_states_are_no_success(&self) {
        for mention in &self.mentions {
            let Place::Success(step, requester) = mention.place else {
                continue;
            };
            let counts_for = |other: &String| {
                let own = step.successful_state.contains_key(other);
                other == requester || (requester == ANYBODY && !own)
            };
            let is_rule_5 = (step.claim_state.iter())
                .any(|(other, (into, _))| into == mention.status && counts_for(other));
            if !is_rule_5 {
                self.refuse_claim_state(mention, ": no success leads into it");
            }
        }
    }

    /// A row that was reverted waits for its next move: revert_to is neither terminal nor a claim state. (If revert_to
    /// is the claim's own claim_into, rule 3 reports the fault.)
    fn reverts_lead_to_a_status_that_waits(&self) {
        for claim in self.claims {
            let revert = quoted(claim.revert);
            if self.terminal.contains(claim.revert) {
                let problem = format!("revert_to {revert} is terminal");
                self.faults.add(&claim.path, problem);
            }
            if claim.revert != claim.into
                && let Some(other) = self.claimed.get(claim.revert)
            {
                let problem = format!("revert_to {revert} is a claim state ({})", other.path);
                self.faults.add(&claim.path, problem);
            }
        }
    }

    /// (step_key, status) names one step.
    fn steps_are_unique(&self) {
        let mut seen = HashMap::new();
        for (i, step) in self.definition.steps.iter().enumerate() {
            let (path, (key, status)) = (element("steps", i), (&step.step_key, &step.status));
            if key.is_empty() || status.is_empty() {
                continue;
            }
            if let Some(first) = seen.get(&(key, status)) {
                let (key, status) = (quoted(key), quoted(status));
                let problem = format!("step {key} in status {status} is there twice, see {first}");
                self.faults.add(&path, problem);
                continue;
            }
            seen.insert((key, status), path);
        }
    }

    /// A call of once.transition identifies a move only by the two statuses and the requester. So two declarations of
    /// one move must have the same `emit`.
    fn one_move_emits_one_topic(&self) {
        let mut seen: HashMap<_, Vec<Emitting>> = HashMap::new();
        for emitting in Emitting::all(self.definition) {
            let others = seen.entry((emitting.from, emitting.to)).or_default();
            let differs = |other: &&Emitting| {
                other.emit != emitting.emit && other.shares_requester(&emitting)
            };
            if let Some(other) = others.iter().find(differs) {
                let (from, to) = (quoted(emitting.from), quoted(emitting.to));
                let problem = format!(
                    "the move from {from} to {to} is also in {}, which emits something else",
                    other.path
                );
                self.faults.add(&emitting.path, problem);
            }
            others.push(emitting);
        }
    }

    /// cancel.to is terminal, and only cancel_finish leads there. (Another check reports a terminal revert_to.)
    fn cancel_ends_in_a_status_of_its_own(&self) {
        let Some(cancel) = self.definition.cancel.as_ref().filter(|c| !c.to.is_empty()) else {
            return;
        };
        let (to, all) = (quoted(&cancel.to), &self.definition.status_types);
        let is_terminal = self.terminal.contains(cancel.to.as_str());
        let declared = not_empty(all).is_empty() || all.contains(&cancel.to);
        if declared && !is_terminal {
            self.faults
                .add("cancel.to", format!("{to} is not terminal"));
        }
        let problem = format!("{to} is cancel.to: only cancel_finish leads there");
        for mention in self.mentions.iter().filter(|m| m.status == cancel.to) {
            if matches!(mention.place, Place::To | Place::Success(..)) {
                self.fault(mention, problem.clone());
            }
        }
        if !is_terminal {
            for claim in self.claims.iter().filter(|claim| claim.revert == cancel.to) {
                self.faults.add(&claim.path, format!("revert_to {problem}"));
            }
        }
    }

    fn refund_needs_cancel(&self) {
        if self.definition.refund.is_some() && self.definition.cancel.is_none() {
            let problem = "needs the member \"cancel\": only a cancelled row is refunded";
            self.faults.add("refund", problem);
        }
    }
}
