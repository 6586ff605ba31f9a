//! Whether a run of the batch service may be called a pass, and what it went through.
//!
//! Invariant: as the verdict beside it says: no, unless the numbers are right and the trouble
//! happened.

use anyhow::Result;
use tokio_postgres::Client;

use super::case::Case;
use super::plan::Job;
use crate::journal::{Attempt, Event, Outcome};
use crate::proof::Proven;
use crate::verdict::{self, Trouble};

const KILLS_AT_LEAST: usize = 20;

const GIVEN_BACK: &str = "select count(*)::float8 from status_log where old_status = 'running' \
                          and new_status = 'queued' and not flagged";
const CUT_SHORT: &str = "select count(*)::float8 from batch_job j where status = 'cancelled' \
                         and exists (select from batch_item i where i.job_id = j.id and i.state = 'succeeded')";

/// What the tables say of the trouble.
pub struct Met {
    /// Jobs that somebody had begun and that were to be begun again.
    pub given_back: f64,
    /// Jobs cancelled after an item had cost something.
    pub cut_short: f64,
}

impl Met {
    pub async fn ask(owner: &Client) -> Result<Self> {
        Ok(Self {
            given_back: owner.query_one(GIVEN_BACK, &[]).await?.get(0),
            cut_short: owner.query_one(CUT_SHORT, &[]).await?.get(0),
        })
    }
}

/// What is judged.
pub struct Evidence<'a> {
    pub case: &'a Case,
    pub lanes: &'a [String],
    pub events: &'a [Event],
    pub proven: &'a [Proven],
    pub trouble: &'a Trouble,
    pub met: &'a Met,
}

/// Everything that is wrong with a run; empty is a pass. Of the hand-written service only that its
/// processes did not end by themselves.
pub fn faults(evidence: &Evidence<'_>) -> Vec<String> {
    let Evidence {
        case, trouble, met, ..
    } = *evidence;
    let title = format!("{}, jobs", case.title);
    let mut faults = verdict::deaths(&title, evidence.lanes, evidence.events);
    if !case.leased {
        return faults;
    }
    faults.extend(verdict::wrong_numbers(&title, evidence.proven, case.jobs));
    faults.extend(verdict::missed_points(&title, trouble));
    faults.extend(verdict::too_few_kills(&title, trouble, KILLS_AT_LEAST));
    faults.extend(verdict::missed_trouble(
        &title,
        &[
            (
                "an answer \"come back\" (409, 202)",
                trouble.saw(Outcome::InProgress),
            ),
            ("an answer cut on its way", trouble.answers_cut),
            ("a terminated backend", trouble.backends_terminated),
            ("a job that was given back", met.given_back as usize),
            (
                "a job cancelled after an item's success",
                met.cut_short as usize,
            ),
        ],
    ));
    let refused = trouble.saw(Outcome::Refused);
    if refused > 0 {
        faults.push(format!(
            "{title}: {refused} requests were refused with a status that nobody expects"
        ));
    }
    faults
}

/// The trouble that is worth a line.
pub fn went_through(
    trouble: &Trouble,
    met: &Met,
    attempts: &[Attempt],
    jobs: &[Job],
) -> Vec<(&'static str, f64)> {
    let sent = |who: &str| {
        let theirs = |attempt: &&Attempt| attempt.client.starts_with(who);
        attempts.iter().filter(theirs).count() as f64
    };
    let twice = jobs.iter().filter(|job| job.again_after.is_some()).count();
    vec![
        ("deliveries, retries included", sent("queue")),
        ("jobs that the queue had twice", twice as f64),
        ("cancellations sent, retries included", sent("user")),
        ("jobs cancelled after an item's success", met.cut_short),
        ("jobs of dead or failed workers, begun anew", met.given_back),
        ("processes killed (kill -9)", trouble.kills as f64),
        (
            "database backends terminated",
            trouble.backends_terminated as f64,
        ),
        ("answers lost by the network", trouble.answers_cut as f64),
        (
            "told to come back (409, 202)",
            trouble.saw(Outcome::InProgress) as f64,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::stage::points;
    use super::*;
    use crate::proof::Want;

    fn faults_of_a_quiet_run(orphans: f64) -> Vec<String> {
        let case = Case {
            name: "batch_pg_once",
            title: "pg_once",
            explain: "",
            leased: true,
            jobs: 3,
            window: Duration::from_secs(1),
            rounds: 1,
        };
        let proven = [Proven {
            name: "orphaned artifacts",
            want: Want::Zero,
            unit: "",
            sql: String::new(),
            value: orphans,
        }];
        let met = Met {
            given_back: 0.0,
            cut_short: 0.0,
        };
        faults(&Evidence {
            case: &case,
            lanes: &[],
            events: &[],
            proven: &proven,
            trouble: &Trouble::of(&[], &[], &points(&case).concat()),
            met: &met,
        })
    }

    #[test]
    fn a_run_without_trouble_fails_although_nothing_went_wrong() {
        let faults = faults_of_a_quiet_run(0.0);
        for expected in [
            "no process died at amid_cleanup",
            "not once a job that was given back",
            "only 0 kills",
        ] {
            assert!(
                faults.iter().any(|fault| fault.contains(expected)),
                "{faults:?}"
            );
        }
        assert!(
            !faults.iter().any(|fault| fault.contains("orphaned")),
            "{faults:?}"
        );
    }

    #[test]
    fn one_orphaned_artifact_fails_the_demo() {
        let faults = faults_of_a_quiet_run(1.0);
        assert!(
            faults.contains(&"pg_once, jobs: orphaned artifacts = 1".to_owned()),
            "{faults:?}"
        );
    }
}
