//! A machine's definition as one tree. `read` makes the tree from JSON; machine_define checks it and stores it.
//!
//! The stored form (`once.machine.definition`) is this tree as JSON: every name in a predicate is qualified, and each
//! interval is also stored in microseconds. This JSON leaves out the tables and the owner. They are in other columns of
//! once.machine.

use serde::{Deserialize, Serialize};

/// Everything that one machine declares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    pub machine: String,
    /// As the caller writes it; empty in the stored form, like the owner and the tables of `refund`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub table: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The team or program that is responsible for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// How long a move's record is kept, as the definition gives it: an interval as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_us: Option<i64>,
    /// Column names.
    pub id: String,
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub status_types: Vec<String>,
    #[serde(default)]
    pub terminal: Vec<String>,
    #[serde(default)]
    pub transitions: Vec<Transition>,
    #[serde(default)]
    pub steps: Vec<Step>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refund: Option<Refund>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    pub from: Vec<String>,
    pub to: String,
    /// A predicate over the row's columns; in the stored form every name is qualified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The topic that gets an event of the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step_key: String,
    pub status: String,
    /// The claim_into and revert_to of each requester; "*" stands for every requester that has no entry.
    #[serde(default)]
    pub claim_state: std::collections::BTreeMap<String, (String, String)>,
    /// The successful_state of each requester; "*" stands for every requester that has no entry.
    #[serde(default)]
    pub successful_state: std::collections::BTreeMap<String, String>,
    /// As the definition gives it: an interval as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_us: Option<i64>,
    /// The topic that gets an event when the step is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<String>,
    /// `step_id` and `action` may be any JSON, for the caller's programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    /// Column name.
    pub flag: String,
    pub to: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refund {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub items: String,
    /// Columns of the items table.
    pub item_id: String,
    pub subject: String,
    pub marker: String,
    /// The marker's value in a marked item, as a text that the column's type accepts.
    pub marked: String,
    /// The marker's value in an undecided item; None: NULL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<String>,
    /// A predicate over an item's columns; in the stored form every name is qualified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    pub amount: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wallet: String,
    /// Columns of the wallet table.
    pub wallet_id: String,
    pub balance: String,
    /// Column of the machine's table.
    pub account: String,
}

/// Any requester.
pub const ANYBODY: &str = "*";

impl Definition {
    /// Returns the stored form: without the names of the owner and of the tables.
    pub fn without_names(mut self) -> Definition {
        (self.table, self.owner) = Default::default();
        if let Some(refund) = &mut self.refund {
            (refund.items, refund.wallet) = Default::default();
        }
        self
    }

    /// The step with this step_key and status.
    pub fn step(&self, step_key: &str, status: &str) -> Option<&Step> {
        let is_it = |step: &&Step| step.step_key == step_key && step.status == status;
        self.steps.iter().find(is_it)
    }

    pub fn is_terminal(&self, status: &str) -> bool {
        self.terminal.iter().any(|t| t == status)
    }

    pub fn is_claim_state(&self, status: &str) -> bool {
        self.claim_states().any(|(into, _)| into == status)
    }

    /// Every (claim_into, revert_to), in the order of the steps; a pair may occur more than once.
    pub fn claim_states(&self) -> impl Iterator<Item = (&str, &str)> {
        self.steps
            .iter()
            .flat_map(|step| step.claim_state.values())
            .map(|(into, revert)| (into.as_str(), revert.as_str()))
    }
}

impl Step {
    /// This requester's claim_into and revert_to.
    pub fn claim_of(&self, requester: Option<&str>) -> Option<(&str, &str)> {
        let (into, revert) = named_or_anybody(&self.claim_state, requester)?;
        Some((into, revert))
    }

    /// This requester's successful_state.
    pub fn success_of(&self, requester: Option<&str>) -> Option<&str> {
        named_or_anybody(&self.successful_state, requester).map(String::as_str)
    }
}

fn named_or_anybody<'a, T>(
    map: &'a std::collections::BTreeMap<String, T>,
    requester: Option<&str>,
) -> Option<&'a T> {
    requester
        .and_then(|name| map.get(name))
        .or_else(|| map.get(ANYBODY))
}
