//! Whether a run of the order service may be called a pass.
//!
//! Invariant: as the verdict beside it says: no, unless the numbers are right and the trouble
//! happened.

use super::bank_process::BankTrouble;
use super::case::Case;
use crate::journal::{Event, Outcome};
use crate::proof::Proven;
use crate::verdict::{self, Trouble};

const KILLS_AT_LEAST: usize = 20;

/// What is judged.
pub struct Evidence<'a> {
    pub case: &'a Case,
    pub lanes: &'a [String],
    pub events: &'a [Event],
    pub proven: &'a [Proven],
    pub trouble: &'a Trouble,
    pub bank: &'a BankTrouble,
    /// What a request without a key was told.
    pub status_without_key: Option<u16>,
}

/// Everything that is wrong with a run; empty is a pass. Of the hand-written service only that its
/// processes did not end by themselves.
pub fn faults(evidence: &Evidence<'_>) -> Vec<String> {
    let Evidence {
        case,
        trouble,
        bank,
        ..
    } = *evidence;
    let title = case.title;
    let mut faults = verdict::deaths(title, evidence.lanes, evidence.events);
    if !case.keyed {
        return faults;
    }
    faults.extend(verdict::wrong_numbers(title, evidence.proven, case.orders));
    faults.extend(verdict::missed_points(title, trouble));
    // How the repeated charge was kept from happening.
    let saved = if case.bank_dedupes {
        ("a key that the bank recognised", bank.repeated)
    } else {
        ("a look at the bank before charging", bank.looked_up)
    };
    let many = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    faults.extend(verdict::missed_trouble(
        title,
        &[
            (saved.0, many(saved.1)),
            ("a mismatch (422)", trouble.saw(Outcome::Mismatched)),
            (
                "an answer \"in progress\" (409)",
                trouble.saw(Outcome::InProgress),
            ),
            ("a replay", trouble.saw(Outcome::Replayed)),
            ("an answer cut on its way", trouble.answers_cut),
            ("a terminated backend", trouble.backends_terminated),
            ("an answer that the bank cut", many(bank.cut)),
        ],
    ));
    if evidence.status_without_key != Some(400) {
        faults.push(format!(
            "{title}: a request without a key was told {:?}",
            evidence.status_without_key
        ));
    }
    let refused = trouble.saw(Outcome::Refused);
    if refused > 0 {
        faults.push(format!(
            "{title}: {refused} requests were refused with a status that nobody expects"
        ));
    }
    if case.bank_dedupes {
        faults.extend(verdict::too_few_kills(title, trouble, KILLS_AT_LEAST));
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proof::Want;

    fn faults_of_a_quiet_run(double_charges: f64) -> Vec<String> {
        let case = Case {
            name: "pg_once",
            title: "pg_once",
            explain: "",
            keyed: true,
            bank_dedupes: true,
            orders: 3,
            window: Duration::from_secs(1),
            rounds: 1,
        };
        let proven = [Proven {
            name: "double charges",
            want: Want::Zero,
            unit: "",
            sql: String::new(),
            value: double_charges,
        }];
        faults(&Evidence {
            case: &case,
            lanes: &[],
            events: &[],
            proven: &proven,
            trouble: &Trouble::of(&[], &[], case.points()),
            bank: &BankTrouble {
                slow: 0,
                cut: 0,
                repeated: 0,
                looked_up: 0,
            },
            status_without_key: Some(400),
        })
    }

    #[test]
    fn a_run_without_trouble_fails_although_nothing_went_wrong() {
        let faults = faults_of_a_quiet_run(0.0);
        for expected in [
            "no process died at after_charge",
            "not once a replay",
            "only 0 kills",
        ] {
            assert!(
                faults.iter().any(|fault| fault.contains(expected)),
                "{faults:?}"
            );
        }
        assert!(
            !faults.iter().any(|fault| fault.contains("double charges")),
            "{faults:?}"
        );
    }

    #[test]
    fn one_double_charge_fails_the_demo() {
        let faults = faults_of_a_quiet_run(1.0);
        assert!(
            faults.contains(&"pg_once: double charges = 1".to_owned()),
            "{faults:?}"
        );
    }
}
