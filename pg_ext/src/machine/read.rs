//! Reads a definition from JSON into the tree and checks the types, lengths and names of its members.
//!
//! Invariant: a member that cannot be read is a fault and is empty in the tree. So the other checks still run, and each
//! list element keeps its index in the paths of faults. A member that is JSON null counts as not given.

use super::definition::{ANYBODY, Cancel, Definition, Refund, Step, Transition};
use super::faults::{Faults, element, member, quoted};
use crate::call::from_utf8;
use crate::clock;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};

/// The name of a machine, a status, a step or a requester has at most this many characters.
const NAME_MAX: usize = 100;

const MEMBERS: &str = "machine, table, id, status, version, owner, module, history, \
    status_types, terminal, transitions, steps, cancel, refund";
const TRANSITION: &str = "from, to, when, emit";
const STEP: &str = "step_key, status, claim_state, successful_claim_state, successful_state, \
    lease, emit, step_id, action";
const CANCEL: &str = "flag, to";
const REFUND: &str = "items, item_id, subject, marker, marked, undecided, \
    when, amount, wallet, wallet_id, account, balance";

pub fn definition(json: &Value, faults: &Faults) -> Definition {
    let Some(o) = Object::open("", json, MEMBERS, faults) else {
        return Definition::default();
    };
    let (history, history_us) = interval(&o, "history").unzip();
    Definition {
        history,
        history_us,
        machine: o.name("machine"),
        table: o.text("table"),
        id: o.text("id"),
        status: o.text("status"),
        version: o.opt_text("version"),
        owner: o.opt_text("owner"),
        module: o.opt_text("module"),
        status_types: status_types(&o),
        terminal: o.texts("terminal"),
        transitions: o.objects("transitions", TRANSITION, transition),
        steps: o.objects("steps", STEP, step),
        cancel: o.object("cancel", CANCEL, cancel),
        refund: o.object("refund", REFUND, refund),
    }
}

/// All statuses: at least one, each of 1 to 100 characters, none twice.
fn status_types(o: &Object) -> Vec<String> {
    o.required("status_types");
    let all = o.texts("status_types");
    if o.is_empty_list("status_types") {
        o.fault("status_types", "must not be empty");
    }
    let mut seen = HashSet::new();
    for (i, status) in all.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
        let path = element("status_types", i);
        if status.chars().count() > NAME_MAX {
            o.faults.add(&path, too_long());
        } else if !seen.insert(status) {
            o.faults
                .add(&path, format!("{} is there twice", quoted(status)));
        }
    }
    all
}

fn transition(o: &Object) -> Transition {
    o.required("from");
    let from = o.texts("from");
    if o.is_empty_list("from") {
        o.fault("from", "must not be empty");
    }
    Transition {
        from,
        to: o.text("to"),
        when: o.opt_text("when"),
        emit: o.opt_text("emit"),
    }
}

fn step(o: &Object) -> Step {
    let (step_key, status) = (o.name("step_key"), o.text("status"));
    let claims = "[claim_into, revert_to]";
    let claim_state = match o.get("successful_claim_state") {
        None => o.by_requester("claim_state", claims, Value::is_array, claim_state),
        Some(_) => {
            if o.get("claim_state").is_some() {
                let problem = "is another name of claim_state: give one of them";
                o.fault("successful_claim_state", problem);
            }
            o.by_requester(
                "successful_claim_state",
                claims,
                Value::is_array,
                claim_state,
            )
        }
    };
    let successes = o.required("successful_state");
    let successful_state = o.by_requester("successful_state", "a status", Value::is_string, text);
    if successes.is_some_and(|v| v.as_object().is_some_and(Map::is_empty)) {
        let problem = format!("names no requester (\"{ANYBODY}\": any)");
        o.fault("successful_state", problem);
    }
    let (lease, lease_us) = interval(o, "lease").unzip();
    Step {
        step_key,
        status,
        claim_state,
        successful_state,
        lease,
        lease_us,
        emit: o.opt_text("emit"),
        step_id: o.get("step_id").cloned(),
        action: o.get("action").cloned(),
    }
}

/// Rule 1: claim_state is a pair of texts, for each requester.
fn claim_state(path: &str, value: &Value, faults: &Faults) -> (String, String) {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(into), Value::String(revert)])
            if !into.is_empty() && !revert.is_empty() =>
        {
            (into.clone(), revert.clone())
        }
        _ => {
            let problem = "must be a pair of texts, [claim_into, revert_to] (rule 1)";
            faults.add(path, problem);
            Default::default()
        }
    }
}

/// A positive interval, as text and in microseconds.
fn interval(o: &Object, name: &str) -> Option<(String, i64)> {
    let text = o.opt_text(name)?;
    let us = match clock::parse_interval(&from_utf8(&text)) {
        None => Err("must be an interval as text, such as \"30 seconds\""),
        Some(interval) => clock::positive_us(interval),
    };
    match us {
        Ok(us) => Some((text, us)),
        Err(problem) => {
            o.fault(name, problem);
            None
        }
    }
}

fn cancel(o: &Object) -> Cancel {
    Cancel {
        flag: o.text("flag"),
        to: o.text("to"),
    }
}

