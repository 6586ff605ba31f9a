//! Runs a keyed request: the claim, the work, and the write that ends the attempt.
//!
//! Invariant: whatever the work and the network do, the next claim can go on from the key's state. The runner may be
//! dropped at any await: then the lease expires by itself and the next attempt resumes from the last recovery point.

mod action;
mod attempt;
mod completer;
mod heartbeat;
mod job;
mod outbox;
mod outcome;
mod pace;
mod panics;
mod polls;
mod stage;
mod tasks;
mod teardown_worker;
mod test_mode;
mod waker;
mod watch;

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Autocommit, Backoff, Claim, ClaimOptions, Error, Json, Key, Kind, Lease, Response};
pub use action::{Acted, ActionRunner};
use attempt::{Attempt, End};
pub use completer::{Complete, Completed, Completer, Completion};
pub use job::{Job, JobFailure, JobOutcome, JobRunner};
pub use outbox::{Deliver, Delivered, OutboxWorker, Undelivered};
pub use outcome::{Done, Failure, Outcome};
use pace::{Pace, settings};
use polls::Polls;
pub use teardown_worker::{TeardownWorker, TornDown};
pub use test_mode::{Begin, OpenTransaction, TestMode};
pub use waker::Waker;

/// One [`Runner::run`] runs the work at most this many times, even if the database fails each time.
const ROUNDS: u32 = 3;

/// A longer reason is cut to this many characters.
const LONGEST_REASON: usize = 10_000;

const UNTRANSLATABLE: &str = "22P05";

const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A longer wait is cut to one day: a `Retry-After` may have the wrong unit, or a date from a clock that is wrong.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The runner of one request under its key; made by [`Key::run`].
#[derive(Debug)]
#[must_use = "a runner does nothing until `run` is called"]
pub struct Runner<'e, E> {
    exec: &'e E,
    key: Key,
    options: ClaimOptions,
    wait: Duration,
    pace: Pace,
}

/// A [`Runner`] that runs the work without a key when the database is unreachable.
#[derive(Debug)]
#[must_use = "a runner does nothing until `run` is called"]
pub struct OpenRunner<'e, E, H> {
    runner: Runner<'e, E>,
    hook: H,
}

impl Key {
    /// Prepares to run this request. The executor is one on which each call commits by itself: a pool or a connection.
    pub fn run<E: Autocommit>(self, exec: &E) -> Runner<'_, E> {
        Runner {
            exec,
            key: self,
            options: ClaimOptions::new(),
            wait: Duration::ZERO,
            pace: Pace::new(1, Duration::ZERO),
        }
    }
}

impl<'e, E: Autocommit> Runner<'e, E> {
    settings!(lease backoff);

    /// The request: the same key with a different request is [`Outcome::Mismatched`].
    pub fn request(mut self, request: Json) -> Self {
        self.options = self.options.request(request);
        self
    }

