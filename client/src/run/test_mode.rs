//! Owns a runner's test mode.

use crate::{Args, Autocommit, Error, Executor, Row};

/// Runs a keyed request or a teardown inside a transaction of a test's, which is rolled back at its end.
///
/// The work writes through the same transaction. Another session sees nothing of it, so this is for tests
/// only. An error of the server aborts the transaction, as it does any.
#[derive(Debug)]
pub struct TestMode<'t, E>(pub &'t E);

impl<E: Executor> Executor for TestMode<'_, E> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        self.0.query(sql, args).await
    }
}

impl<E: Executor> Autocommit for TestMode<'_, E> {}
