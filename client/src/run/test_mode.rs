//! Owns the test mode, and the transactions that are opened for the caller's writes.
//!
//! Invariant: a transaction is committed by its runner, or by `commit`, or rolled back when its last clone is dropped.
//! If a statement of this crate on the transaction has no answer yet, the drop closes the pooled connection.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use deadpool_postgres::{Client, Object, Pool};

use crate::{Args, Autocommit, Error, Executor, Row};

/// An executor that runs any runner inside a test's transaction, which the test rolls back at its end.
///
/// The caller's code writes through the same transaction. Other sessions see none of the writes, so this is for tests
/// only. A runner opens savepoints instead of transactions; a server error outside them aborts the transaction. Keyed
/// requests and teardowns run on any connection or transaction. The other runners need a connection in an `Arc`, on
/// which the test has sent `BEGIN`: `TestMode(Arc::clone(&client))`. An outbox worker then delivers event by event.
#[derive(Clone, Copy, Debug)]
pub struct TestMode<E>(pub E);

impl<E: Executor> Executor for TestMode<E> {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        self.0.query(sql, args).await
    }
}

impl<E: Executor> Autocommit for TestMode<E> {}

/// An executor that opens transactions: a pool, or a [`TestMode`] over a connection. A handler that is generic over
/// this trait can be tested in a transaction that is rolled back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` opens no transactions",
    note = "pass a `&deadpool_postgres::Pool`, or in a test `&TestMode(Arc::clone(&client))`"
)]
pub trait Begin: Autocommit + Clone + Send + 'static {
    /// Whether the transactions are savepoints of one transaction, so that no two of them may be open at once.
    const ONE_AT_A_TIME: bool = false;

    /// Begins a transaction.
    fn begin(&self) -> impl Future<Output = Result<OpenTransaction, Error>> + Send;
}

impl Begin for Pool {
    async fn begin(&self) -> Result<OpenTransaction, Error> {
        let client = Arc::new(self.get().await?);
        // In an aborted transaction the `SELECT` fails; without it, COMMIT would roll back and report no error.
        OpenTransaction::begin(client, ["BEGIN", "SELECT; COMMIT", "ROLLBACK"]).await
    }
}

/// Opens savepoints in the test's transaction.
impl Begin for TestMode<Arc<Client>> {
    const ONE_AT_A_TIME: bool = true;

    async fn begin(&self) -> Result<OpenTransaction, Error> {
        let back = "ROLLBACK TO work; RELEASE work";
        OpenTransaction::begin(
            Arc::clone(&self.0),
            ["SAVEPOINT work", "RELEASE work", back],
        )
        .await
    }
}

/// An open transaction: a connection to write on. A runner commits the transaction that it hands out; a transaction
/// that was not committed is rolled back. A clone is the same transaction, so keep no clone after the work.
#[derive(Clone, Debug)]
pub struct OpenTransaction {
    client: Arc<Client>,
    /// Must stay below `client`. Rust drops `client` first, and `Open::drop` needs the last `Arc` of a pooled client.
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    client: Option<Arc<Client>>,
    commit: &'static str,
    rollback: &'static str,
    ended: AtomicBool,
    /// A call was sent and has no answer.
    unanswered: AtomicBool,
}

impl OpenTransaction {
    async fn begin(
        client: Arc<Client>,
        [begin, commit, rollback]: [&'static str; 3],
    ) -> Result<Self, Error> {
        let open = Arc::new(Open {
            client: Some(Arc::clone(&client)),
            commit,
            rollback,
            ended: AtomicBool::new(false),
            unanswered: AtomicBool::new(false),
        });
        let begun = Self { client, open };
        begun.answered(begun.client.batch_execute(begin)).await?;
        Ok(begun)
    }

    /// Commits a transaction of [`Begin::begin`].
    ///
    /// # Errors
    /// [`Error::Argument`] while another clone exists, such as the runner's (a runner commits its transactions itself);
    /// any error of the commit.
    pub async fn commit(self) -> Result<(), Error> {
        if Arc::strong_count(&self.open) > 1 {
            let refused = "drop the other clones of the transaction before its commit";
            return Err(Error::Argument(refused.to_owned()));
        }
        self.end().await
    }

    /// Commits, even while clones of the transaction exist.
    pub(super) async fn end(self) -> Result<(), Error> {
        let commit = self.client.batch_execute(self.open.commit);
        self.answered(commit).await?;
        self.open.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn answered<T>(&self, call: impl Future<Output = T>) -> T {
        self.open.unanswered.store(true, Ordering::Relaxed);
        let answer = call.await;
        self.open.unanswered.store(false, Ordering::Relaxed);
        answer
    }
}

impl Deref for OpenTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Executor for OpenTransaction {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        self.answered(Executor::query(&*self.client, sql, args))
            .await
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        if !*self.ended.get_mut() {
            // The first poll sends the ROLLBACK, before any statement of the connection's next user.
            let mut rollback = pin!(client.batch_execute(self.rollback));
            let _ = rollback
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        }
        if *self.unanswered.get_mut()
            && let Some(client) = Arc::into_inner(client)
        {
            // The connection may lead to a server that has vanished.
            drop(Object::take(client));
        }
    }
}
