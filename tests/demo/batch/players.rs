//! The processes of a run and who speaks to them: workers before the queue, endpoints before the
//! users, and for pg_once a janitor.
//!
//! Invariant: the janitor starts first, because the others refuse to start where nobody sweeps. The
//! hand-written service has none: it has nothing that a janitor could call.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::case::Case;
use super::load::{QUEUE_WAITS, Sides, USER_WAITS};
use super::plan::Job;
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{JANITOR_ROLE, SERVICE_ROLE};
use crate::ground::Ground;
use crate::journal::Journal;
use crate::stage::{Cast, Stage};
use crate::supervisor::Program;

/// Where workers that use pg_once die: every place between two effects, those of their own teardown too. Each has a
/// name of its own: an endpoint's death amid its cleanup says nothing of a worker's.
const LEASED_WORKER: &[&str] = &[
    "after_claim",
    "after_item_begun",
    "after_artifact",
    "before_item_commit",
    "before_finish_commit",
    "after_finish",
    "after_worker_release",
    "before_worker_refund",
    "after_worker_refund",
    "after_worker_cleanup_items",
    "amid_worker_cleanup",
    "after_worker_cleanup_confirm",
    "before_worker_cancel_finish",
    "after_worker_cancel_finish",
];
const LEASED_ENDPOINT: &[&str] = &[
    "after_cancel_request",
    "after_refund",
    "after_cleanup_items",
    "amid_cleanup",
    "after_cleanup_confirm",
    "before_cancel_finish",
    "after_cancel_finish",
];
/// A job that an endpoint tears down has mostly made nothing yet, so that there is nothing to delete; a job that is
/// left to the janitor has.
const JANITOR: &[&str] = &["after_cleanup_items", "amid_cleanup"];
/// The same places of the hand-written service.
const NAIVE_WORKER: &[&str] = &[
    "after_claim",
    "after_item_begun",
    "after_artifact",
    "before_item_commit",
    "before_finish",
    "after_finish",
];
const NAIVE_ENDPOINT: &[&str] = &[
    "after_cancel_request",
    "after_sum",
    "after_credit",
    "after_refund",
    "amid_cleanup",
    "before_cancel_finish",
    "after_cancel_finish",
];

const ENDPOINTS: usize = 2;

pub struct Players {
    pub stage: Stage,
    pub sides: Sides,
}

/// Where the workers and the endpoints of a service die.
pub fn points(pg_once: bool) -> [&'static [&'static str]; 2] {
    match pg_once {
        true => [LEASED_WORKER, LEASED_ENDPOINT],
        false => [NAIVE_WORKER, NAIVE_ENDPOINT],
    }
}

impl Players {
    /// `store` is the directory of the artifacts.
    pub async fn start(
        case: &Case,
        ground: &Ground<'_>,
        store: &Path,
        jobs: &[Arc<Job>],
        journal: &Arc<Journal>,
    ) -> Result<Self> {
        let (asked, pg_once) = (case.card.asked, case.card.pg_once);
        let workers = usize::from(ground.settings.services);
        let cancels = jobs.iter().filter(|job| job.cancel.is_some()).count();
        let [at_work, at_teardown] = points(pg_once);
        let worker_crashes = Arc::new(Crashes::new(at_work, case.rounds, workers, asked));
        // Most of those who cancel meet a running job, which its worker tears down.
        let endpoint_crashes = Crashes::new(at_teardown, case.rounds, ENDPOINTS, cancels / 3);
        let endpoint_crashes = Arc::new(endpoint_crashes);
        let program = |role| program(case, ground, store, role);
        let mut cast = Cast::new(ground, journal);
        let janitors = usize::from(pg_once);
        let janitor_crashes = Arc::new(Crashes::new(JANITOR, 1, 1, 0));
        cast.add("janitor", janitors, &program("janitor"), &janitor_crashes)
            .await?;
        let before_workers = cast
            .add("worker", workers, &program("worker"), &worker_crashes)
            .await?;
        let before_endpoints = cast
            .add(
                "endpoint",
                ENDPOINTS,
                &program("endpoint"),
                &endpoint_crashes,
            )
            .await?;
        let clients = |fronts: &[_], waits| Clients::new(fronts, waits, Arc::clone(journal));
        Ok(Self {
            stage: cast.start().await?,
            sides: Sides {
                queue: clients(&before_workers, QUEUE_WAITS),
                users: clients(&before_endpoints, USER_WAITS),
                worker_crashes,
                endpoint_crashes,
            },
        })
    }
}

fn program(case: &Case, ground: &Ground<'_>, store: &Path, role: &str) -> Program {
    let user = match role {
        "janitor" => JANITOR_ROLE,
        _ => SERVICE_ROLE,
    };
    let how = match case.card.pg_once {
        true => "pg-once",
        false => "naive",
    };
    let database = ground.cluster.url_as(user, case.card.name);
    Program {
        path: ground.paths.batch.clone(),
        arguments: vec![
            format!("--database-url={database}"),
            format!("--store={}", store.display()),
            format!("--how={how}"),
            format!("--role={role}"),
            format!("--lease-ms={}", ground.settings.lease_ms),
        ],
        directory: ground.work.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_point_of_a_worker_is_an_endpoints_too() {
        for [at_work, at_teardown] in [points(true), points(false)] {
            assert!(!at_work.iter().any(|point| at_teardown.contains(point)));
        }
    }
}
