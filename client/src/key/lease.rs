//! Owns the lease: the right to work on a key, and every write that needs it.
//!
//! Invariant: each write presents the lease's token. Once another holder has the key, the write fails with `ON001`. The
//! error rolls back the transaction, so the caller's own writes in it are fenced, too. A call that records a phase, a
//! step's end or an answer may be repeated. If the first call has committed, the repeat fails with `ON006`.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::{Key, Response, column};
use crate::executor::{Args, only, value};
use crate::interval::Interval;
use crate::{Error, Executor, Json, Row};

const ADVANCE: &str = "SELECT once.key_advance(scope => $1, key => $2, token => $3, \
                       recovery_point => $4, state => $5, lease => $6)";
const COMPLETE: &str = "SELECT once.key_complete(scope => $1, key => $2, token => $3, \
                        response_code => $4, response_body => $5, response_headers => $6)";
const ABORT: &str = "SELECT once.key_abort(scope => $1, key => $2, token => $3, \
                     response_code => $4, response_body => $5, response_headers => $6)";
const RELEASE: &str = "SELECT once.key_release(scope => $1, key => $2, token => $3, \
                       error => $4, retry_after => $5)";
const PARK: &str = "SELECT once.key_park(scope => $1, key => $2, token => $3, reason => $4)";
const EXTEND: &str = "SELECT once.key_extend(scope => $1, key => $2, token => $3, \
                      lease => $4)";

/// The right to work on a key until a time, proved by a token.
///
/// A plain value: it may be cloned into the work's futures. Dropping it releases nothing: the lease expires by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    key: Key,
    token: i64,
    attempt: i32,
    recovery_point: String,
    state: Option<Json>,
    lease_left: Duration,
    /// The length that the claim asked for. A renewal without a length asks for this length again, since the server
    /// does not keep it.
    length: Option<Duration>,
}

impl Lease {
    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The token: it grows with each holder and fits a JavaScript number.
    #[must_use]
    pub const fn token(&self) -> i64 {
        self.token
    }

    /// Which attempt at the request this is, from 1.
    #[must_use]
    pub const fn attempt(&self) -> i32 {
        self.attempt
    }

    /// The recovery point when this lease was given: the last committed phase, or `started` before the first.
    #[must_use]
    pub fn recovery_point(&self) -> &str {
        &self.recovery_point
    }

    /// The state that goes with the recovery point.
    #[must_use]
    pub const fn state(&self) -> Option<&Json> {
        self.state.as_ref()
    }

    /// The time that was left of the lease when the claim was answered.
    #[must_use]
    pub const fn lease_left(&self) -> Duration {
        self.lease_left
    }

    /// Ends a phase: the next attempt goes on from `recovery_point` with `state` (`None` keeps the present state). Call
    /// this in the transaction of the phase's own writes. Renews the lease as [`Lease::extend`] does, and returns the
    /// time left.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// # use pg_once::{Claim, ClaimOptions};
    /// use pg_once::Json;
    ///
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// // ... the phase's own rows, in this transaction ...
    /// let state = Json::of(&serde_json::json!({"charge": "ch_1"}))?;
    /// lease.advance(&transaction, "charged", Some(&state), None).await?;
    /// transaction.commit().await?;
    ///
    /// lease.release(&pool, Some("the worker is going down"), None).await?;
    /// let Claim::Resumed(next) = key.claim(&pool, &ClaimOptions::new()).await? else { panic!() };
    /// assert_eq!(next.recovery_point(), "charged");
    /// assert_eq!(next.state(), Some(&state));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if this token has finished the key, or has advanced to this point with
    /// this state in an earlier transaction; `22023` if the point is undeclared, reserved or before the present one.
    pub async fn advance<E: Executor>(
        &self,
        exec: &E,
        recovery_point: &str,
        state: Option<&Json>,
        lease: Option<Duration>,
    ) -> Result<Duration, Error> {
        let lease = lease.or(self.length).map(Interval);
        let own = [
            (&recovery_point as _, Type::TEXT),
            (&state as _, Type::JSON),
            (&lease as _, Type::INTERVAL),
        ];
        Ok(value::<Interval>(&self.call(exec, ADVANCE, &own).await?)?.0)
    }

