//! Whether a run of the shop may be called a pass, and what it went through.
//!
//! Invariant: as the verdict of all says: no, unless the numbers are right and the trouble happened.

use crate::outside::line::{Fate, Kind, Line};
use crate::outside::{count, fated};
use crate::story::Run;
use crate::verdict;

const KILLS_AT_LEAST: usize = 15;

/// The receiver is the first that is started.
const RECEIVER: usize = 0;

/// Everything that is wrong with a run; empty is a pass.
pub fn faults(run: &Run, ledger: &[Line]) -> Vec<String> {
    let title = format!("{}, receipts", run.card.title);
    let happened = [
        ("a terminated backend", run.trouble.backends_terminated),
        (
            "a receipt that the receiver knew",
            count(ledger, Kind::Again),
        ),
        ("an answer that the receiver cut", fated(ledger, Fate::Cut)),
        ("an answer that came too late", fated(ledger, Fate::Late)),
        ("a receiver killed", run.trouble.kills_of(RECEIVER)),
    ];
    verdict::faults(run, &title, KILLS_AT_LEAST, &happened)
}

/// The trouble that is worth a line.
pub fn went_through(run: &Run, ledger: &[Line]) -> Vec<(&'static str, f64)> {
    let trouble = &run.trouble;
    let lines = [
        ("orders sent, retries included", trouble.attempts),
        ("processes killed (kill -9)", trouble.kills),
        ("... of them the receiver", trouble.kills_of(RECEIVER)),
        ("database backends terminated", trouble.backends_terminated),
        ("answers lost by the network", trouble.answers_cut),
        (
            "receipts taken in but never answered",
            fated(ledger, Fate::Cut),
        ),
        ("receipts answered too late", fated(ledger, Fate::Late)),
    ];
    lines.map(|(name, times)| (name, times as f64)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::assert_judges;

    #[test]
    fn a_run_without_trouble_fails_and_so_does_one_with_a_wrong_number() {
        let missed = "not once a receiver killed";
        assert_judges(|run| faults(run, &[]), &["after_send"], missed);
    }
}
