//! Owns steps: foreign calls inside a request, remembered.
//!
//! Invariant: a step's beginning is committed before the call goes out, so that whoever comes next
//! knows that the other side may have acted. [`Step`] makes the caller say what happens then.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::{Lease, column};
use crate::{Error, Executor, Json};

// The event arguments (on_abort, on_complete) are left to their default: they come with the outbox.
const STEP: &str = "SELECT * FROM once.key_step(scope => $1, key => $2, token => $3, step => $4)";
const STEP_DONE: &str = "SELECT * FROM once.key_step_done(scope => $1, key => $2, token => $3, \
                         step => $4, result => $5)";
const ROTATE: &str = "SELECT once.key_rotate(scope => $1, key => $2, token => $3, step => $4, \
                      from_version => $5)";

/// What is known about a foreign call when it is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is done: here is its result. Do not call again.
    Done(Option<Json>),
    /// Nobody has begun it in an earlier attempt: make the call, with this key.
    First {
        /// What the other side dedupes by, if it does; the same on every attempt.
        derived_key: String,
    },
    /// An earlier attempt began it and nobody recorded the end: the other side may have acted. If
    /// it dedupes by the derived key, call again with it; if not, look there first, or park.
    Again {
        /// What the other side dedupes by, if it does; the same on every attempt.
        derived_key: String,
        /// How many earlier attempts began it.
        attempted: i32,
        /// When the first of them did. Other sides forget keys: compare with how long they keep them.
        first_at: Option<SystemTime>,
    },
}

/// What [`Lease::step_done`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// Whether this call recorded the result; `false` if one stood there already.
    pub recorded: bool,
    /// The result that counts: the first one written.
    pub result: Option<Json>,
}

impl Lease {
    /// Records that a foreign call begins. Commit it before the call goes out.
    ///
    /// Within one attempt the same beginning is told once: beginning again with the same token says
    /// [`Step::First`] again, so a second call in one attempt has to look first whatever this says.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// # use pg_once::{Claim, ClaimOptions, Scope};
    /// # let key = Scope::new("payments.create").key(&idempotency_key);
    /// # let Claim::Claimed(lease) = key.claim(&pool, &ClaimOptions::new()).await? else { panic!() };
    /// use pg_once::{Json, Step};
    ///
    /// # async fn charge(key: &str) -> Result<Json, pg_once::Error> { Json::of(key) }
    /// # async fn charge_made_with(_: &str) -> Option<Json> { None }
    /// let result = match lease.step(&pool, "charge").await? {
    ///     Step::Done(result) => result,
    ///     Step::First { derived_key } => Some(charge(&derived_key).await?),
    ///     // This bank does not dedupe: look first.
    ///     Step::Again { derived_key, .. } => match charge_made_with(&derived_key).await {
    ///         Some(found) => Some(found),
    ///         None => Some(charge(&derived_key).await?),
    ///     },
    /// };
    /// lease.step_done(&pool, "charge", result.as_ref()).await?;
    /// assert_eq!(lease.step(&pool, "charge").await?, Step::Done(result));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost.
    pub async fn step<E: Executor>(&self, exec: &E, step: &str) -> Result<Step, Error> {
        let row = self.call(exec, STEP, &[(&step as _, Type::TEXT)]).await?;
        if column(&row, "done")? {
            return Ok(Step::Done(column(&row, "result")?));
        }
        let derived_key = column(&row, "derived_key")?;
        Ok(match column(&row, "attempted")? {
            0 => Step::First { derived_key },
            attempted => Step::Again {
                derived_key,
                attempted,
                first_at: column(&row, "first_at")?,
            },
        })
    }

    /// Records a foreign call's end and its result. The first write wins; the result that counts
    /// comes back.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// # use pg_once::{Claim, ClaimOptions, Scope};
    /// # let key = Scope::new("payments.create").key(&idempotency_key);
    /// # let Claim::Claimed(lease) = key.claim(&pool, &ClaimOptions::new()).await? else { panic!() };
    /// use pg_once::Json;
    ///
    /// lease.step(&pool, "charge").await?;
    /// let charge = Json::of("ch_1")?;
    /// assert!(lease.step_done(&pool, "charge", Some(&charge)).await?.recorded);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost.
    pub async fn step_done<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        result: Option<&Json>,
    ) -> Result<StepEnd, Error> {
        let own = [(&step as _, Type::TEXT), (&result as _, Type::JSON)];
        let row = self.call(exec, STEP_DONE, &own).await?;
        Ok(StepEnd {
            recorded: column(&row, "recorded")?,
            result: column(&row, "result")?,
        })
    }

    /// Gives a step a new derived key, after the other side has cached a refusal under the old one.
    /// Versions begin at 1; asked again from the same version it changes nothing. Tells the version
    /// there is now.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// # use pg_once::{Claim, ClaimOptions, Scope};
    /// # let key = Scope::new("payments.create").key(&idempotency_key);
    /// # let Claim::Claimed(lease) = key.claim(&pool, &ClaimOptions::new()).await? else { panic!() };
    /// lease.step(&pool, "charge").await?;
    /// let before = key.derive(&pool, "charge").await?;
    /// assert_eq!(lease.rotate(&pool, "charge", 1).await?, 2);
    /// assert_eq!(lease.rotate(&pool, "charge", 1).await?, 2);
    /// assert_ne!(key.derive(&pool, "charge").await?, before);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `22023` for a step that is done.
    pub async fn rotate<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        from_version: i32,
    ) -> Result<i32, Error> {
        let own = [(&step as _, Type::TEXT), (&from_version as _, Type::INT4)];
        column(&self.call(exec, ROTATE, &own).await?, 0)
    }
}
