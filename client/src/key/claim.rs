//! Owns the claim of a key, and all its answers.
//!
//! Invariant: every outcome that the server knows is a variant of [`Claim`], and a caller's `match` must handle each;
//! an unknown outcome is an error, never a guess.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{Key, Lease, Response, column};
use crate::executor::only;
use crate::interval::Interval;
use crate::options::setters;
use crate::{Error, Executor, Json, Row};

const CLAIM: &str = "SELECT * FROM once.key_claim(scope => $1, key => $2, request => $3, \
                     lease => $4, ttl => $5, holder => $6, fingerprint => $7)";

/// The answer of a claim. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// This is the first attempt: run the request.
    Claimed(Lease),
    /// There was an earlier attempt, or this attempt has called [`Lease::advance`]. Go on from the recovery point.
    Resumed(Lease),
    /// The key is finished: return the stored answer.
    Replayed(Response),
    /// Another attempt holds the key, or the key is not due yet: claim again later.
    InProgress {
        /// The time to wait before the next claim; it may be shorter than the lease.
        retry_after: Duration,
    },
    /// An earlier claim of the key had a different request.
    Mismatched,
    /// The key finished so long ago that its answer is no longer kept.
    Gone,
    /// The outcome of the last attempt is unknown, or the attempts are used up: the key needs
    /// [`Key::resolve`](crate::Key::resolve).
    Parked {
        /// The attempt that is parked.
        attempt: i32,
    },
}

/// The options of a claim.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClaimOptions {
    request: Option<Json>,
    pub(crate) lease: Option<Duration>,
    ttl: Option<Duration>,
    holder: Option<String>,
    fingerprint: Option<[u8; 32]>,
}

impl ClaimOptions {
    setters! {
        /// The request, already converted to JSON.
        request: Json,
        /// The length of the lease, instead of the scope's lease. A renewal has this length, too.
        lease: Duration,
        /// How long the answer is kept, instead of the scope's ttl. Only the first claim of the key sets it.
        ttl: Duration,
        /// The name of this attempt. A holder that claims again gets its own lease back, so a claim whose answer was
        /// lost can be repeated. Never use a worker's name or anything that a client sends: two attempts with one name
        /// would share a lease.
        holder: impl Into<String>,
        /// A SHA-256 of the raw request, for callers that hash it themselves: only the hash is compared. If
        /// `request` is set too, it is not compared; the server stores it if the scope has `keep_request`.
        fingerprint: [u8; 32],
    }

    /// Makes the default options: no request to compare, the scope's lease and ttl, no holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes options with this request: a claim of the same key with a different request is [`Claim::Mismatched`].
    ///
    /// # Errors
    /// [`Error::Json`] if the request cannot be written as JSON.
    pub fn of<T: Serialize + ?Sized>(request: &T) -> Result<Self, Error> {
        Ok(Self::new().request(Json::of(request)?))
    }

    /// Sets a fresh holder, a random UUID.
    pub fn fresh_holder(self) -> Self {
        self.holder(Uuid::new_v4().to_string())
    }
}

impl Key {
    /// Claims the key. Row locks and leases never make this call wait. A lock on the whole table does.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Claim, ClaimOptions, Response, Scope};
    ///
    /// let key = Scope::new("payments.create").key(&idempotency_key);
    /// let request = serde_json::json!({"amount": 100});
    /// match key.claim(&pool, &ClaimOptions::of(&request)?).await? {
    ///     Claim::Claimed(lease) | Claim::Resumed(lease) => {
    ///         // do the work, then store the answer
    ///         lease.complete(&pool, &Response::new(201).with_body("paid")?).await?;
    ///     }
    ///     Claim::Replayed(answer) => println!("done before: {}", answer.code),
    ///     Claim::InProgress { retry_after } => println!("come back in {retry_after:?}"),
    ///     Claim::Mismatched => println!("another request has used this key"),
    ///     Claim::Gone => println!("done long ago"),
    ///     Claim::Parked { attempt } => println!("attempt {attempt} needs a verdict"),
    /// }
    /// let again = key.claim(&pool, &ClaimOptions::of(&request)?).await?;
    /// assert!(matches!(again, Claim::Replayed(answer) if answer.code == 201));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for a bad argument, `25006` for a claim in a read-only transaction, `40001` for a race lost
    /// above READ COMMITTED, `42501` if the scope has another owner, `ON007` for a key of another shard.
    pub async fn claim<E: Executor>(
        &self,
        exec: &E,
        options: &ClaimOptions,
    ) -> Result<Claim, Error> {
        let fingerprint = options.fingerprint.as_ref().map(<[u8; 32]>::as_slice);
        let (lease, ttl) = (options.lease.map(Interval), options.ttl.map(Interval));
        let own = [
            (&options.request as _, Type::JSON),
            (&lease as _, Type::INTERVAL),
            (&ttl as _, Type::INTERVAL),
            (&options.holder as _, Type::TEXT),
            (&fingerprint as _, Type::BYTEA),
        ];
        let row = only(self.rows(exec, CLAIM, &own).await?)?;
        Claim::of_row(self, &row, options.lease)
    }
}

impl Claim {
    pub(super) fn of_row(key: &Key, row: &Row, length: Option<Duration>) -> Result<Self, Error> {
        Ok(match column(row, "outcome")? {
            "claimed" => Self::Claimed(Lease::of_row(key, row, length)?),
            "resumed" => Self::Resumed(Lease::of_row(key, row, length)?),
            "replayed" => Self::Replayed(Response::of_row(row)?),
            "in_progress" => {
                let Interval(retry_after) = column(row, "retry_after")?;
                Self::InProgress { retry_after }
            }
            "mismatched" => Self::Mismatched,
            "gone" => Self::Gone,
            "parked" => Self::Parked {
                attempt: column(row, "attempt")?,
            },
            other => return Err(Error::Answer(format!("claim outcome {other:?}"))),
        })
    }
}
