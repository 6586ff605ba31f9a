//! Owns scopes: namespaces of keys with their options, and the call that takes abandoned keys.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;

use super::{Claim, Key, Lease, column};
use crate::executor::{call, only, value};
use crate::interval::Interval;
use crate::options::{Setting, options};
use crate::{Error, Executor, Json, Row};

const SET: &str = "SELECT once.scope_set(scope => $1, options => $2)";
const GET: &str = "SELECT once.scope_get(scope => $1)";
const TAKE_ABANDONED: &str = "SELECT * FROM once.key_take_abandoned(scope => $1, max => $2, \
                              lease => $3, holder => $4)";

/// A namespace of keys: one operation. Put the user's name into the key, not the scope. A scope needs no declaration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

/// What happens to a key whose lease expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// The next claim resumes the key.
    Resume,
    /// The key is parked: a person or a reconciler gives the verdict.
    Park,
}

/// An abandoned key, taken by [`Scope::take_abandoned`].
#[derive(Clone, Debug)]
pub struct Abandoned {
    /// The new lease; go on from its recovery point.
    pub lease: Lease,
    /// The request, if the scope keeps it.
    pub request: Option<Json>,
    /// The number of the key's shard, if a completer over shards took the key.
    pub shard: Option<usize>,
}

options! {
    /// The options to change; options that are not named stay as they are.
    ScopeOptions {
        /// How long a lease lasts.
        lease: Duration,
        /// How long an answer is kept.
        ttl: Duration,
        /// How long claims get [`Claim::Gone`] after the ttl. With zero, the key is new once the ttl is over.
        gone_for: Duration,
        /// What happens to a key whose lease expired.
        on_expiry: OnExpiry,
        /// Upper limit of the `retry_after` that a claim gets while another attempt has the lease.
        retry_after: Duration,
        /// How many attempts a key has before it is parked; `.reset("max_attempts")` removes the limit.
        max_attempts: i32,
        /// Upper limit of the time from a claim to the end of its lease, however often the lease is extended.
        max_lease_life: Duration,
        /// Whether the request is kept, for a completer.
        keep_request: bool,
        /// Only this role's members may use the scope.
        owner: &str,
    }
}

impl ScopeOptions {
    /// The recovery points, in order. An advance to an unlisted point, or back to an earlier point, is refused.
    pub fn recovery_points<'p>(self, points: impl IntoIterator<Item = &'p str>) -> Self {
        let points: Value = points.into_iter().collect();
        Self(self.0.with("recovery_points", points))
    }
}

impl Setting for OnExpiry {
    fn json(self) -> Value {
        match self {
            Self::Resume => "resume".into(),
            Self::Park => "park".into(),
        }
    }
}

impl Scope {
    /// Names a scope.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Names one request in the scope.
    ///
    /// ```
    /// let key = pg_once::Scope::new("payments.create").key("5f9c");
    /// assert_eq!((key.scope(), key.as_str()), ("payments.create", "5f9c"));
    /// ```
    #[must_use]
    pub fn key(&self, key: &str) -> Key {
        Key {
            scope: self.clone(),
            key: key.into(),
        }
    }

    /// Changes options of the scope.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{OnExpiry, Scope, ScopeOptions};
    /// use std::time::Duration;
    ///
    /// let scope = Scope::new("doc.transfers");
    /// let options = ScopeOptions::new()
    ///     .lease(Duration::from_secs(30))
    ///     .on_expiry(OnExpiry::Park)
    ///     .recovery_points(["charged"]);
    /// scope.set(&pool, &options).await?;
    /// let now: serde_json::Value = scope.get(&pool).await?.parse()?;
    /// assert_eq!(now["on_expiry"], "park");
    /// assert_eq!(now["max_attempts"], 25); // the default
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for an unknown option or value; `42501` if the scope has another owner.
    pub async fn set<E: Executor>(&self, exec: &E, options: &ScopeOptions) -> Result<(), Error> {
        let options = options.0.to_json()?;
        let own = [(&options as _, Type::JSON)];
        call(exec, SET, &[self.as_str()], &own).await.map(drop)
    }

    /// The options in force, defaults included.
    ///
    /// # Errors
    /// `22023` for a bad name; `42501` if the scope has another owner.
    pub async fn get<E: Executor>(&self, exec: &E) -> Result<Json, Error> {
        value(&only(call(exec, GET, &[self.as_str()], &[]).await?)?)
    }

    /// Takes up to `max` abandoned keys, for completers. Skips keys that are parked, locked or not due. After a key's
    /// first lease expires, a sweep marks the key abandoned. A `holder` with live leases of such keys gets only these.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::{Claim, ClaimOptions, Response, Scope};
    ///
    /// let scope = Scope::new(&format!("doc.{idempotency_key}"));
    /// let claim = scope.key("k-1").claim(&pool, &ClaimOptions::new()).await?;
    /// # let Claim::Claimed(lease) = claim else { panic!() };
    /// // ... the worker releases the key, or dies and its lease expires ...
    /// # lease.release(&pool, None, None).await?;
    /// for abandoned in scope.take_abandoned(&pool, 10, None, None).await? {
    ///     assert_eq!(abandoned.lease.key().as_str(), "k-1");
    ///     abandoned.lease.complete(&pool, &Response::new(200)).await?;
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for a bad argument; `42501` if the scope has another owner; `25006` in a read-only transaction.
    pub async fn take_abandoned<E: Executor>(
        &self,
        exec: &E,
        max: i32,
        lease: Option<Duration>,
        holder: Option<&str>,
    ) -> Result<Vec<Abandoned>, Error> {
        let length = lease.map(Interval);
        let own = [
            (&max as _, Type::INT4),
            (&length as _, Type::INTERVAL),
            (&holder as _, Type::TEXT),
        ];
        let rows = call(exec, TAKE_ABANDONED, &[self.as_str()], &own).await?;
        rows.iter().map(|row| self.abandoned(row, lease)).collect()
    }

    fn abandoned(&self, row: &Row, length: Option<Duration>) -> Result<Abandoned, Error> {
        let key = self.key(column(row, "key")?);
        let claim = Claim::of_row(&key, row, length)?;
        let not_taken = |other| Error::Answer(format!("taken, but {other:?}"));
        Ok(Abandoned {
            lease: claim.into_lease().map_err(not_taken)?,
            request: column(row, "request")?,
            shard: None,
        })
    }
}