    /// Stores the final answer, which later claims replay until its ttl ends. Call this in the transaction of the last
    /// writes, so that answer and writes commit together.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// use pg_once::{Kind, Response};
    ///
    /// let answer = Response::new(201).with_body(&serde_json::json!({"id": 7}))?;
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// // ... the last rows, in this transaction ...
    /// lease.complete(&transaction, &answer).await?;
    /// transaction.commit().await?;
    ///
    /// // If the answer of the commit was lost, run the transaction again: ON006 shows that it was committed.
    /// let again = lease.complete(&pool, &answer).await.unwrap_err();
    /// assert_eq!(again.kind(), Kind::AlreadyDone);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if this token has finished the key already.
    pub async fn complete<E: Executor>(&self, exec: &E, answer: &Response) -> Result<(), Error> {
        self.finish(exec, COMPLETE, answer).await
    }

    /// Stores a failure as the final answer, and emits the steps' `on_abort` events. Later claims replay the answer.
    ///
    /// # Errors
    /// As [`Lease::complete`].
    pub async fn abort<E: Executor>(&self, exec: &E, answer: &Response) -> Result<(), Error> {
        self.finish(exec, ABORT, answer).await
    }

    /// Releases the key after a failure that is worth a retry. A claim resumes the key once `retry_after` has passed
    /// (`None`: at once). If `max_attempts` are used up, the key is parked instead.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// # use pg_once::{Claim, ClaimOptions};
    /// use std::time::Duration;
    ///
    /// lease.release(&pool, Some("bank says 503"), Some(Duration::from_secs(30))).await?;
    /// let early = key.claim(&pool, &ClaimOptions::new()).await?;
    /// assert!(matches!(early, Claim::InProgress { retry_after } if retry_after.as_secs() < 31));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if this token has finished the key; `22023` for a bad argument.
    pub async fn release<E: Executor>(
        &self,
        exec: &E,
        error: Option<&str>,
        retry_after: Option<Duration>,
    ) -> Result<(), Error> {
        let retry_after = retry_after.map(Interval);
        let own = [
            (&error as _, Type::TEXT),
            (&retry_after as _, Type::INTERVAL),
        ];
        self.call(exec, RELEASE, &own).await.map(drop)
    }

    /// Parks the key. Use this if the outcome of a foreign call is unknown and another attempt could repeat the call.
    /// Every claim answers [`Parked`](crate::Claim::Parked) until [`Key::resolve`](crate::Key::resolve).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// # use pg_once::{Claim, ClaimOptions};
    /// lease.park(&pool, "the bank did not answer and does not dedupe").await?;
    /// assert_eq!(key.claim(&pool, &ClaimOptions::new()).await?, Claim::Parked { attempt: 1 });
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Lease::release`].
    pub async fn park<E: Executor>(&self, exec: &E, reason: &str) -> Result<(), Error> {
        let own = [(&reason as _, Type::TEXT)];
        self.call(exec, PARK, &own).await.map(drop)
    }

    /// Renews the lease. The argument `lease` is the length from now. If it is `None`, the claim's length is used, or
    /// the scope's if the claim named none. Returns the time left, which ends at most `max_lease_life` after the claim.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// use std::time::Duration;
    ///
    /// let left = lease.extend(&pool, Some(Duration::from_secs(300))).await?;
    /// assert!(left > Duration::from_secs(290));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Lease::release`].
    pub async fn extend<E: Executor>(
        &self,
        exec: &E,
        lease: Option<Duration>,
    ) -> Result<Duration, Error> {
        let lease = lease.or(self.length).map(Interval);
        let own = [(&lease as _, Type::INTERVAL)];
        Ok(value::<Interval>(&self.call(exec, EXTEND, &own).await?)?.0)
    }

    async fn finish<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        answer: &Response,
    ) -> Result<(), Error> {
        let own = [
            (&answer.code as _, Type::INT4),
            (&answer.body as _, Type::JSON),
            (&answer.headers as _, Type::JSON),
        ];
        self.call(exec, sql, &own).await.map(drop)
    }

    /// Makes one call with the token. Its first arguments are scope, key and token, the others are `own`.
    pub(super) async fn call<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Row, Error> {
        let token: &Args<'_> = &[(&self.token, Type::INT8)];
        only(self.key.rows(exec, sql, &[token, own].concat()).await?)
    }

    pub(super) fn of_row(key: &Key, row: &Row, length: Option<Duration>) -> Result<Self, Error> {
        let Interval(lease_left) = column(row, "lease_left")?;
        Ok(Self {
            key: key.clone(),
            token: column(row, "token")?,
            attempt: column(row, "attempt")?,
            recovery_point: column(row, "recovery_point")?,
            state: column(row, "state")?,
            lease_left,
            length,
        })
    }
}
