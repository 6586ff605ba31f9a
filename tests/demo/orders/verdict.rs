//! Whether a run of the order service may be called a pass.
//!
//! Invariant: as the verdict of all says: no, unless the numbers are right and the trouble happened.

use super::case::TheirMemory;
use super::proof::{BY_COMPLETER, DEAD_AND_NOT_THERE, DEAD_BUT_THERE, DIFFERENCES, WAITED};
use crate::journal::Outcome;
use crate::outside::line::{Fate, Kind, Line};
use crate::outside::{count, fated};
use crate::story::Run;
use crate::verdict;

const KILLS_AT_LEAST: usize = 20;

/// Everything that is wrong with a run; empty is a pass. `status_without_key` is what a request
/// without a key was told.
pub fn faults(
    run: &Run,
    ledger: &[Line],
    bank: TheirMemory,
    status_without_key: Option<u16>,
) -> Vec<String> {
    let (title, trouble) = (run.card.title, &run.trouble);
    let said = |name| {
        let proven = run.proven.iter().find(|proven| proven.name == name);
        proven.map_or(0, |proven| proven.value as usize)
    };
    // How the repeated charge was kept from happening, or settled. The small runs are too short for many
    // kills.
    let (saved, kills) = match bank {
        TheirMemory::Dedupes => {
            let known = count(ledger, Kind::Again);
            (("a key that the bank recognised", known), KILLS_AT_LEAST)
        }
        TheirMemory::CanBeAsked => {
            let looks = count(ledger, Kind::Looked);
            (("a look at the bank before charging", looks), 0)
        }
        TheirMemory::LedgerOnly => {
            let differences = said(DIFFERENCES);
            (("a difference from the bank's ledger", differences), 0)
        }
    };
    let [left_behind, waited] = match kills {
        0 => [1, 1], // too short for them to be sure
        _ => [BY_COMPLETER, WAITED].map(said),
    };
    let mut happened = vec![
        ("a terminated backend", run.trouble.backends_terminated),
        saved,
        ("an order that the completer finished", left_behind),
        ("a double click that waited for the answer", waited),
        ("a mismatch (422)", trouble.saw(Outcome::Mismatched)),
        (
            "an answer \"in progress\" (409)",
            trouble.saw(Outcome::InProgress),
        ),
        ("a replay", trouble.saw(Outcome::Replayed)),
        ("an answer that the bank cut", fated(ledger, Fate::Cut)),
    ];
    if bank == TheirMemory::LedgerOnly {
        let deaths = [DEAD_BUT_THERE, DEAD_AND_NOT_THERE].map(|name| (name, said(name)));
        happened.extend(deaths);
    }
    let mut faults = verdict::faults(run, title, kills, &happened);
    if run.card.pg_once && status_without_key != Some(400) {
        faults.push(format!(
            "{title}: a request without a key was told {status_without_key:?}"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::assert_judges;

    #[test]
    fn a_run_without_trouble_fails_and_so_does_one_with_a_wrong_number() {
        let judge = |run: &Run| faults(run, &[], TheirMemory::Dedupes, Some(400));
        assert_judges(judge, &["after_charge"], "not once a replay");
    }
}
