//! Whether a run of the batch service may be called a pass, and what it went through.
//!
//! Invariant: as the verdict of all says: no, unless the numbers are right and the trouble happened.

use std::sync::Arc;

use anyhow::Result;
use tokio_postgres::Client;

use super::plan::Job;
use crate::journal::{Attempt, Outcome};
use crate::story::Run;
use crate::verdict;

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

/// Everything that is wrong with a run; empty is a pass.
pub fn faults(run: &Run, met: &Met) -> Vec<String> {
    let title = format!("{}, jobs", run.card.title);
    let happened = [
        ("a terminated backend", run.trouble.backends_terminated),
        (
            "an answer \"come back\" (409, 202)",
            run.trouble.saw(Outcome::InProgress),
        ),
        ("a job that was given back", met.given_back as usize),
        (
            "a job cancelled after an item's success",
            met.cut_short as usize,
        ),
    ];
    verdict::faults(run, &title, KILLS_AT_LEAST, &happened)
}

/// The trouble that is worth a line.
pub fn went_through(run: &Run, met: &Met, jobs: &[Arc<Job>]) -> Vec<(&'static str, f64)> {
    let trouble = &run.trouble;
    let sent = |who: &str| {
        let theirs = |attempt: &&Attempt| attempt.client.starts_with(who);
        run.attempts.iter().filter(theirs).count() as f64
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
    use super::*;
    use crate::verdict::tests::assert_judges;

    #[test]
    fn a_run_without_trouble_fails_and_so_does_one_with_a_wrong_number() {
        let met = Met {
            given_back: 0.0,
            cut_short: 0.0,
        };
        let missed = "not once a job that was given back";
        assert_judges(|run| faults(run, &met), &["amid_cleanup"], missed);
    }
}
