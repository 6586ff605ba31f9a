//! A cancellation as pg_once carries it out: by the endpoint that was asked, by the worker that saw
//! it, or by the janitor when both have died; by all of them at once, too.
//!
//! Invariant: every step may be repeated by anybody, and the job is `cancelled` only when its points
//! are back and its artifacts are gone. A failed step ends the attempt; the next begins from the top.

use std::future::{pending, ready};
use std::time::Duration;

use pg_once::{CancelRequest, Error, Machine};

use crate::Answer;
use crate::mortal::Mortal;
use crate::run::{PgOnce, delete};

/// Items a page: few, so that a teardown has several.
const PAGE: i32 = 4;
/// Between two rounds of the janitor.
pub const NAP: Duration = Duration::from_millis(700);
/// How soon a user may look again whether a running job has stopped.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Where an endpoint or the janitor dies that tears down.
pub const ENDPOINT: Mortal = Mortal {
    before: &[("once.cancel_finish(", "before_cancel_finish")],
    after: &[
        ("once.cancel_request(", "after_cancel_request"),
        ("once.cancel_refund(", "after_refund"),
        ("once.cancel_items(", "after_cleanup_items"),
        ("once.cancel_confirm(", "after_cleanup_confirm"),
        ("once.cancel_finish(", "after_cancel_finish"),
    ],
};
const AMID: &str = "amid_cleanup";

/// Where a worker dies that has seen a cancellation, released the job and tears it down.
pub const WORKER: Mortal = Mortal {
    before: &[
        ("once.cancel_refund(", "before_worker_refund"),
        ("once.cancel_finish(", "before_worker_cancel_finish"),
    ],
    after: &[
        ("once.action_release(", "after_worker_release"),
        ("once.cancel_refund(", "after_worker_refund"),
        ("once.cancel_items(", "after_worker_cleanup_items"),
        ("once.cancel_confirm(", "after_worker_cleanup_confirm"),
        ("once.cancel_finish(", "after_worker_cancel_finish"),
    ],
};
pub const AMID_WORKER: &str = "amid_worker_cleanup";

impl PgOnce {
    /// Fails where nobody would give back the jobs of a worker that died.
    pub async fn assert_swept(&self) -> Result<(), Error> {
        Machine::assert_covered(&self.pool).await
    }

    /// A user's wish.
    pub async fn cancel(&self, job: i64) -> Result<Answer, Error> {
        let cancel = self.machine.row(job).cancel();
        match cancel.request(&self.pool).await? {
            CancelRequest::Teardown { .. } => {
                let clean = |items: Vec<_>| ready(delete(&self.store, &items, AMID));
                let end = cancel.teardown(&self.pool).page(PAGE).run(clean).await?;
                Ok(Answer::Ended(end.status))
            }
            // Its worker stops at the next item and tears down, or the janitor does.
            CancelRequest::Accepted { .. } => Ok(Answer::Later(LOOK_AGAIN)),
            CancelRequest::Done { status } | CancelRequest::TooLate { status } => {
                Ok(Answer::Ended(status))
            }
            CancelRequest::NotFound => Err(Error::Answer(format!("there is no job {job}"))),
        }
    }

    /// The janitor's other work, beside sweeping: tears down what nobody else does.
    pub async fn keep_tearing_down(self) -> Result<(), Error> {
        let worker = self.machine.teardown_worker(&self.pool).poll_every(NAP);
        let clean = |_, items: Vec<_>| ready(delete(&self.store, &items, AMID));
        worker.run(pending(), clean).await?;
        Ok(())
    }
}
