//! Owns the noun `inbox`: messages from outside, each handled once.
//!
//! A message's life, in the order of its calls: the handler's transaction accepts the message ([`Inbox::accept`]),
//! makes the handler's writes, and records a verdict ([`Inbox::record`]); every duplicate gets that verdict.
//! [`Inbox::once`] does all of this. A saga's steps and their compensations, which can overtake each other on
//! the wire, go through [`Inbox::barrier`].
//!
//! Invariant: everything happens in the caller's transaction. A message counts as accepted exactly if the handler's
//! writes are committed; the accept of a duplicate waits for a handler that is still running.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::executor::{call, column, only, value};
use crate::interval::Interval;
use crate::{Error, Executor, Json};

const ACCEPT: &str = "SELECT * FROM once.inbox_accept(scope => $1, message_id => $2, ttl => $3)";
const RECORD: &str = "SELECT once.inbox_record(scope => $1, message_id => $2, verdict => $3)";
const BARRIER: &str = "SELECT once.inbox_barrier(scope => $1, saga => $2, step => $3, \
                       operation => $4, ttl => $5)";

/// The record of the messages that a consumer has handled. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inbox {
    scope: Arc<str>,
    ttl: Option<Duration>,
}

/// The answer of [`Inbox::accept`]. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The message was not handled yet: handle it, in this transaction.
    New,
    /// The message was handled before.
    Duplicate {
        /// The verdict of its handler; `None` if the handler recorded none.
        verdict: Option<Json>,
    },
}

/// The answer of [`Inbox::once`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled<T> {
    /// The handler ran here; its verdict is recorded when this transaction commits.
    Now(T),
    /// The handler ran before; this is its verdict.
    Before(T),
}

/// Whether a message asks for a saga's step or for the step's compensation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Do the step.
    Action,
    /// Undo the step.
    Compensation,
}

/// The answer of [`Inbox::barrier`]. A `match` must handle each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Barrier {
    /// Do the action or compensation now, in this transaction.
    Run,
    /// This action or compensation was done before.
    Duplicate,
    /// A compensation whose action has not run: there is nothing to undo.
    Skipped,
    /// An action that arrives after its compensation: do not do it.
    Refused,
}

impl Inbox {
    /// Names the inbox of a consumer. It needs no declaration.
    #[must_use]
    pub fn new(scope: &str) -> Self {
        Self {
            scope: scope.into(),
            ttl: None,
        }
    }

