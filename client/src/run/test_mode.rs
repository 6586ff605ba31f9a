//! Owns a runner's test mode.

use std::future::Future;

use crate::executor::Row;
use crate::{Args, Autocommit, Error, Executor};

/// Runs a keyed request or a teardown inside a transaction of a test's, which is rolled back at its end.
///
/// The work writes through the same transaction. Another session sees nothing of it, so this is for tests
/// only. An error of the server aborts the transaction, as it does any.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
/// # fn main() { with_database(async |pool, idempotency_key| {
/// use pg_once::{ClaimOptions, Claim, Outcome, Response, Scope, TestMode};
///
/// let key = Scope::new("payments.create").key(&idempotency_key);
/// let mut client = pool.get().await?;
/// let transaction = client.transaction().await?;
/// let test = TestMode(&transaction);
/// let outcome = key.clone().run(&test).run(|_lease| async { Ok(Response::new(201).into()) }).await?;
/// assert!(matches!(outcome, Outcome::Ran(_)));
/// transaction.rollback().await?;
/// // The key was never used.
/// assert!(matches!(key.claim(&pool, &ClaimOptions::new()).await?, Claim::Claimed(_)));
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct TestMode<'t, E>(pub &'t E);

impl<E: Executor> Executor for TestMode<'_, E> {
    fn query(
        &self,
        sql: &str,
        args: &Args<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send {
        self.0.query(sql, args)
    }
}

impl<E: Executor> Autocommit for TestMode<'_, E> {}
