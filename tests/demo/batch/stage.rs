//! The processes of a run and who speaks to them: workers before the queue, endpoints before the
//! users, and for pg_once a janitor.
//!
//! Invariant: the janitor starts first, because the others refuse to start where nobody sweeps. The
//! hand-written service has none: it has nothing that a janitor could call.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use pg_once_tests::Cluster;

use super::case::Case;
use super::load::{QUEUE_WAITS, Sides, USER_WAITS};
use super::plan::Job;
use crate::client::Clients;
use crate::crashes::Crashes;
use crate::database::{JANITOR_ROLE, SERVICE_ROLE};
use crate::journal::Journal;
use crate::proxy::Proxy;
use crate::settings::{Paths, Settings};
use crate::supervisor::{Post, Program, Supervisor};

/// Where workers that use pg_once die: every place between two effects.
const LEASED_WORKER: &[&str] = &[
    "after_claim",
    "after_item_begun",
    "after_artifact",
    "before_item_commit",
    "before_finish_commit",
    "after_finish",
];
const LEASED_ENDPOINT: &[&str] = &[
    "after_cancel_request",
    "after_refund",
    "amid_cleanup",
    "after_cleanup_confirm",
    "before_cancel_finish",
    "after_cancel_finish",
];
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

/// Where a run takes place.
pub struct Place<'a> {
    pub settings: &'a Settings,
    pub paths: &'a Paths,
    pub cluster: &'a Cluster,
    pub work: &'a Path,
    /// The artifacts' directory.
    pub store: &'a Path,
}

pub struct Stage {
    pub supervisor: Supervisor,
    pub sides: Sides,
    /// The processes' names.
    pub lanes: Vec<String>,
}

/// Where the workers and the endpoints of a service die.
pub fn points(case: &Case) -> [&'static [&'static str]; 2] {
    if case.leased {
        [LEASED_WORKER, LEASED_ENDPOINT]
    } else {
        [NAIVE_WORKER, NAIVE_ENDPOINT]
    }
}

impl Stage {
    pub async fn set(
        case: &Case,
        place: &Place<'_>,
        jobs: &[Job],
        journal: &Arc<Journal>,
    ) -> Result<Self> {
        let workers = usize::from(place.settings.services);
        let cancels = jobs.iter().filter(|job| job.cancel.is_some()).count();
        let [at_work, at_teardown] = points(case);
        let worker_crashes = Arc::new(Crashes::new(at_work, case.rounds, workers, case.jobs));
        // Most of those who cancel meet a running job, which its worker tears down.
        let endpoint_crashes = Crashes::new(at_teardown, case.rounds, ENDPOINTS, cancels / 3);
        let endpoint_crashes = Arc::new(endpoint_crashes);
        let never = Arc::new(Crashes::none());
        let roles = [
            ("janitor", usize::from(case.leased), &never),
            ("worker", workers, &worker_crashes),
            ("endpoint", ENDPOINTS, &endpoint_crashes),
        ];
        let (mut posts, mut lanes) = (Vec::new(), Vec::new());
        let (mut worker_fronts, mut endpoint_fronts) = (Vec::new(), Vec::new());
        for (role, count, crashes) in roles {
            for number in 1..=count {
                let lane = lanes.len();
                let seed = place.settings.seed.wrapping_add(lane as u64);
                let proxy = Arc::new(Proxy::start(lane, seed, Arc::clone(journal)).await?);
                match role {
                    "worker" => worker_fronts.push(proxy.front),
                    "endpoint" => endpoint_fronts.push(proxy.front),
                    _ => {}
                }
                lanes.push(match count {
                    1 => role.to_owned(),
                    _ => format!("{role} {number}"),
                });
                posts.push(Post {
                    program: program(case, place, role),
                    proxy,
                    crashes: Arc::clone(crashes),
                });
            }
        }
        let clients = |fronts: &[_], waits| Clients::new(fronts, waits, Arc::clone(journal));
        Ok(Self {
            supervisor: Supervisor::start(posts, journal).await?,
            sides: Sides {
                queue: clients(&worker_fronts, QUEUE_WAITS),
                users: clients(&endpoint_fronts, USER_WAITS),
                worker_crashes,
                endpoint_crashes,
            },
            lanes,
        })
    }
}

fn program(case: &Case, place: &Place<'_>, role: &str) -> Program {
    let user = match role {
        "janitor" => JANITOR_ROLE,
        _ => SERVICE_ROLE,
    };
    let how = if case.leased { "pg-once" } else { "naive" };
    Program {
        path: place.paths.batch.clone(),
        arguments: vec![
            format!("--database-url={}", place.cluster.url_as(user, case.name)),
            format!("--store={}", place.store.display()),
            format!("--how={how}"),
            format!("--role={role}"),
            format!("--lease-ms={}", place.settings.lease_ms),
        ],
        directory: place.work.to_owned(),
    }
}