    /// How long messages are remembered, instead of 30 days: choose more than the time for which the sender retries.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.scope
    }

    /// Accepts a message, in the transaction of its handler's writes. The call for a duplicate waits for a handler that
    /// is still running (`lock_timeout` bounds the wait: `55P03`).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, message| {
    /// use pg_once::{Accepted, Inbox, Json};
    ///
    /// let inbox = Inbox::new("crm.contacts");
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// if inbox.accept(&transaction, &message).await? == Accepted::New {
    ///     // ... the writes, in the same transaction ...
    ///     inbox.record(&transaction, &message, &Json::of("stored")?).await?;
    /// }
    /// transaction.commit().await?;
    ///
    /// // The sender did not get an answer, and sends the message again.
    /// let Accepted::Duplicate { verdict } = inbox.accept(&pool, &message).await? else { panic!() };
    /// assert_eq!(verdict, Some(Json::of("stored")?));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `22023` for a bad argument; `42501` if the scope has another owner; `55P03` at the end of a `lock_timeout`;
    /// `40001` for a lost race above READ COMMITTED; `ON007` for a message of another shard.
    pub async fn accept<E: Executor>(&self, exec: &E, message_id: &str) -> Result<Accepted, Error> {
        let ttl = self.ttl.map(Interval);
        let (names, own) = ([self.as_str(), message_id], [(&ttl as _, Type::INTERVAL)]);
        let row = only(call(exec, ACCEPT, &names, &own).await?)?;
        Ok(match column(&row, "accepted")? {
            true => Accepted::New,
            false => Accepted::Duplicate {
                verdict: column(&row, "verdict")?,
            },
        })
    }

    /// Records a message's verdict, the answer for its duplicates. Only the transaction that accepted the message may
    /// record its verdict. In that transaction, a second call with the same verdict changes nothing.
    ///
    /// # Errors
    /// `ON006`: this transaction has recorded a different verdict, or an earlier transaction has recorded one. `ON001`:
    /// the message has no verdict, and this transaction has not accepted it. `22023`: a bad argument.
    pub async fn record<E: Executor>(
        &self,
        exec: &E,
        message_id: &str,
        verdict: &Json,
    ) -> Result<(), Error> {
        let (names, own) = ([self.as_str(), message_id], [(verdict as _, Type::JSON)]);
        call(exec, RECORD, &names, &own).await.map(drop)
    }

    /// Runs a handler once for a message, in the caller's transaction; a duplicate gets the verdict of the first run.
    ///
    /// The handler makes its writes in the same transaction. If it fails, roll the transaction back: the message then
    /// counts as new. If no verdict was recorded for the message, a duplicate gets JSON's `null`, read as a `T`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, message| {
    /// use pg_once::{Handled, Inbox};
    ///
    /// let inbox = Inbox::new("crm.contacts");
    /// for delivery in 1..=2 {
    ///     let mut client = pool.get().await?;
    ///     let transaction = client.transaction().await?;
    ///     let handled = inbox
    ///         .once(&transaction, &message, async || {
    ///             let row = transaction.query_one("SELECT 7::bigint", &[]).await?; // INSERT ... RETURNING id
    ///             Ok::<i64, pg_once::Error>(row.get(0))
    ///         })
    ///         .await?;
    ///     transaction.commit().await?;
    ///     match handled {
    ///         Handled::Now(contact) => assert_eq!((delivery, contact), (1, 7)),
    ///         Handled::Before(contact) => assert_eq!((delivery, contact), (2, 7)),
    ///     }
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The handler's error; the errors of [`Inbox::accept`] and [`Inbox::record`]; [`Error::Json`] if the recorded
    /// verdict is no `T`.
    pub async fn once<T, X, Fut>(
        &self,
        transaction: &Transaction<'_>,
        message_id: &str,
        handler: impl FnOnce() -> Fut,
    ) -> Result<Handled<T>, X>
    where
        T: Serialize + DeserializeOwned,
        X: From<Error>,
        Fut: Future<Output = Result<T, X>>,
    {
        match self.accept(transaction, message_id).await? {
            Accepted::New => {
                let said = handler().await?;
                let verdict = Json::of(&said)?;
                self.record(transaction, message_id, &verdict).await?;
                Ok(Handled::Now(said))
            }
            Accepted::Duplicate { verdict } => {
                let verdict = verdict.unwrap_or_else(|| Json::from_text("null"));
                Ok(Handled::Before(verdict.parse()?))
            }
        }
    }

    /// Registers a saga's step, or the step's compensation, and returns whether to do it now. Call this in the
    /// transaction of the writes. Waits while another transaction is handling the same step or its compensation.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, order| {
    /// use pg_once::{Barrier, Inbox, Operation};
    ///
    /// let stock = Inbox::new("stock");
    /// // The compensation overtakes the step: neither is done.
    /// let back = stock.barrier(&pool, &order, "reserve", Operation::Compensation).await?;
    /// assert_eq!(back, Barrier::Skipped);
    /// let reserve = stock.barrier(&pool, &order, "reserve", Operation::Action).await?;
    /// assert_eq!(reserve, Barrier::Refused);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Inbox::accept`].
    pub async fn barrier<E: Executor>(
        &self,
        exec: &E,
        saga: &str,
        step: &str,
        operation: Operation,
    ) -> Result<Barrier, Error> {
        let operation = match operation {
            Operation::Action => "action",
            Operation::Compensation => "compensation",
        };
        let ttl = self.ttl.map(Interval);
        let names = [self.as_str(), saga, step, operation];
        let own = [(&ttl as _, Type::INTERVAL)];
        let row = only(call(exec, BARRIER, &names, &own).await?)?;
        Ok(match value(&row)? {
            "run" => Barrier::Run,
            "duplicate" => Barrier::Duplicate,
            "skipped" => Barrier::Skipped,
            "refused" => Barrier::Refused,
            other => return Err(Error::Answer(format!("outcome of a barrier {other:?}"))),
        })
    }
}
