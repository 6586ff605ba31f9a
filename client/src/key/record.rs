//! Owns the record of a key, as operators read it, and the verdict on a parked key.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::Type;

use super::{Key, Response, column};
use crate::interval::Interval;
use crate::{Error, Executor, Json, Row};

const GET: &str = "SELECT * FROM once.key_get(scope => $1, key => $2)";
const RESOLVE: &str = "SELECT once.key_resolve(scope => $1, key => $2, attempt => $3, \
                       verdict => $4, response_code => $5, response_body => $6, \
                       response_headers => $7)";

/// The status of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyStatus {
    /// An attempt has the lease, or its lease expired and the next claim resumes the key.
    Running,
    /// Released; a claim resumes the key as soon as the retry is due.
    Released,
    /// Waits for a verdict.
    Parked,
    /// Has its answer.
    Finished,
    /// Finished, but the answer is past its ttl.
    Gone,
}

/// The state of a key: its lease, steps and answer, without its token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyRecord {
    /// Its status.
    pub status: KeyStatus,
    /// How many attempts there were.
    pub attempt: i32,
    /// The holder of the last attempt, if it named one.
    pub holder: Option<String>,
    /// The last phase that committed.
    pub recovery_point: Option<String>,
    /// The state that goes with the recovery point.
    pub state: Option<Json>,
    /// The steps, their results and versions.
    pub steps: Option<Json>,
    /// The answer, if the key is finished and the answer is still kept.
    pub response: Option<Response>,
    /// The request, if the scope keeps it.
    pub request: Option<Json>,
    /// The error or reason of the last attempt that released or parked the key.
    pub last_error: Option<String>,
    /// When the key was first claimed.
    pub created_at: Option<SystemTime>,
    /// The time left of the lease: zero if the lease has expired, `None` if the attempt has ended it.
    pub lease_left: Option<Duration>,
    /// When the key was finished.
    pub finished_at: Option<SystemTime>,
    /// When its answer expires, or expired.
    pub gone_at: Option<SystemTime>,
    /// What happens next, and by whom: one sentence.
    pub next: String,
}

/// The verdict on a parked key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run it again; the count towards `max_attempts` starts anew.
    Retry,
    /// The work was done: this is its answer.
    Complete(Response),
    /// The work was not done and will not be: this is its answer.
    Abort(Response),
}

impl Key {
    /// Reads the key; `None` if there is none.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{ClaimOptions, KeyStatus, Scope};
    ///
    /// let key = Scope::new("payments.create").key(&idempotency_key);
    /// assert!(key.get(&pool).await?.is_none());
    /// key.claim(&pool, &ClaimOptions::new()).await?;
    /// if let Some(record) = key.get(&pool).await? {
    ///     assert_eq!(record.status, KeyStatus::Running);
    ///     println!("{}", record.next); // Its holder completes, releases or parks it within ...
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42501` without the right to operate, or if the scope has another owner; `ON007` for a key of another shard.
    pub async fn get<E: Executor>(&self, exec: &E) -> Result<Option<KeyRecord>, Error> {
        let rows = self.rows(exec, GET, &[]).await?;
        rows.first().map(KeyRecord::of_row).transpose()
    }

    /// Decides on a parked attempt. After a committed verdict, the same verdict gets `ON006`, another verdict `ON001`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// # use pg_once::{Claim, ClaimOptions, Response};
    /// # lease.park(&pool, "no answer").await?;
    /// use pg_once::Verdict;
    ///
    /// // The bank's own books show the payment.
    /// let answer = Response::new(201).with_body("paid")?;
    /// key.resolve(&pool, 1, &Verdict::Complete(answer.clone())).await?;
    /// assert_eq!(key.claim(&pool, &ClaimOptions::new()).await?, Claim::Replayed(answer));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Key::get`]; `55006` if the key is not parked; `ON001` if there is no such key or another attempt is parked.
    pub async fn resolve<E: Executor>(
        &self,
        exec: &E,
        attempt: i32,
        verdict: &Verdict,
    ) -> Result<(), Error> {
        let (name, answer) = match verdict {
            Verdict::Retry => ("retry", None),
            Verdict::Complete(answer) => ("complete", Some(answer)),
            Verdict::Abort(answer) => ("abort", Some(answer)),
        };
        let code = answer.map(|answer| answer.code);
        let body = answer.and_then(|answer| answer.body.as_ref());
        let headers = answer.and_then(|answer| answer.headers.as_ref());
        let own = [
            (&attempt as _, Type::INT4),
            (&name as _, Type::TEXT),
            (&code as _, Type::INT4),
            (&body as _, Type::JSON),
            (&headers as _, Type::JSON),
        ];
        self.rows(exec, RESOLVE, &own).await.map(drop)
    }
}

impl KeyRecord {
    fn of_row(row: &Row) -> Result<Self, Error> {
        let code: Option<i32> = column(row, "response_code")?;
        let lease_left: Option<Interval> = column(row, "lease_left")?;
        Ok(Self {
            status: status_of(column(row, "status")?)?,
            attempt: column::<Option<i32>>(row, "attempt")?.unwrap_or_default(),
            holder: column(row, "holder")?,
            recovery_point: column(row, "recovery_point")?,
            state: column(row, "state")?,
            steps: column(row, "steps")?,
            response: code.map(|_| Response::of_row(row)).transpose()?,
            request: column(row, "request")?,
            last_error: column(row, "last_error")?,
            created_at: column(row, "created_at")?,
            lease_left: lease_left.map(|Interval(left)| left),
            finished_at: column(row, "finished_at")?,
            gone_at: column(row, "gone_at")?,
            next: column(row, "next")?,
        })
    }
}

fn status_of(name: &str) -> Result<KeyStatus, Error> {
    Ok(match name {
        "running" => KeyStatus::Running,
        "released" => KeyStatus::Released,
        "parked" => KeyStatus::Parked,
        "finished" => KeyStatus::Finished,
        "gone" => KeyStatus::Gone,
        other => return Err(Error::Answer(format!("key status {other:?}"))),
    })
}
