//! Whether a run of the growth may be called a pass, and what it went through.
//!
//! Invariant: as the verdict of all says: no, unless the numbers are right and the trouble happened.

use super::by_shards::{CLUSTER, POOLER};
use super::proof::{LONGEST, LONGEST_MS};
use crate::journal::Outcome;
use crate::story::Run;
use crate::verdict;

/// The pooler, and the cluster that a shard leaves.
const KILLS: usize = 2;

/// Everything that is wrong with a run; empty is a pass.
pub fn faults(run: &Run) -> Vec<String> {
    let title = format!("{}, growth", run.card.title);
    let happened = [
        ("a pooler killed", kills_of(run, POOLER)),
        ("a cluster killed", kills_of(run, CLUSTER)),
        ("a replay", run.trouble.saw(Outcome::Replayed)),
    ];
    let mut faults = verdict::faults(run, &title, KILLS, &happened);
    let longest = run.proven.iter().find(|proven| proven.name == LONGEST);
    if let Some(longest) = longest.filter(|longest| run.card.pg_once && longest.value > LONGEST_MS)
    {
        faults.push(format!("{title}: {LONGEST} = {:.0} ms", longest.value));
    }
    faults
}

fn kills_of(run: &Run, name: &str) -> usize {
    let lane = run.lanes.iter().position(|lane| lane == name);
    lane.map_or(0, |lane| run.trouble.kills_of(lane))
}

/// The trouble that is worth a line.
pub fn went_through(run: &Run) -> Vec<(&'static str, f64)> {
    let trouble = &run.trouble;
    let lines = [
        ("requests sent, retries included", trouble.attempts),
        ("answers lost by the network", trouble.answers_cut),
        ("stored answers replayed", trouble.saw(Outcome::Replayed)),
        (
            "told \"in progress\" (409)",
            trouble.saw(Outcome::InProgress),
        ),
        ("clients that timed out", trouble.saw(Outcome::TimedOut)),
        ("poolers killed", kills_of(run, POOLER)),
        ("clusters killed", kills_of(run, CLUSTER)),
    ];
    lines.map(|(name, times)| (name, times as f64)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::assert_judges;

    #[test]
    fn a_run_without_trouble_fails_and_so_does_one_with_a_wrong_number() {
        assert_judges(faults, &[], "not once a pooler killed");
    }
}
