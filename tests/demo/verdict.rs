//! Whether the demo may say that it worked: what the stories' own verdicts have in common.
//!
//! Invariant: it says no unless everything that must be zero is zero *and* the trouble really
//! happened; a demo that could not fail would prove nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::journal::{self, Attempt, Event, What};
use crate::proof::Proven;

/// The trouble of one run, counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trouble {
    pub kills: usize,
    pub kills_by_supervisor: usize,
    pub kills_at_point: BTreeMap<String, usize>,
    pub backends_terminated: usize,
    pub answers_cut: usize,
    pub attempts: usize,
    pub retries: usize,
    pub outcomes: BTreeMap<&'static str, usize>,
}

impl Trouble {
    pub fn of(events: &[Event], attempts: &[Attempt], points: &[&'static str]) -> Self {
        let count =
            |wanted: fn(&What) -> bool| events.iter().filter(|event| wanted(&event.what)).count();
        let mut kills_at_point: BTreeMap<String, usize> = points
            .iter()
            .map(|point| ((*point).to_owned(), 0))
            .collect();
        for event in events {
            if let What::CrashedAt { point, .. } = &event.what {
                *kills_at_point.entry(point.clone()).or_default() += 1;
            }
        }
        let mut outcomes = BTreeMap::new();
        for attempt in attempts {
            *outcomes.entry(attempt.outcome.name()).or_default() += 1;
        }
        Self {
            kills: count(What::is_kill),
            kills_by_supervisor: count(|what| matches!(what, What::Killed { .. })),
            kills_at_point,
            backends_terminated: count(|what| matches!(what, What::BackendTerminated)),
            answers_cut: count(|what| matches!(what, What::AnswerCut { .. })),
            attempts: attempts.len(),
            retries: attempts
                .iter()
                .filter(|attempt| !attempt.outcome.is_final())
                .count(),
            outcomes,
        }
    }

    pub fn saw(&self, outcome: journal::Outcome) -> usize {
        self.outcomes
            .get(outcome.name())
            .copied()
            .unwrap_or_default()
    }
}

/// Processes that ended without being killed; they fail a run of any service.
pub fn deaths(title: &str, lanes: &[String], events: &[Event]) -> Vec<String> {
    events
        .iter()
        .filter_map(|event| match &event.what {
            What::Died { lane, last_words } => {
                let name = lanes.get(*lane).map_or("a process", String::as_str);
                Some(format!(
                    "{title}: {name} ended without being killed: {last_words}"
                ))
            }
            _ => None,
        })
        .collect()
}

/// Answers that are not what they must be.
pub fn wrong_numbers(title: &str, proven: &[Proven], asked: usize) -> Vec<String> {
    proven
        .iter()
        .filter(|proven| !proven.is_right(asked))
        .map(|proven| format!("{title}: {} = {}", proven.name, proven.value))
        .collect()
}

/// Points at which nobody died.
pub fn missed_points(title: &str, trouble: &Trouble) -> Vec<String> {
    trouble
        .kills_at_point
        .iter()
        .filter(|(_, kills)| **kills == 0)
        .map(|(point, _)| format!("{title}: no process died at {point}"))
        .collect()
}

/// What should have happened and did not.
pub fn missed_trouble(title: &str, happened: &[(&str, usize)]) -> Vec<String> {
    happened
        .iter()
        .filter(|(_, times)| *times == 0)
        .map(|(what, _)| format!("{title}: the trouble did not happen: not once {what}"))
        .collect()
}

/// A big run must have had its share; a small one is too short for that.
pub fn too_few_kills(title: &str, trouble: &Trouble, at_least: usize) -> Option<String> {
    let kills = trouble.kills;
    (kills < at_least)
        .then(|| format!("only {kills} kills in the run of {title}, {at_least} are wanted"))
}