fn refund(o: &Object) -> Refund {
    let marked = o.required("marked");
    Refund {
        items: o.text("items"),
        item_id: o.text("item_id"),
        subject: o.text("subject"),
        marker: o.text("marker"),
        marked: marked.map(|v| o.scalar("marked", v)).unwrap_or_default(),
        undecided: o.get("undecided").map(|v| o.scalar("undecided", v)),
        when: o.opt_text("when"),
        amount: o.text("amount"),
        wallet: o.text("wallet"),
        wallet_id: o.text("wallet_id"),
        account: o.text("account"),
        balance: o.text("balance"),
    }
}

/// A JSON object of a definition, and its path in the definition.
struct Object<'a> {
    path: &'a str,
    map: &'a Map<String, Value>,
    faults: &'a Faults,
}

impl<'a> Object<'a> {
    /// An unknown member is a fault, so a misspelled member never becomes a silent default.
    fn open(path: &'a str, value: &'a Value, known: &str, faults: &'a Faults) -> Option<Self> {
        let Value::Object(map) = value else {
            faults.add(path, format!("must be an object, not {}", kind_of(value)));
            return None;
        };
        let is_known = |name: &String| known.split(", ").any(|known| known == name);
        for name in map.keys().filter(|name| !is_known(name)) {
            let problem = format!("unknown member {}; known: {known}", quoted(name));
            faults.add(path, problem);
        }
        Some(Object { path, map, faults })
    }

    fn path(&self, name: &str) -> String {
        member(self.path, name)
    }

    fn fault(&self, name: &str, problem: impl AsRef<str>) {
        self.faults.add(&self.path(name), problem);
    }

    /// A member that may be left out.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn required(&self, name: &str) -> Option<&'a Value> {
        let value = self.get(name);
        if value.is_none() {
            self.fault(name, "is missing");
        }
        value
    }

    fn text(&self, name: &str) -> String {
        self.required(name)
            .map(|value| text(&self.path(name), value, self.faults))
            .unwrap_or_default()
    }

    fn opt_text(&self, name: &str) -> Option<String> {
        let text = text(&self.path(name), self.get(name)?, self.faults);
        Some(text).filter(|text| !text.is_empty())
    }

    /// A text of 1 to 100 characters.
    fn name(&self, name: &str) -> String {
        let text = self.text(name);
        if text.chars().count() > NAME_MAX {
            self.fault(name, too_long());
            return String::new();
        }
        text
    }

    /// Converts a column's value (a JSON text, number or boolean) to a text that the column's type reads.
    fn scalar(&self, name: &str, value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(boolean) => boolean.to_string(),
            other => {
                let kind = kind_of(other);
                let problem = format!("must be a text, a number or a boolean, not {kind}");
                self.fault(name, problem);
                String::new()
            }
        }
    }

    /// The elements of a list that may be left out.
    fn list(&self, name: &str) -> &'a [Value] {
        match self.get(name) {
            None => &[],
            Some(Value::Array(all)) => all,
            Some(other) => {
                self.fault(name, format!("must be a list, not {}", kind_of(other)));
                &[]
            }
        }
    }

    fn is_empty_list(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Array(all)) if all.is_empty())
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let path = self.path(name);
        let all = self.list(name).iter().enumerate();
        all.map(|(i, value)| text(&element(&path, i), value, self.faults))
            .collect()
    }

    fn objects<T: Default>(&self, name: &str, known: &str, read: fn(&Object) -> T) -> Vec<T> {
        let path = self.path(name);
        let all = self.list(name).iter().enumerate();
        all.map(|(i, value)| {
            let path = element(&path, i);
            let object = Object::open(&path, value, known, self.faults);
            object.map(|o| read(&o)).unwrap_or_default()
        })
        .collect()
    }

    fn object<T: Default>(&self, name: &str, known: &str, read: fn(&Object) -> T) -> Option<T> {
        let path = self.path(name);
        let object = Object::open(&path, self.get(name)?, known, self.faults);
        Some(object.map(|o| read(&o)).unwrap_or_default())
    }

    /// Reads an object with one value for each requester, or a bare value, which counts for any requester.
    fn by_requester<T>(
        &self,
        name: &str,
        what: &str,
        is_bare: fn(&Value) -> bool,
        read: fn(&str, &Value, &Faults) -> T,
    ) -> BTreeMap<String, T> {
        let path = self.path(name);
        let map = match self.get(name) {
            None => return BTreeMap::new(),
            Some(Value::Object(map)) => map,
            Some(value) if is_bare(value) => {
                return BTreeMap::from([(ANYBODY.to_owned(), read(&path, value, self.faults))]);
            }
            Some(other) => {
                let kind = kind_of(other);
                let problem =
                    format!("must be {what}, or one per requester in an object, not {kind}");
                self.fault(name, problem);
                return BTreeMap::new();
            }
        };
        let all = map.iter().map(|(requester, value)| {
            match requester.chars().count() {
                0 => self.fault(name, "a requester must not be an empty text"),
                n if n > NAME_MAX => {
                    let problem = format!("requester {} {}", quoted(requester), too_long());
                    self.fault(name, problem);
                }
                _ => {}
            }
            let value = read(&member(&path, requester), value, self.faults);
            (requester.clone(), value)
        });
        all.collect()
    }
}

fn too_long() -> String {
    format!("is longer than {NAME_MAX} characters")
}

/// A text that is not empty.
fn text(path: &str, value: &Value, faults: &Faults) -> String {
    match value {
        Value::String(text) if text.is_empty() => faults.add(path, "must not be empty"),
        Value::String(text) => return text.clone(),
        other => faults.add(path, format!("must be a text, not {}", kind_of(other))),
    }
    String::new()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
