//! Owns the acks and nacks of a batch's events.
//!
//! Invariant: the calls for a batch are made one at a time, and each is retried until it is answered; ON006 counts as
//! success. An event that its handler has acked counts as delivered, whatever the handler returns. The writes of the
//! callback `dead` are committed once, together with the event's death.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;

use super::super::panics::{Panic, caught};
use super::super::{UNTRANSLATABLE, cut, in_ascii, storable, storable_wait};
use super::chain::Verdict;
use super::{Deliver, Delivered, Shared, Undelivered};
use crate::executor::only;
use crate::outbox::KIND;
use crate::{Batch, Begin, Error, Event, Kind, NackOptions, Nacked};

/// At most this many verdicts are read at a time.
const MOST: usize = 1000;

/// The server's limit for the length of a kind, in characters.
const LONGEST_KIND: usize = 100;

/// Kinds with a meaning of their own.
const RESERVED: [&str; 3] = ["released", "never", "expired"];

const CALLBACK_FAILED: Duration = Duration::from_secs(30);

type Ids<'i> = Option<&'i [i64]>;

/// Sends a batch's verdicts to the server, and counts the events whose verdict the server has accepted.
pub(super) struct Settle<'a, P, H> {
    shared: &'a Shared<P, H>,
    batch: &'a Batch,
    held: usize,
    counts: Delivered,
}

/// Where the transaction of a nack stopped.
enum Stopped {
    /// Before its commit: nothing is written.
    Call(Error),
    /// In the handler's callback: nothing is written.
    Callback(Error),
    /// In a panic of the callback: nothing is written.
    Panicked(Panic),
    /// In its commit: whether anything is written is unknown.
    Commit(Error),
}

impl<'a, P: Begin, H: Deliver> Settle<'a, P, H> {
    pub(super) fn new(shared: &'a Shared<P, H>, batch: &'a Batch, held: usize) -> Self {
        Self {
            shared,
            batch,
            held,
            counts: Delivered::default(),
        }
    }

    pub(super) const fn counts(&self) -> Delivered {
        self.counts
    }

    /// Sends verdicts as they arrive, several in one call where possible; ends with the last verdict, or when the
    /// server refuses a call.
    pub(super) async fn all(&mut self, mut verdicts: mpsc::UnboundedReceiver<Verdict>) {
        let mut ready = vec![];
        while verdicts.recv_many(&mut ready, MOST).await > 0 {
            if let Err(error) = self.settle(ready.drain(..)).await {
                let (subscriber, token) = (self.batch.subscriber(), self.batch.token());
                tracing::warn!(?subscriber, token, %error, "the server refused an ack or nack of a batch");
                return;
            }
        }
    }

    async fn settle(&mut self, verdicts: impl Iterator<Item = Verdict>) -> Result<(), Error> {
        let (mut done, mut failed, mut released) = (vec![], vec![], vec![]);
        for verdict in verdicts {
            match verdict {
                Verdict::Done(event_id) => done.push(event_id),
                Verdict::Acked => self.counts.delivered += 1,
                Verdict::Failed {
                    event,
                    failure,
                    behind,
                } => failed.push((event, failure, behind)),
                Verdict::Released(event_ids) => released.extend(event_ids),
            }
        }
        // Acks first: a done event is acked before a later event of its order key is nacked.
        self.ack(&done).await?;
        for (event, failure, behind) in failed {
            match self.fail(&event, &failure).await? {
                true => self.counts.released += count(behind.len()),
                false => released.extend(behind),
            }
        }
        self.release(&released, &NackOptions::released()).await
    }

    async fn ack(&mut self, done: &[i64]) -> Result<(), Error> {
        if done.is_empty() {
            return Ok(());
        }
        // An ack of the whole batch needs no list of events.
        let event_ids = (done.len() < self.held).then_some(done);
        let batch = self.batch;
        let ack = |ids| batch.ack(&self.shared.exec, ids);
        self.end(event_ids, Kind::AlreadyDone, ack).await?;
        self.counts.delivered += count(done.len());
        Ok(())
    }

