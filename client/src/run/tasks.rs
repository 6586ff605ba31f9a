//! Owns the tasks of a worker, one for each piece of work, and the counts of their results.
//!
//! Invariant: dropping [`Tasks`] aborts every task, so no task runs on after the worker is dropped.

use std::future::Future;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::stage::Stage;

macro_rules! counted {
    ($name:ident: $($count:ident),*) => {
        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$count += other.$count;)*
            }
        }
    };
}
pub(super) use counted;

#[derive(Default)]
pub(super) struct Tasks<C>(Mutex<Begun<C>>);

#[derive(Default)]
struct Begun<C> {
    at_work: JoinSet<C>,
    counts: C,
}

impl<C: AddAssign + Copy + Send + 'static> Tasks<C> {
    /// Spawns a task, and adds the counts of the tasks that have ended.
    pub(super) fn begin(&self, task: impl Future<Output = C> + Send + 'static) {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.at_work.spawn(task);
        while let Some(ended) = begun.at_work.try_join_next() {
            begun.count(ended);
        }
    }

    /// Tells the tasks to begin nothing more. They may go on for the grace time; then they are told to release their
    /// work, and this call waits for their end. Returns all counts.
    pub(super) async fn end(&mut self, stage: &watch::Sender<Stage>, grace: Duration) -> C {
        stage.send_replace(Stage::Finish);
        let begun = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if timeout(grace, begun.all()).await.is_err() {
            stage.send_replace(Stage::GiveBack);
            begun.all().await;
        }
        begun.counts
    }
}

impl<C: AddAssign + 'static> Begun<C> {
    async fn all(&mut self) {
        while let Some(ended) = self.at_work.join_next().await {
            self.count(ended);
        }
    }

    fn count(&mut self, ended: Result<C, JoinError>) {
        match ended {
            Ok(counts) => self.counts += counts,
            Err(error) => {
                tracing::error!(%error, "a task of a worker was lost; its work is retried after the lease has expired")
            }
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/tasks.rs"]
mod tests;
