//! Catches the panics of the caller's code.
//!
//! Invariant: a panic is a failure of the event, request or job that the code was called for, reported with its
//! message; the worker's other work goes on. The future that panicked is dropped.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use tokio::task::JoinSet;

pub(super) struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// Resumes the panic. The caller has released the key or row before.
    pub(super) fn resume(self) -> ! {
        resume_unwind(self.0)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.downcast_ref::<&str>().copied();
        let text = text.or_else(|| self.0.downcast_ref::<String>().map(String::as_str));
        f.write_str(text.unwrap_or("without a message"))
    }
}

pub(super) async fn caught<T>(code: impl Future<Output = T>) -> Result<T, Panic> {
    let mut code = pin!(code);
    poll_fn(|context| {
        // Unwind safety: the future is not polled again; its author must keep shared state consistent.
        match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(Panic(payload))),
        }
    })
    .await
}

/// Runs the code in a task of its own, so that code that blocks its thread does not block the heartbeat (on a runtime
/// with several threads). Dropping this future aborts the task.
pub(super) async fn apart<T: Send + 'static>(
    code: impl Future<Output = T> + Send + 'static,
) -> Result<T, Panic> {
    let mut task = JoinSet::new();
    task.spawn(code);
    let gone = || Panic(Box::new("the runtime is shutting down"));
    match task.join_next().await {
        Some(Ok(ended)) => Ok(ended),
        Some(Err(error)) => Err(error.try_into_panic().map_or_else(|_| gone(), Panic)),
        None => Err(gone()),
    }
}

/// Calls a callback, and only logs its panic.
pub(super) fn tell(callback: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
        tracing::error!(panic = %Panic(payload), "a callback panicked");
    }
}

#[cfg(test)]
#[path = "../../tests/unit/panics.rs"]
mod tests;