    async fn release(&mut self, ids: &[i64], options: &NackOptions) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let batch = self.batch;
        let nack = |ids| batch.nack(&self.shared.exec, ids, options);
        self.end(Some(ids), Kind::LeaseLost, nack).await?;
        self.counts.released += count(ids.len());
        Ok(())
    }

    /// Ends events in one call. ON006 means that one of them was ended before; then each event gets a call of its own.
    /// A nack of an event also removes the later events of its order key from the batch. The call for a removed event
    /// gets `LeaseLost`. So `release` passes this kind as `left`, and `end` takes such an answer for success.
    async fn end<'i, T, F, Fut>(&self, ids: Ids<'i>, left: Kind, call: F) -> Result<(), Error>
    where
        F: Fn(Ids<'i>) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let backoff = &self.shared.backoff;
        let ended = backoff.until_answered(Duration::MAX, || call(ids)).await;
        match (done_or(ended, Kind::AlreadyDone), ids) {
            (Ok(false), Some(ids)) if ids.len() > 1 => {
                for id in ids.chunks(1).map(Some) {
                    let ended = backoff.until_answered(Duration::MAX, || call(id)).await;
                    done_or(ended, left)?;
                }
                Ok(())
            }
            (ended, _) => ended.map(drop),
        }
    }

    /// Nacks a failed event; if the event dies, the handler's callback runs in the same transaction. `false`: the
    /// event was not nacked, because its handler had acked it.
    async fn fail(&mut self, event: &Event, failure: &Undelivered) -> Result<bool, Error> {
        let (subscriber, event_id) = (self.batch.subscriber(), event.event_id);
        let mut options = failure.nack(|text| text);
        let (mut failures, mut told) = (self.shared.backoff.failures(), None);
        let nacked = loop {
            let stopped = match self.fail_once(event, failure, &options, &mut told).await {
                Ok(nacked) => break nacked,
                Err(stopped) => stopped,
            };
            let error = match (stopped, told) {
                (Stopped::Panicked(panic), _) => {
                    return self.defer(event, &format!("it panicked: {panic}")).await;
                }
                (Stopped::Call(error), told) if error.kind() == Kind::AlreadyDone => match told {
                    // An earlier commit succeeded, and its answer was lost.
                    Some(nacked) => break nacked,
                    None => {
                        self.counts.delivered += 1;
                        tracing::info!(?subscriber, event_id, %failure, "the handler failed after its ack");
                        return Ok(false);
                    }
                },
                (Stopped::Call(error), _) if error.code() == Some(UNTRANSLATABLE) => {
                    options = failure.nack(in_ascii);
                    error
                }
                (Stopped::Call(error), _) if !error.may_pass() => return Err(error),
                (Stopped::Callback(error), _)
                    if !error.is_retryable() || failures.count >= self.shared.backoff.tries =>
                {
                    return self.defer(event, &error.to_string()).await;
                }
                (Stopped::Call(error) | Stopped::Callback(error) | Stopped::Commit(error), _) => {
                    error
                }
            };
            failures.pause(&error).await;
        };
        if nacked.dead {
            self.counts.dead += 1;
            tracing::warn!(?subscriber, event_id, attempt = nacked.attempt, %failure, "an event is dead");
        } else if let Undelivered::Later { .. } = failure {
            self.counts.released += 1;
            tracing::debug!(?subscriber, event_id, %failure, "deferred");
        } else {
            self.counts.failed += 1;
            tracing::info!(?subscriber, event_id, attempt = nacked.attempt, %failure, "not delivered");
        }
        Ok(true)
    }

    /// Makes one try of `fail`; stores the answer of the nack in `told` before the commit is sent.
    async fn fail_once(
        &self,
        event: &Event,
        failure: &Undelivered,
        options: &NackOptions,
        told: &mut Option<Nacked>,
    ) -> Result<Nacked, Stopped> {
        let (pool, backoff) = (&self.shared.exec, &self.shared.backoff);
        let call = |error: Error| Stopped::Call(error);
        let transaction = backoff.in_time(pool.begin()).await.map_err(call)?;
        let event_ids = [event.event_id];
        let nack = self.batch.nack(&transaction, Some(&event_ids), options);
        let nacked = backoff.in_time(nack).await.and_then(only).map_err(call)?;
        if nacked.dead {
            let dead = self.shared.handler.dead(&transaction, event, failure);
            let undone = caught(dead).await.map_err(Stopped::Panicked)?;
            undone.map_err(Stopped::Callback)?;
        }
        *told = Some(nacked);
        let commit = backoff.in_time(transaction.end()).await;
        // If the server refuses the commit (a deferred constraint), the callback's writes are the cause.
        commit.map_err(|error| match error.kind() {
            Kind::Unavailable => Stopped::Commit(error),
            _ => Stopped::Callback(error),
        })?;
        Ok(nacked)
    }

    /// Releases an event whose callback failed, so that the event does not die yet.
    async fn defer(&mut self, event: &Event, error: &str) -> Result<bool, Error> {
        let (subscriber, event_id) = (self.batch.subscriber(), event.event_id);
        tracing::error!(
            ?subscriber,
            event_id,
            error,
            "the callback for the event's death failed; the event is released"
        );
        let reason = storable(&format!("its callback failed: {error}"));
        let released = NackOptions::released().retry_after(CALLBACK_FAILED);
        let saying = |text| released.clone().error(text);
        match self.release(&[event_id], &saying(reason.clone())).await {
            Err(error) if error.code() == Some(UNTRANSLATABLE) => {
                let options = saying(in_ascii(reason));
                self.release(&[event_id], &options).await?;
            }
            released => released?,
        }
        Ok(true)
    }
}

impl Undelivered {
    fn nack(&self, sent: fn(String) -> String) -> NackOptions {
        let said = |text| sent(storable(text));
        match self {
            Self::Retry { kind, error, after } => {
                let kind = sent(kind_of(kind));
                let options = NackOptions::new().kind(kind).error(said(error));
                match after {
                    Some(after) => options.retry_after(storable_wait(*after)),
                    None => options,
                }
            }
            Self::Later { reason, after } => NackOptions::released()
                .error(said(reason))
                .retry_after(storable_wait(*after)),
            Self::Never { error } => NackOptions::never().error(said(error)),
        }
    }
}

/// The kind for the nack of a failed attempt: `kind`, cut to `LONGEST_KIND`, or `error` if `kind` is empty or reserved.
/// `released` counts no attempt, `never` makes the event dead at once, and the server refuses `expired`.
fn kind_of(kind: &str) -> String {
    let kept = cut(kind, LONGEST_KIND).filter(|kept| !RESERVED.contains(&kept.as_str()));
    kept.unwrap_or_else(|| KIND.to_owned())
}

/// Whether this call ended the events; `false`: an earlier call with this token has ended one of them.
fn done_or<T>(ended: Result<T, Error>, left: Kind) -> Result<bool, Error> {
    match ended {
        Ok(_) => Ok(true),
        Err(error) if [Kind::AlreadyDone, left].contains(&error.kind()) => Ok(false),
        Err(error) => Err(error),
    }
}

fn count(events: usize) -> u64 {
    u64::try_from(events).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "../../../tests/unit/settle.rs"]
mod tests;
