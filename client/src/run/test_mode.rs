//! Owns a runner's test mode, and the transactions that an action's work writes in.
//!
//! Invariant: what a transaction wrote is committed by its runner, or rolled back when its last clone goes.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use deadpool_postgres::{Client, Pool};

use crate::{Args, Autocommit, Error, Executor, Row};

/// Runs a keyed request, a teardown, an action or a completer inside a test's transaction, which is rolled back at the
/// end of the test.
///
/// The work writes through the same transaction. Another session sees nothing of it, so this is for tests only. An
/// error of the server aborts the transaction, as always. A completer and an action need a connection in an `Arc` on
/// which the test has sent `BEGIN`: `TestMode(Arc::clone(&client))`.
#[derive(Clone, Copy, Debug)]
pub struct TestMode<E>(pub E);

impl<E: Executor> Executor for TestMode<E> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        self.0.query(sql, args).await
    }
}

impl<E: Executor> Autocommit for TestMode<E> {}

/// Opens the transactions of actions: a pool, or a [`TestMode`] over a connection.
#[diagnostic::on_unimplemented(
    message = "`{Self}` opens no transactions for an action",
    note = "pass a `&deadpool_postgres::Pool`, or in a test `&TestMode(Arc::clone(&client))`"
)]
pub trait Begin: Autocommit {
    /// Begins a transaction.
    fn begin(&self) -> impl Future<Output = Result<ActionTransaction, Error>> + Send;
}

impl Begin for Pool {
    async fn begin(&self) -> Result<ActionTransaction, Error> {
        let client = Arc::new(self.get().await?);
        ActionTransaction::begin(client, ["BEGIN", "COMMIT", "ROLLBACK"]).await
    }
}

/// A part of the test's transaction that can be rolled back alone.
impl Begin for TestMode<Arc<Client>> {
    async fn begin(&self) -> Result<ActionTransaction, Error> {
        let part = ["SAVEPOINT work", "RELEASE work", "ROLLBACK TO work"];
        ActionTransaction::begin(Arc::clone(&self.0), part).await
    }
}

/// The open transaction of an action: a connection to write on. The runner commits it; a transaction that was not
/// committed is rolled back. A clone is the same transaction, so keep none beyond the work.
#[derive(Clone, Debug)]
pub struct ActionTransaction(Arc<Open>);

#[derive(Debug)]
struct Open {
    client: Arc<Client>,
    commit: &'static str,
    rollback: &'static str,
    ended: AtomicBool,
}

impl ActionTransaction {
    async fn begin(
        client: Arc<Client>,
        [begin, commit, rollback]: [&'static str; 3],
    ) -> Result<Self, Error> {
        let open = Open {
            client,
            commit,
            rollback,
            ended: AtomicBool::new(false),
        };
        open.client.batch_execute(begin).await?;
        Ok(Self(Arc::new(open)))
    }

    pub(super) async fn commit(self) -> Result<(), Error> {
        self.0.client.batch_execute(self.0.commit).await?;
        self.0.ended.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Deref for ActionTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            // The first poll sends the ROLLBACK, before any statement of the connection's next user.
            let mut rollback = pin!(self.client.batch_execute(self.rollback));
            let _ = rollback
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