    /// How long the answer is kept, instead of the scope's `ttl`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options = self.options.ttl(ttl);
        self
    }

    /// How long to wait while another attempt has the request; by default the runner returns [`Outcome::InProgress`] at
    /// once. A duplicate that waits gets the first request's answer ([`Outcome::Replayed`]). If the first attempt fails
    /// in that time and the key can be resumed, the request runs here.
    ///
    /// The runner asks again within 10 ms, then less and less often, in the end every 250 to 500 ms. A poll during the
    /// other attempt writes nothing; between polls the runner holds no connection of a pool. If the database becomes
    /// unreachable during the wait, the run returns an error, even with [`fail_open`](Runner::fail_open). To take the
    /// wait from a client's header, see [`http::wait_of_header`](crate::http::wait_of_header).
    pub fn wait(mut self, up_to: Duration) -> Self {
        self.wait = up_to;
        self
    }

    /// Chooses to run the work **without a key** when the database cannot be reached to claim the key.
    ///
    /// Without this option the request then fails with an error (fails closed). With it, requests may run twice: two
    /// copies of one request both run, a retry runs again, and no answer is stored to replay. The server may make the
    /// claim although the runner gets no answer. Then retries get [`Outcome::InProgress`] until the claim's lease
    /// expires; the next retry runs the request again. Choose this only where a duplicate is cheaper than a refusal.
    ///
    /// `hook` is called with the error each time, to count and to alert; a `WARN` line is logged each time. The work
    /// then gets `None` instead of a lease, so it must handle that case. If the server refuses the claim (no right, a
    /// bad argument, a read-only server), the work does not run and the run returns the error. Unreachable means no
    /// connection or no answer within the [`Backoff`](crate::Backoff); an exhausted pool looks the same.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Outcome, Response, Scope};
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// static UNKEYED: AtomicU64 = AtomicU64::new(0);
    /// let outcome = Scope::new("mail.send")
    ///     .key(&idempotency_key)
    ///     .run(&pool)
    ///     .fail_open(|_error| { UNKEYED.fetch_add(1, Ordering::Relaxed); })
    ///     .run(|lease| async move {
    ///         // `lease` is None when the database is unreachable.
    ///         let keyed = lease.is_some();
    ///         Ok(Response::new(200).with_body(&keyed)?.into())
    ///     })
    ///     .await?;
    /// assert!(matches!(outcome, Outcome::Ran(_)));
    /// assert_eq!(UNKEYED.load(Ordering::Relaxed), 0);
    /// # Ok(()) }) }
    /// ```
    pub fn fail_open<H: Fn(&Error)>(self, hook: H) -> OpenRunner<'e, E, H> {
        OpenRunner { runner: self, hook }
    }

    /// Claims the key, runs the work if the key is new or resumed, and ends the key by the work's result.
    ///
    /// - The claim has a fresh holder and is retried with this holder, as often as the [backoff](Self::backoff) allows.
    /// - When the [lease](Self::lease) is lost, the work's future is dropped ([`Outcome::LeaseLost`]).
    /// - The work gets the lease, goes on from [`Lease::recovery_point`], and calls [`Lease::advance`] and
    ///   [`Lease::step`]. It may store the answer in the transaction of its last writes and return [`Done::Stored`];
    ///   otherwise the runner stores the answer.
    /// - After [`Failure::Retry`] the key is released, after [`Failure::Unknown`] it is parked, after
    ///   [`Failure::Abort`] it is finished with the failure's answer.
    /// - After a lost race or connection during the work, the key is released and the work runs again in a new attempt,
    ///   up to three times in all.
    /// - When the work panics, the key is released, and the panic is resumed.
    ///
    /// The work may be stopped if its transaction locks the key's row for longer than two thirds of the lease, because
    /// the heartbeat waits for that lock. Work that blocks its thread for so long may be stopped, too, because the
    /// heartbeat runs beside it in the same task.
    ///
    /// Dropping this future stops the work where it is. The key is not released then: the next claim resumes it after
    /// the lease has expired. If your server drops futures of disconnected clients, run each request in its own task.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Json, Outcome, Response, Scope};
    ///
    /// let payments = Scope::new("payments.create");
    /// let request = Json::of(&serde_json::json!({"amount": 100}))?;
    /// for attempt in 1..=2 {
    ///     let outcome = payments
    ///         .key(&idempotency_key)
    ///         .run(&pool)
    ///         .request(request.clone())
    ///         .run(|_lease| async { Ok(Response::new(201).with_body("paid")?.into()) })
    ///         .await?;
    ///     match outcome {
    ///         Outcome::Ran(answer) => assert_eq!((attempt, answer.code), (1, 201)),
    ///         Outcome::Replayed(answer) => assert_eq!((attempt, answer.code), (2, 201)),
    ///         other => panic!("{other:?}"),
    ///     }
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Any error of a database that refuses a call or cannot be reached, and any other error of the work
    /// ([`Failure::Error`]). A retry of the request goes on from the stored state.
    pub async fn run<W, F>(self, work: W) -> Result<Outcome, Error>
    where
        W: FnMut(Lease) -> F,
        F: Future<Output = Result<Done, Failure>>,
    {
        self.run_until(pending(), work).await
    }

    /// [`Runner::run`], but when `stop` completes, the work is stopped; the key is released and can be claimed at
    /// once ([`Outcome::Released`]). Any future is a stop signal, such as a `CancellationToken`'s `cancelled_owned()`.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub async fn run_until<W, F>(
        self,
        stop: impl Future<Output = ()>,
        work: W,
    ) -> Result<Outcome, Error>
    where
        W: FnMut(Lease) -> F,
        F: Future<Output = Result<Done, Failure>>,
    {
        let first = self.claim().await?;
        self.go_on(first, stop, work).await
    }

    /// Claims with a fresh holder and retries with the same holder: a lost answer costs nothing, since this holder
    /// gets its own lease back. Also returns when the last try was sent.
    async fn claim(&self) -> Result<(Instant, Claim), Error> {
        let mut options = self.options.clone().fresh_holder();
        options.lease = self.pace.lease;
        self.pace
            .claim(|| self.key.claim(self.exec, &options))
            .await
    }

    async fn go_on<W, F>(
        &self,
        first: (Instant, Claim),
        stop: impl Future<Output = ()>,
        mut work: W,
    ) -> Result<Outcome, Error>
    where
        W: FnMut(Lease) -> F,
        F: Future<Output = Result<Done, Failure>>,
    {
        let mut stop = pin!(stop);
        let (mut since, mut claim) = first;
        let (mut polls, mut round) = (Polls::up_to(self.wait), 0);
        loop {
            let lease = match claim.into_lease() {
                Ok(lease) => lease,
                Err(Outcome::InProgress { .. }) if polls.next().await => {
                    (since, claim) = self.claim().await?;
                    continue;
                }
                Err(outcome) => return Ok(outcome),
            };
            let attempt = Attempt {
                exec: self.exec,
                backoff: &self.pace.backoff,
                lease: &lease,
                deferred: None,
            };
            let work = async { work(lease.clone()).await };
            let error = match attempt.run(since, work, stop.as_mut()).await? {
                End::Outcome(outcome) => return Ok(outcome),
                End::Finished => return self.read_stored().await,
                End::Failed(error) => return Err(error),
                End::Again(error) => error,
            };
            round += 1;
            if round == ROUNDS {
                return Ok(Outcome::Released {
                    error: error.to_string(),
                    retry_after: None,
                });
            }
            tracing::info!(key = ?self.key, round, %error, "the database failed during the work; retrying");
            tokio::time::sleep(self.pace.backoff.wait(round)).await;
            (since, claim) = self.claim().await?;
        }
    }

    async fn read_stored(&self) -> Result<Outcome, Error> {
        match self.claim().await?.1 {
            Claim::Replayed(answer) => Ok(Outcome::Ran(answer)),
            other => Err(Error::Answer(format!(
                "the key is finished, but a claim is {other:?}"
            ))),
        }
    }
}

