//! Owns the choice of the shard for a routing value, if the tenants' rows are in several databases.
//!
//! Invariant: a routing value leads to the shard that `once.shard_of` names.

use deadpool_postgres::Pool;
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use crate::{Error, Executor, Key};

const SET: &str = "SELECT once.shard_set(shard => $1, shards => $2)";
/// One more than the largest number of shards.
const TOO_MANY: usize = 65_537;

/// A pool for each shard: each database holds a fixed slice of the routing values, such as tenants.
///
/// The number of shards never changes. After [`Shards::set`] each database refuses the keys, messages and saga steps of
/// other shards: the call fails with [`Kind::WrongShard`](crate::Kind::WrongShard). Row claims and emits pass.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
/// # fn main() { with_database(async |pool, idempotency_key| {
/// # let pool_of = |_database: &str| pool.clone();
/// use pg_once::{ClaimOptions, Scope, Shards};
///
/// let pools = (0..16).map(|number| pool_of(&format!("shop_{number:02}")));
/// let shards = Shards::new(pools)?;
/// assert_eq!(shards.number_of("acme"), 1);
///
/// let key = Scope::new("orders.create").key(&format!("acme/{idempotency_key}"));
/// key.claim(shards.of("acme"), &ClaimOptions::new()).await?;
/// for (number, pool) in shards.each() {
///     println!("shard {number}: {:?}", pool.status());
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct Shards<E = Pool> {
    /// Never empty.
    pools: Vec<E>,
}

impl<E: Executor> Shards<E> {
    /// Takes one pool for each shard, in the order of the shards' numbers from 0.
    ///
    /// # Errors
    /// [`Error::Argument`] without a pool, or with more than the 65,536 that the server takes.
    pub fn new(pools: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        let pools: Vec<E> = pools.into_iter().take(TOO_MANY).collect();
        if pools.is_empty() || pools.len() == TOO_MANY {
            return Err(Error::Argument("there are 1 to 65536 shards".to_owned()));
        }
        Ok(Self { pools })
    }

    /// Returns the pool for a routing value. The routing value is the part of a key, message or saga before the first
    /// `/` (`once.shard_set` can set another separator, or route by the scope instead).
    #[must_use]
    pub fn of(&self, routing: &str) -> &E {
        &self.pools[self.number_of(routing)]
    }

    /// Returns the pool for a key whose routing value is the part before the first `/`, such as the user's name in a
    /// key of [`key_of_header`](crate::http::key_of_header).
    #[must_use]
    pub fn of_key(&self, key: &Key) -> &E {
        let routing = key.as_str().split('/').next();
        self.of(routing.unwrap_or_default())
    }

    /// Returns the number of the shard for a routing value.
    #[must_use]
    pub fn number_of(&self, routing: &str) -> usize {
        number(routing, self.pools.len())
    }

    /// Iterates over each shard's number and pool, for work on all shards.
    pub fn each(&self) -> impl Iterator<Item = (usize, &E)> {
        self.pools.iter().enumerate()
    }

    /// Returns the pool of the shard with this number, such as the number in [`Event::shard`](crate::Event::shard).
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&E> {
        self.pools.get(number)
    }

    pub(crate) fn places(&self) -> Vec<(Option<usize>, &E)> {
        self.each().map(|(n, pool)| (Some(n), pool)).collect()
    }

    /// Stores in each database which shard it is (`once.shard_set` with its default `by` and `separator`). Call it when
    /// the databases are set up; a later call changes nothing, and fails if a pool leads to another shard.
    ///
    /// # Errors
    /// `55006` if a database has other values already, such as another separator; `42501` without the right to operate.
    pub async fn set(&self) -> Result<(), Error> {
        let shards = self.pools.len() as i32;
        for (shard, pool) in (0i32..).zip(&self.pools) {
            let args = [(&shard as _, Type::INT4), (&shards as _, Type::INT4)];
            pool.query(SET, &args).await?;
        }
        Ok(())
    }
}

/// The first 6 bytes of SHA-256, big-endian, modulo the number of shards.
fn number(routing: &str, shards: usize) -> usize {
    let digest = Sha256::digest(routing);
    let first = digest.iter().take(6);
    let first = first.fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    (first % shards as u64) as usize
}

#[cfg(test)]
#[path = "../tests/unit/shards.rs"]
mod tests;
