//! Owns the noun `key`: one logical request, one execution.
//!
//! A key's life, in the order of its calls: a [`Key`] is named within its [`Scope`] and claimed; the answer is a
//! [`Claim`]. The holder of the [`Lease`] records each phase with [`Lease::advance`] and each foreign call with
//! [`Lease::step`]. The holder ends the key with the answer that later claims replay ([`Lease::complete`],
//! [`Lease::abort`]), or releases or parks the key ([`Lease::release`], [`Lease::park`]).
//!
//! Invariant: each method here that takes an executor runs one statement, a call of one SQL function; the client caches
//! nothing.

mod claim;
mod lease;
mod record;
mod response;
mod scope;
mod step;
mod step_event;

use std::fmt;
use std::sync::Arc;

use tokio_postgres::types::Type;

use crate::executor::{Args, call, column, only, value};
use crate::{Error, Executor, Row};

pub use claim::{Claim, ClaimOptions};
pub use lease::Lease;
pub use record::{KeyRecord, KeyStatus, Verdict};
pub use response::Response;
pub use scope::{Abandoned, OnExpiry, Scope, ScopeOptions};
pub use step::{Step, StepEnd};
pub use step_event::{StepEvent, StepEvents};

const DERIVE: &str = "SELECT once.key_derive(scope => $1, key => $2, step => $3)";
const EXPIRE: &str = "SELECT once.key_expire(scope => $1, key => $2)";
const FORGET: &str = "SELECT once.key_forget(scope => $1, key => $2)";

/// One logical request: the caller's name for it, within a scope.
///
/// Made by [`Scope::key`]; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    scope: Scope,
    key: Arc<str>,
}

impl Key {
    /// The scope's name.
    #[must_use]
    pub fn scope(&self) -> &str {
        self.scope.as_str()
    }

    /// The key itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.key
    }

    /// Derives the idempotency key to send with a step's foreign call; needs no lease. Until [`Lease::rotate`] the
    /// derived key is the same on every attempt, so a service that dedupes by it acts once.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, idempotency_key| {
    /// use pg_once::Scope;
    ///
    /// let key = Scope::new("payments.create").key(&idempotency_key);
    /// let charge = key.derive(&pool, "charge").await?;
    /// assert_eq!(charge, key.derive(&pool, "charge").await?);
    /// assert_ne!(charge, key.derive(&pool, "notify").await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for a bad name; `42501` if the scope has another owner.
    pub async fn derive<E: Executor>(&self, exec: &E, step: &str) -> Result<String, Error> {
        let own = [(&step as _, Type::TEXT)];
        value(&only(self.rows(exec, DERIVE, &own).await?)?)
    }

    /// Makes the lease of a dead holder expire now, or makes a released key due. The next claim resumes the key, or
    /// parks it because of [`OnExpiry::Park`] or `max_attempts`. Until that claim, a holder that is still alive may
    /// write. Returns `false` if no lease was alive and the key did not wait for a retry.
    ///
    /// # Errors
    /// `42501` without the right to operate, or if the scope has another owner.
    pub async fn expire<E: Executor>(&self, exec: &E) -> Result<bool, Error> {
        value(&only(self.rows(exec, EXPIRE, &[]).await?)?)
    }

    /// Makes one call for this key. Its first arguments are scope and key, the others are `own`.
    async fn rows<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Vec<Row>, Error> {
        call(exec, sql, &[self.scope(), self.as_str()], own).await
    }

    /// Forgets the key, its answer and its steps; `false` if there was no such key. The next claim is a first claim,
    /// and its attempt does everything again. Use this for tests and for repairs by hand.
    ///
    /// # Errors
    /// `55006` while the key's lease is alive; `42501` as [`Key::expire`].
    pub async fn forget<E: Executor>(&self, exec: &E) -> Result<bool, Error> {
        value(&only(self.rows(exec, FORGET, &[]).await?)?)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.scope(), self.key)
    }
}
