//! Owns one abandoned request from its take to its end.
//!
//! Invariant: a taken key is finished, parked or released, or its lease expires. `Complete::ended` is called once.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::super::attempt::{Attempt, End};
use super::super::outcome::{Done, Failure, Outcome};
use super::super::pace::{DEFERRED, jittered};
use super::super::panics::{apart, tell};
use super::super::stage::{Stage, reached};
use super::{Complete, Completed, Completion, Shared};
use crate::{Abandoned, Autocommit, Error, Lease};

/// Works on a request, in a given slot or in the next free slot.
pub(super) async fn bring_to_its_end<E, H>(
    shared: Arc<Shared<E, H>>,
    abandoned: Abandoned,
    since: Instant,
    mut slot: Option<OwnedSemaphorePermit>,
) -> Completed
where
    E: Autocommit + Send + 'static,
    H: Complete,
{
    let lease = abandoned.lease.clone();
    let attempt = Attempt {
        exec: &shared.exec,
        backoff: &shared.backoff,
        lease: &lease,
        deferred: Some(jittered(DEFERRED.ceiling(failures(&lease)))),
    };
    let mut stage = shared.stage.clone();
    let ended = if *stage.borrow() >= Stage::Finish {
        attempt.give_back().await
    } else {
        let stop = reached(&mut stage, Stage::GiveBack);
        let work = async {
            if slot.is_none() {
                slot = Arc::clone(&shared.slots).acquire_owned().await.ok();
            }
            handle(&shared, abandoned).await
        };
        attempt.run(since, work, stop).await
    };
    let completion = Completion::of(ended, &attempt);
    completion.log(&lease);
    tell(|| shared.handler.ended(lease.key(), &completion));
    drop(slot);
    Completed::of(&completion)
}

/// The number of failures for the backoff: the number of earlier attempts, but at least 1.
fn failures(lease: &Lease) -> u32 {
    u32::try_from(lease.attempt() - 1).unwrap_or(1).max(1)
}

async fn handle<E: Send + Sync + 'static, H: Complete>(
    shared: &Arc<Shared<E, H>>,
    abandoned: Abandoned,
) -> Result<Done, Failure> {
    let shared = Arc::clone(shared);
    let ended = apart(async move { shared.handler.complete(abandoned).await }).await;
    ended.unwrap_or_else(|panic| Err(Failure::retry(format!("the handler panicked: {panic}"))))
}

impl Completion {
    fn of<E>(ended: Result<End, Error>, attempt: &Attempt<'_, E>) -> Self {
        match ended {
            Ok(End::Finished) => Self::Completed,
            Ok(End::Again(error) | End::Failed(error)) => Self::Released {
                error: error.to_string(),
                retry_after: attempt.deferred,
            },
            Ok(End::Outcome(outcome)) => match outcome {
                Outcome::Ran(_) => Self::Completed,
                Outcome::Aborted(_) => Self::Aborted,
                Outcome::Released { error, retry_after } => Self::Released { error, retry_after },
                Outcome::Parked { attempt } => Self::Parked { attempt },
                // Only `LeaseLost` remains: no attempt ends in another outcome.
                _ => Self::LeaseLost,
            },
            Err(error) => Self::Unsettled(error),
        }
    }

    fn log(&self, lease: &Lease) {
        let (key, attempt) = (lease.key(), lease.attempt());
        match self {
            Self::Completed | Self::Aborted => {
                tracing::info!(?key, attempt, ended = ?self, "an abandoned request has its answer");
            }
            Self::Released { error, retry_after } => {
                tracing::warn!(?key, attempt, %error, ?retry_after, "an abandoned request failed");
            }
            // The attempt logs `Parked` and `Unsettled`. The heartbeat logs the lost leases that it notices.
            Self::Parked { .. } | Self::LeaseLost | Self::Unsettled(_) => {}
        }
    }
}
