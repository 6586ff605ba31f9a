//! A definition as somebody wrote it: the members' types, lengths and names are looked at here, and what is
//! left is a draft that the checks read. What cannot be read is a fault and None, so that every other check
//! still runs.

use super::definition::ANYBODY;
use super::faults::{Faults, member, quoted};
use super::members::{Members, kind_of, scalar, text_of};
use crate::call::from_utf8;
use crate::clock;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// The longest machine, status, step and requester, in characters.
pub const NAME_MAX: usize = 100;

/// The whole definition; None: missing or faulty.
#[derive(Default)]
pub struct Draft {
    pub machine: Option<String>,
    pub table: Option<String>,
    pub id: Option<String>,
    pub status: Option<String>,
    pub version: Option<String>,
    pub owner: Option<String>,
    pub status_types: Option<Vec<String>>,
    pub terminal: Vec<(String, String)>,
    pub transitions: Vec<Transition>,
    pub steps: Vec<Step>,
    pub cancel: Option<Cancel>,
    pub refund: Option<Refund>,
}

pub struct Transition {
    pub path: String,
    /// Path and status of each.
    pub from: Vec<(String, String)>,
    pub to: Option<String>,
    pub when: Option<String>,
}

pub struct Step {
    pub path: String,
    pub step_key: Option<String>,
    pub status: Option<String>,
    /// By requester; None: there, but no pair of texts. The whole is None where it cannot be read.
    pub claim_state: Option<BTreeMap<String, Option<(String, String)>>>,
    pub successful_state: Option<BTreeMap<String, Option<String>>>,
    pub lease: Option<(String, i64)>,
    pub action: Option<Value>,
}

#[derive(Default)]
pub struct Cancel {
    pub flag: Option<String>,
    pub to: Option<String>,
}

pub struct Refund {
    pub items: Option<String>,
    pub item_id: Option<String>,
    pub subject: Option<String>,
    pub marker: Option<String>,
    pub marked: Option<String>,
    /// None: faulty; Some(None): NULL means undecided.
    pub undecided: Option<Option<String>>,
    pub when: Option<String>,
    pub amount: Option<String>,
    pub wallet: Option<String>,
    pub wallet_id: Option<String>,
    pub account: Option<String>,
    pub balance: Option<String>,
}

const MEMBERS: &str = "machine, table, id, status, version, owner, \
    status_types, terminal, transitions, steps, cancel, refund";
const TRANSITION: &str = "from, to, when";
const STEP: &str = "step_key, status, claim_state, successful_state, lease, action";
const CANCEL: &str = "flag, to";
const REFUND: &str = "items, item_id, subject, marker, marked, undecided, \
    when, amount, wallet, wallet_id, account, balance";

impl Draft {
    /// Reads everything; None only where the definition is no object.
    pub fn read(json: &Value, faults: &mut Faults) -> Option<Draft> {
        let m = Members::open("", json, MEMBERS, faults)?;
        let mut draft = Draft {
            machine: m.name("machine", NAME_MAX, faults),
            table: m.text("table", faults),
            id: m.text("id", faults),
            status: m.text("status", faults),
            version: m.opt_text("version", faults),
            owner: m.opt_text("owner", faults),
            status_types: status_types(&m, faults),
            terminal: statuses(&m, "terminal", faults),
            ..Draft::default()
        };
        for (path, value) in m.list("transitions", faults) {
            draft.transitions.extend(transition(&path, value, faults));
        }
        for (path, value) in m.list("steps", faults) {
            draft.steps.extend(step(&path, value, faults));
        }
        // One that cannot be read is there nevertheless: a refund needs it.
        draft.cancel = m
            .opt("cancel")
            .map(|v| cancel(v, faults).unwrap_or_default());
        draft.refund = m.opt("refund").and_then(|v| refund(v, faults));
        Some(draft)
    }
}

