//! Runs the plan: the queue's deliveries and the users' cancellations, each at its time.
//!
//! Invariant: the queue delivers a job until it is told that nothing is left to do (at least once).

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::plan::{Job, Manner};
use crate::client::{Ask, Clients, Waits};
use crate::crashes::Crashes;
use crate::load::open_loop;
use crate::progress::Progress;

/// A queue takes a delivery for lost after well above what a job takes, and does not give up.
pub const QUEUE_WAITS: Waits = Waits {
    answer: Duration::from_secs(4),
    end: Duration::from_secs(120),
};
pub const USER_WAITS: Waits = Waits {
    answer: Duration::from_secs(1),
    end: Duration::from_secs(20),
};

/// Who asks whom.
#[derive(Clone)]
pub struct Sides {
    /// The queue, before the workers.
    pub queue: Clients,
    /// The users, before the endpoints.
    pub users: Clients,
    pub worker_crashes: Arc<Crashes>,
    pub endpoint_crashes: Arc<Crashes>,
}

/// The whole load, until every delivery and every user has its final answer or has gone.
pub async fn run(sides: &Sides, jobs: &[Arc<Job>], progress: &Progress) {
    let serve = |job: &Arc<Job>| {
        let (sides, job) = (sides.clone(), Arc::clone(job));
        async move {
            tokio::join!(
                deliver(&sides, &job),
                deliver_again(&sides, &job),
                cancel(&sides, &job)
            );
        }
    };
    open_loop(jobs, |job| job.starts, progress, serve).await;
}

fn ask(job: &Job, verb: &str, client: &'static str, body: String) -> Ask {
    Ask {
        path: format!("/jobs/{}/{verb}", job.id),
        key: job.id.to_string(),
        client,
        amount_cents: 0,
        body,
    }
}

async fn deliver(sides: &Sides, job: &Job) {
    let mut rng = StdRng::seed_from_u64(job.seed);
    sides.worker_crashes.one_started();
    tokio::time::sleep(job.queued_for).await;
    let delivery = ask(job, "run", "queue", job.message());
    sides.queue.insist(&delivery, &mut rng).await;
}

async fn deliver_again(sides: &Sides, job: &Job) {
    let Some(later) = job.again_after else { return };
    let mut rng = StdRng::seed_from_u64(job.seed ^ 1);
    tokio::time::sleep(job.queued_for + later).await;
    let delivery = ask(job, "run", "queue_again", job.message());
    sides.queue.insist(&delivery, &mut rng).await;
}

async fn cancel(sides: &Sides, job: &Job) {
    let Some(cancel) = job.cancel else { return };
    let mut rng = StdRng::seed_from_u64(job.seed ^ 2);
    tokio::time::sleep(cancel.after).await;
    sides.endpoint_crashes.one_started();
    let wish = |client| ask(job, "cancel", client, String::new());
    match cancel.manner {
        Manner::Plain => {
            sides.users.insist(&wish("user"), &mut rng).await;
        }
        Manner::Twice => {
            let mut other_rng = StdRng::seed_from_u64(job.seed ^ 3);
            let (first, second) = (wish("user"), wish("user_again"));
            tokio::join!(
                sides.users.insist(&first, &mut rng),
                sides.users.insist(&second, &mut other_rng)
            );
        }
        Manner::Leaves { after } => {
            let wish = wish("user_who_leaves");
            sides.users.hang_up_after(&wish, after, &mut rng).await;
        }
    }
}
