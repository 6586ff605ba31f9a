//! Owns the panics of the caller's code.
//!
//! Invariant: a panic is a failure of the event, request or job that the code was called for, reported with its
//! message; nothing else stops. The future of the code is dropped, as when its lease is lost.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use tokio::task::JoinSet;

pub(super) struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// Resumes the panic, after the key or row was released.
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
        // The future is not polled again; its author keeps shared state consistent.
        match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(Panic(payload))),
        }
    })
    .await
}

/// Runs the code in a task of its own, where it cannot stop other work even if it blocks. Dropping the set
/// stops the task.
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

/// Calls a callback. Its panic is only logged.
pub(super) fn tell(callback: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
        tracing::error!(panic = %Panic(payload), "a callback panicked");
    }
}

#[cfg(test)]
#[path = "../../tests/unit/panics.rs"]
mod tests;
