//! Whether the demo may say that it worked.
//!
//! Invariant: it says no unless everything that must be zero is zero *and* the trouble really
//! happened; a demo that could not fail would prove nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::case::Outcome;
use crate::journal::{self, What};

const KILLS_AT_LEAST: usize = 20;

/// The trouble of one run, counted.
#[derive(Clone, Debug, Serialize)]
pub struct Trouble {
    pub kills: usize,
    pub kills_by_supervisor: usize,
    pub kills_at_point: BTreeMap<String, usize>,
    pub backends_terminated: usize,
    pub answers_cut: usize,
    pub bank_answered_late: u64,
    pub bank_cut: u64,
    pub bank_saw_key_again: u64,
    pub bank_was_looked_at: u64,
    pub attempts: usize,
    pub retries: usize,
    pub outcomes: BTreeMap<&'static str, usize>,
}

impl Trouble {
    pub fn of(outcome: &Outcome) -> Self {
        let count = |wanted: fn(&What) -> bool| {
            outcome
                .events
                .iter()
                .filter(|event| wanted(&event.what))
                .count()
        };
        let mut kills_at_point: BTreeMap<String, usize> = outcome
            .case
            .points()
            .iter()
            .map(|point| ((*point).to_owned(), 0))
            .collect();
        for event in &outcome.events {
            if let What::CrashedAt { point, .. } = &event.what {
                *kills_at_point.entry(point.clone()).or_default() += 1;
            }
        }
        let mut outcomes = BTreeMap::new();
        for attempt in &outcome.attempts {
            *outcomes.entry(attempt.outcome.name()).or_default() += 1;
        }
        Self {
            kills: count(What::is_kill),
            kills_by_supervisor: count(|what| matches!(what, What::Killed { .. })),
            kills_at_point,
            backends_terminated: count(|what| matches!(what, What::BackendTerminated)),
            answers_cut: count(|what| matches!(what, What::AnswerCut { .. })),
            bank_answered_late: outcome.bank.slow,
            bank_cut: outcome.bank.cut,
            bank_saw_key_again: outcome.bank.repeated,
            bank_was_looked_at: outcome.bank.looked_up,
            attempts: outcome.attempts.len(),
            retries: outcome
                .attempts
                .iter()
                .filter(|attempt| !attempt.outcome.is_final())
                .count(),
            outcomes,
        }
    }

    fn saw(&self, outcome: journal::Outcome) -> usize {
        self.outcomes
            .get(outcome.name())
            .copied()
            .unwrap_or_default()
    }
}

/// Everything that is wrong with a run of pg_once; empty is a pass.
pub fn faults(outcome: &Outcome) -> Vec<String> {
    let title = outcome.case.title;
    let mut faults = Vec::new();
    for event in &outcome.events {
        if let What::Died { lane, last_words } = &event.what {
            faults.push(format!(
                "{title}: service {} ended without being killed: {last_words}",
                lane + 1
            ));
        }
    }
    if !outcome.case.keyed {
        return faults;
    }
    for proven in outcome
        .proven
        .iter()
        .filter(|proven| !proven.is_right(outcome.case.orders))
    {
        faults.push(format!("{title}: {} = {}", proven.name, proven.value));
    }
    let trouble = Trouble::of(outcome);
    for (point, kills) in &trouble.kills_at_point {
        if *kills == 0 {
            faults.push(format!("{title}: no process died at {point}"));
        }
    }
    // How the repeated charge was kept from happening.
    let saved = if outcome.case.bank_dedupes {
        ("a key that the bank recognised", trouble.bank_saw_key_again)
    } else {
        (
            "a look at the bank before charging",
            trouble.bank_was_looked_at,
        )
    };
    let happened = [
        (saved.0, usize::try_from(saved.1).unwrap_or_default()),
        (
            "a mismatch (422)",
            trouble.saw(journal::Outcome::Mismatched),
        ),
        (
            "an answer \"in progress\" (409)",
            trouble.saw(journal::Outcome::InProgress),
        ),
        ("a replay", trouble.saw(journal::Outcome::Replayed)),
        ("an answer cut on its way", trouble.answers_cut),
        ("a terminated backend", trouble.backends_terminated),
        (
            "an answer that the bank cut",
            usize::try_from(trouble.bank_cut).unwrap_or_default(),
        ),
    ];
    for (what, times) in happened {
        if times == 0 {
            faults.push(format!(
                "{title}: the trouble did not happen: not once {what}"
            ));
        }
    }
    if outcome.status_without_key != Some(400) {
        faults.push(format!(
            "{title}: a request without a key was told {:?}",
            outcome.status_without_key
        ));
    }
    let refused = trouble.saw(journal::Outcome::Refused);
    if refused > 0 {
        faults.push(format!(
            "{title}: {refused} requests were refused with a status that nobody expects"
        ));
    }
    faults
}

/// The big run of pg_once must have had its share; the small one is too short for that.
pub fn too_few_kills(outcomes: &[Outcome]) -> Option<String> {
    let big = outcomes
        .iter()
        .find(|outcome| outcome.case.keyed && outcome.case.bank_dedupes)?;
    let kills = Trouble::of(big).kills;
    (kills < KILLS_AT_LEAST)
        .then(|| format!("only {kills} kills in the run of pg_once, {KILLS_AT_LEAST} are wanted"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bank_process::BankTrouble;
    use crate::case::Case;
    use crate::proof::{Proven, Want};

    fn quiet_run(double_charges: f64) -> Outcome {
        let case = Case {
            name: "pg_once",
            title: "pg_once",
            keyed: true,
            bank_dedupes: true,
            orders: 3,
            window: Duration::from_secs(1),
            rounds: 1,
        };
        let proven = vec![Proven {
            name: "double charges",
            want: Want::Zero,
            unit: "",
            sql: String::new(),
            value: double_charges,
        }];
        Outcome {
            case,
            proven,
            attempts: Vec::new(),
            events: Vec::new(),
            bank: BankTrouble {
                slow: 0,
                cut: 0,
                repeated: 0,
                looked_up: 0,
            },
            status_without_key: Some(400),
            double_charges: Vec::new(),
            seconds: 1.0,
        }
    }

    #[test]
    fn a_run_without_trouble_fails_although_nothing_went_wrong() {
        let faults = faults(&quiet_run(0.0));
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("no process died at after_charge")),
            "{faults:?}"
        );
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("not once a replay")),
            "{faults:?}"
        );
        assert!(
            !faults.iter().any(|fault| fault.contains("double charges")),
            "{faults:?}"
        );
        assert!(too_few_kills(&[quiet_run(0.0)]).is_some());
    }

    #[test]
    fn one_double_charge_fails_the_demo() {
        let faults = faults(&quiet_run(1.0));
        assert!(
            faults.contains(&"pg_once: double charges = 1".to_owned()),
            "{faults:?}"
        );
    }
}