/// All statuses: at least one, each of 1 to 100 characters, none twice.
fn status_types(m: &Members, faults: &mut Faults) -> Option<Vec<String>> {
    m.required("status_types", faults)?;
    let listed = m.list("status_types", faults);
    if m.is_empty_list("status_types") {
        faults.add("status_types", "must not be empty");
    }
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for (path, value) in listed {
        let Some(status) = text_of(&path, value, faults) else {
            continue;
        };
        match status.chars().count() {
            0 => faults.add(&path, "must not be empty"),
            n if n > NAME_MAX => faults.add(&path, format!("is longer than {NAME_MAX} characters")),
            _ if !seen.insert(status.clone()) => {
                faults.add(&path, format!("{} is there twice", quoted(&status)));
            }
            _ => {}
        }
        all.push(status);
    }
    (!all.is_empty()).then_some(all)
}

/// A list of statuses, each with its path.
fn statuses(m: &Members, name: &str, faults: &mut Faults) -> Vec<(String, String)> {
    let listed = m.list(name, faults);
    let read = listed.into_iter().filter_map(|(path, value)| {
        let status = text_of(&path, value, faults)?;
        Some((path, status))
    });
    read.collect()
}

fn transition(path: &str, value: &Value, faults: &mut Faults) -> Option<Transition> {
    let m = Members::open(path, value, TRANSITION, faults)?;
    let from = match m.required("from", faults) {
        Some(_) => statuses(&m, "from", faults),
        None => Vec::new(),
    };
    if m.is_empty_list("from") {
        faults.add(&m.path("from"), "must not be empty");
    }
    Some(Transition {
        path: path.to_owned(),
        from,
        to: m.text("to", faults),
        when: m.opt_text("when", faults),
    })
}

fn step(path: &str, value: &Value, faults: &mut Faults) -> Option<Step> {
    let m = Members::open(path, value, STEP, faults)?;
    Some(Step {
        path: path.to_owned(),
        step_key: m.name("step_key", NAME_MAX, faults),
        status: m.text("status", faults),
        claim_state: claim_state(&m, faults),
        successful_state: successful_state(&m, faults),
        lease: lease(&m, faults),
        action: m.opt("action").cloned(),
    })
}

/// Rule 1: claim_state is a pair of texts, for each requester.
fn claim_state(
    m: &Members,
    faults: &mut Faults,
) -> Option<BTreeMap<String, Option<(String, String)>>> {
    let Some(value) = m.opt("claim_state") else {
        return Some(BTreeMap::new());
    };
    let path = m.path("claim_state");
    let of_requester = |requester: &String, value: &Value, faults: &mut Faults| {
        let pair = match value.as_array().map(Vec::as_slice) {
            Some([Value::String(into), Value::String(revert)]) => {
                Some((into.clone(), revert.clone()))
            }
            _ => None,
        };
        if pair.is_none() {
            let problem = "must be a pair of texts, [claim_into, revert_to] (rule 1)";
            faults.add(&member(&path, requester), problem);
        }
        pair
    };
    let Value::Object(map) = value else {
        let kind = kind_of(value);
        let problem =
            format!("must be an object, requester to [claim_into, revert_to], not {kind} (rule 1)");
        faults.add(&path, problem);
        return None;
    };
    let read = map.iter().map(|(requester, value)| {
        requester_is_a_name(&path, requester, faults);
        (requester.clone(), of_requester(requester, value, faults))
    });
    Some(read.collect())
}

/// Where success leads, for each requester; at least one.
fn successful_state(m: &Members, faults: &mut Faults) -> Option<BTreeMap<String, Option<String>>> {
    let value = m.required("successful_state", faults)?;
    let path = m.path("successful_state");
    let Value::Object(map) = value else {
        let kind = kind_of(value);
        faults.add(
            &path,
            format!("must be an object, requester to status, not {kind}"),
        );
        return None;
    };
    if map.is_empty() {
        faults.add(&path, format!("names no requester (\"{ANYBODY}\": any)"));
        return None;
    }
    let read = map.iter().map(|(requester, value)| {
        requester_is_a_name(&path, requester, faults);
        let status = text_of(&member(&path, requester), value, faults);
        (requester.clone(), status)
    });
    Some(read.collect())
}