impl<E: Autocommit, H: Fn(&Error)> OpenRunner<'_, E, H> {
    /// [`Runner::run`], but without a key when the database is unreachable: see [`Runner::fail_open`].
    ///
    /// # Errors
    /// As [`Runner::run`], except for a database that is unreachable when the key is claimed.
    pub async fn run<W, F>(self, mut work: W) -> Result<Outcome, Error>
    where
        W: FnMut(Option<Lease>) -> F,
        F: Future<Output = Result<Done, Failure>>,
    {
        match self.runner.claim().await {
            Ok(first) => {
                let keyed = |lease| work(Some(lease));
                self.runner.go_on(first, pending(), keyed).await
            }
            Err(error) if error.kind() == Kind::Unavailable => {
                tracing::warn!(key = ?self.runner.key, %error, "failing open: the work runs without a key");
                (self.hook)(&error);
                Ok(Outcome::Unkeyed(work(None).await.map(unstored)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Ends a lease with a reason. If the database's encoding lacks a character, a second call sends the reason in ASCII.
async fn saying<T, F: Future<Output = Result<T, Error>>>(
    backoff: &Backoff,
    lease: Duration,
    reason: Option<&str>,
    write: impl Fn(Option<String>) -> F,
) -> Result<T, Error> {
    let reason = reason.map(storable);
    let written = async || match write(reason.clone()).await {
        Err(error) if error.code() == Some(UNTRANSLATABLE) => {
            write(reason.clone().map(in_ascii)).await
        }
        written => written,
    };
    backoff.insist(lease, written).await
}

fn in_ascii(text: String) -> String {
    text.replace(|character: char| !character.is_ascii(), "?")
}

/// A reason that the server accepts if the database's encoding has its characters.
fn storable(reason: &str) -> String {
    cut(reason, LONGEST_REASON).unwrap_or_else(|| "no reason given".to_owned())
}

/// The text without NULs, at most `longest` characters; `None` if nothing is left.
fn cut(text: &str, longest: usize) -> Option<String> {
    let kept = text.chars().filter(|c| *c != '\0').take(longest);
    Some(kept.collect()).filter(|kept: &String| !kept.is_empty())
}

/// The wait, not shorter than the server accepts, and cut to `LONGEST_WAIT`.
fn storable_wait(wait: Duration) -> Duration {
    wait.clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

fn unstored(done: Done) -> Response {
    match done {
        Done::Answer(answer) | Done::Stored(answer) => answer,
    }
}
