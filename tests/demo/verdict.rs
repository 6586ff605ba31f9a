//! Whether the demo may say that it worked: what the verdicts of all stories have in common.
//!
//! Invariant: it says no unless everything that must be zero is zero *and* the trouble really
//! happened; a demo that could not fail would prove nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::journal::{Attempt, Event, Outcome, What};
use crate::story::Run;

/// The trouble of one run, counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trouble {
    pub kills: usize,
    pub kills_by_supervisor: usize,
    pub kills_at_point: BTreeMap<String, usize>,
    /// By lane.
    pub kills_of_lane: BTreeMap<usize, usize>,
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
        let mut kills_of_lane = BTreeMap::new();
        for lane in events.iter().filter_map(|event| event.what.killed_lane()) {
            *kills_of_lane.entry(lane).or_default() += 1;
        }
        let mut outcomes = BTreeMap::new();
        for attempt in attempts {
            *outcomes.entry(attempt.outcome.name()).or_default() += 1;
        }
        Self {
            kills: count(What::is_kill),
            kills_by_supervisor: count(|what| matches!(what, What::Killed { .. })),
            kills_at_point,
            kills_of_lane,
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

    /// How often the process of that lane was killed.
    pub fn kills_of(&self, lane: usize) -> usize {
        self.kills_of_lane.get(&lane).copied().unwrap_or_default()
    }

    pub fn saw(&self, outcome: Outcome) -> usize {
        self.outcomes
            .get(outcome.name())
            .copied()
            .unwrap_or_default()
    }
}

/// Everything that is wrong with a run; empty is a pass. Of a hand-written service only that its
/// processes did not end by themselves. `title` names the run among all stories; a big run must have
/// had its share of kills, a small one is too short for that (0).
pub fn faults(run: &Run, title: &str, kills: usize, happened: &[(&str, usize)]) -> Vec<String> {
    let mut faults = deaths(run, title);
    if !run.card.pg_once {
        return faults;
    }
    let wrong = run
        .proven
        .iter()
        .filter(|proven| !proven.is_right(run.card.asked));
    faults.extend(wrong.map(|proven| format!("{title}: {} = {}", proven.name, proven.value)));
    let trouble = &run.trouble;
    let missed = trouble
        .kills_at_point
        .iter()
        .filter(|(_, times)| **times == 0);
    faults.extend(missed.map(|(point, _)| format!("{title}: no process died at {point}")));
    let everywhere = [("an answer cut on its way", trouble.answers_cut)];
    let missed = happened
        .iter()
        .chain(&everywhere)
        .filter(|(_, times)| *times == 0);
    faults.extend(
        missed.map(|(what, _)| format!("{title}: the trouble did not happen: not once {what}")),
    );
    let refused = trouble.saw(Outcome::Refused);
    if refused > 0 {
        faults.push(format!(
            "{title}: {refused} requests were refused with a status that nobody expects"
        ));
    }
    if trouble.kills < kills {
        faults.push(format!(
            "only {} kills in the run of {title}, {kills} are wanted",
            trouble.kills
        ));
    }
    faults
}

/// Processes that ended without being killed; they fail a run of any service.
fn deaths(run: &Run, title: &str) -> Vec<String> {
    run.events
        .iter()
        .filter_map(|event| match &event.what {
            What::Died { lane, last_words } => {
                let name = run.lanes.get(*lane).map_or("a process", String::as_str);
                Some(format!(
                    "{title}: {name} ended without being killed: {last_words}"
                ))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
pub mod tests {
    use crate::journal::Journal;
    use crate::proof::{Proven, Want};
    use crate::story::{Card, Run};

    /// A run of pg_once in which nothing happened, and one number that must be 0 is `value`.
    pub fn quiet_run(points: &[&'static str], name: &'static str, value: f64) -> Run {
        let card = Card {
            name: "quiet",
            title: "pg_once",
            explain: "",
            pg_once: true,
            asked: 3,
        };
        let mut run = Run::of(card, points.to_vec(), vec![], &Journal::new());
        run.proven.push(Proven {
            name,
            want: Want::Zero,
            unit: "",
            sql: String::new(),
            value,
        });
        run
    }

    /// What a story's verdict must say of such a run: it fails it for the missing trouble, and for
    /// the number exactly when that is not 0.
    pub fn assert_judges(
        judge: impl Fn(&Run) -> Vec<String>,
        points: &[&'static str],
        missed: &str,
    ) {
        let said =
            |faults: &[String], words: &str| faults.iter().any(|fault| fault.contains(words));
        let faults = judge(&quiet_run(points, "effects lost", 0.0));
        let died_nowhere = points
            .iter()
            .map(|point| format!("no process died at {point}"));
        let expected = [missed.to_owned(), "only 0 kills".to_owned()];
        for expected in died_nowhere.chain(expected) {
            assert!(said(&faults, &expected), "{expected}: {faults:?}");
        }
        assert!(!said(&faults, "effects lost"), "{faults:?}");
        let faults = judge(&quiet_run(points, "effects lost", 1.0));
        assert!(said(&faults, "effects lost = 1"), "{faults:?}");
    }
}