fn requester_is_a_name(path: &str, requester: &str, faults: &mut Faults) {
    match requester.chars().count() {
        0 => faults.add(path, "a requester must not be an empty text"),
        n if n > NAME_MAX => {
            let problem = format!(
                "requester {} is longer than {NAME_MAX} characters",
                quoted(requester)
            );
            faults.add(path, problem);
        }
        _ => {}
    }
}

/// A positive interval, as text.
fn lease(m: &Members, faults: &mut Faults) -> Option<(String, i64)> {
    let text = m.opt_text("lease", faults)?;
    let us = match clock::parse_interval(&from_utf8(&text)) {
        None => Err("must be an interval as text, such as \"30 seconds\""),
        Some(interval) => clock::positive_us(interval),
    };
    match us {
        Ok(us) => Some((text, us)),
        Err(problem) => {
            faults.add(&m.path("lease"), problem);
            None
        }
    }
}

fn cancel(value: &Value, faults: &mut Faults) -> Option<Cancel> {
    let m = Members::open("cancel", value, CANCEL, faults)?;
    Some(Cancel {
        flag: m.text("flag", faults),
        to: m.text("to", faults),
    })
}

fn refund(value: &Value, faults: &mut Faults) -> Option<Refund> {
    let m = Members::open("refund", value, REFUND, faults)?;
    let marked = m.required("marked", faults);
    Some(Refund {
        items: m.text("items", faults),
        item_id: m.text("item_id", faults),
        subject: m.text("subject", faults),
        marker: m.text("marker", faults),
        marked: marked.and_then(|v| scalar(&m.path("marked"), v, faults)),
        undecided: match m.opt("undecided") {
            None => Some(None),
            Some(v) => scalar(&m.path("undecided"), v, faults).map(Some),
        },
        when: m.opt_text("when", faults),
        amount: m.text("amount", faults),
        wallet: m.text("wallet", faults),
        wallet_id: m.text("wallet_id", faults),
        account: m.text("account", faults),
        balance: m.text("balance", faults),
    })
}

/// One requester's claim state, with what a fault calls it.
pub struct Claim<'a> {
    pub path: String,
    pub step: &'a Step,
    pub requester: &'a str,
    pub into: &'a str,
    pub revert: &'a str,
}

/// One requester's success.
pub struct Success<'a> {
    pub path: String,
    pub step: &'a Step,
    pub requester: &'a str,
    pub status: &'a str,
}

impl Draft {
    /// Every claim state that is a pair, in the order of the steps and then of the requesters.
    pub fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        self.steps.iter().flat_map(Step::claims)
    }

    /// Every success that names a status.
    pub fn successes(&self) -> impl Iterator<Item = Success<'_>> {
        self.steps.iter().flat_map(|step| {
            let all = step.successful_state.iter().flatten();
            all.filter_map(move |(requester, status)| {
                Some(Success {
                    path: member(&member(&step.path, "successful_state"), requester),
                    step,
                    requester,
                    status: status.as_deref()?,
                })
            })
        })
    }
}

impl Step {
    pub fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        let all = self.claim_state.iter().flatten();
        all.filter_map(move |(requester, pair)| {
            let (into, revert) = pair.as_ref()?;
            Some(Claim {
                path: member(&member(&self.path, "claim_state"), requester),
                step: self,
                requester,
                into,
                revert,
            })
        })
    }

    /// Whose entry of successful_state counts for this requester: its own, else anybody's.
    pub fn success_entry(&self, requester: &str) -> Option<(&str, Option<&str>)> {
        let all = self.successful_state.as_ref()?;
        let entry = all
            .get_key_value(requester)
            .or_else(|| all.get_key_value(ANYBODY))?;
        Some((entry.0.as_str(), entry.1.as_deref()))
    }
}
