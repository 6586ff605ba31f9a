//! Owns the noun `action`: work on one row, under a lease, by a worker that may die half-way.
//!
//! An action's life, in the order of its calls: a row is claimed for a step of its machine ([`MachineRow::claim`]) and
//! enters the step's claim state. The holder extends the lease during the work ([`Action::extend`]) and learns whether
//! the row's cancel flag is set. The holder ends the action in the transaction of its own writes ([`Action::finish`]),
//! or releases the row ([`Action::release`]). If the holder dies, a sweep reverts the row after the lease expired.
//!
//! Invariant: extend, finish and release present the action's token. After the lease is lost, they fail with `ON001`,
//! which aborts their transaction. Once a finish is committed, later calls with the same token fail with `ON006`.

mod claim;
mod record;

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use crate::executor::{Args, call, column, of_row, only, value};
use crate::interval::Interval;
use crate::{Error, Executor, Json, Machine, MachineRow, Row};

pub use claim::{ActionClaim, ActionOptions};
pub use record::ActionRecord;

const EXTEND: &str = "SELECT * FROM once.action_extend(machine => $1, id => $2, token => $3, \
                      lease => $4)";
const FINISH: &str = "SELECT * FROM once.action_finish(machine => $1, id => $2, token => $3, \
                      patch => $4)";
const RELEASE: &str = "SELECT * FROM once.action_release(machine => $1, id => $2, token => $3, \
                       error => $4)";
const EXPIRE: &str = "SELECT once.action_expire(machine => $1, id => $2)";
const ADOPT: &str = "SELECT once.action_adopt(machine => $1, max => $2)";

/// A row that is claimed for a step of its machine. Finish or release it.
///
/// A plain value, like a key's [`Lease`](crate::Lease): it may be cloned into the futures of the work. Dropping it
/// releases nothing: the row stays in its claim state until the lease expires and a sweep reverts it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "finish or release the action; dropped, its row waits for the end of the lease"]
pub struct Action {
    row: MachineRow,
    step_key: String,
    token: i64,
    status: String,
    version: Option<i64>,
    lease_left: Duration,
    /// The length that the claim asked for. An extend without a length sends this length again, since the server does
    /// not store it.
    length: Option<Duration>,
}

/// The answer of [`Action::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// The remaining time of the lease.
    pub lease_left: Duration,
    /// Whether the row's cancel flag is set. If it is: roll back, release, tear down.
    pub cancelling: bool,
}

/// The answer of [`Action::finish`]. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionEnd {
    /// The action is finished: the row has the step's successful state.
    Finished {
        /// The successful state.
        status: String,
        /// The row's version, if the machine has a version column.
        version: Option<i64>,
    },
    /// The row's cancel flag is set and nothing was changed: roll this transaction back, then release and tear down.
    Cancelling,
}

/// The row after [`Action::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The status that the row went back to.
    pub status: String,
    /// The row's version, if the machine has a version column.
    pub version: Option<i64>,
}

impl Action {
    /// The row that is claimed.
    #[must_use]
    pub const fn row(&self) -> &MachineRow {
        &self.row
    }

    /// The step that the row is claimed for.
    #[must_use]
    pub fn step_key(&self) -> &str {
        &self.step_key
    }

    /// The token: it grows with each lease of the row and fits a JavaScript number. Put the row's id and the token into
    /// the names of artifacts outside the database, so that no other attempt uses the same name.
    #[must_use]
    pub const fn token(&self) -> i64 {
        self.token
    }

    /// The claim state that the row is in.
    #[must_use]
    pub fn status(&self) -> &str {
        &self.status
    }

    /// The row's version after the claim, if the machine has a version column.
    #[must_use]
    pub const fn version(&self) -> Option<i64> {
        self.version
    }

    /// The remaining time of the lease when the claim was answered.
    #[must_use]
    pub const fn lease_left(&self) -> Duration {
        self.lease_left
    }

    /// Renews the lease from now, and returns whether the row's cancel flag is set. With `None`, the lease gets the
    /// length that the claim asked for; if the claim asked for none, it gets the step's length.
    ///
    /// Call it first in each transaction that writes results. If the lease is lost, it fails and nothing is committed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_action.rs"));
    /// # fn main() { with_action(async |pool, action| {
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// if action.extend(&transaction, None).await?.cancelling {
    ///     transaction.rollback().await?;
    ///     action.release(&pool, None).await?;
    ///     // ... and tear down
    /// } else {
    ///     // ... the item's own writes ...
    ///     transaction.commit().await?;
    /// }
    /// # action.release(&pool, None).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if the action is finished.
    pub async fn extend<E: Executor>(
        &self,
        exec: &E,
        lease: Option<Duration>,
    ) -> Result<Extended, Error> {
        let lease = lease.or(self.length).map(Interval);
        let row = self
            .call(exec, EXTEND, (&lease as _, Type::INTERVAL))
            .await?;
        let Interval(lease_left) = column(&row, "lease_left")?;
        Ok(Extended {
            lease_left,
            cancelling: column(&row, "cancelling")?,
        })
    }

    /// Ends an action that succeeded; `patch` sets other columns of the row. Call it first in the action's last
    /// transaction, so that it locks the row first. A refund does the same, so the two cannot deadlock.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_action.rs"));
    /// # fn main() { with_action(async |pool, action| {
    /// use pg_once::{ActionEnd, Json};
    ///
    /// let result = Json::of(&serde_json::json!({"result": "3 of 3"}))?;
    /// let mut client = pool.get().await?;
    /// let transaction = client.transaction().await?;
    /// match action.finish(&transaction, Some(&result)).await? {
    ///     ActionEnd::Finished { status, .. } => {
    ///         assert_eq!(status, "done");
    ///         // ... the last writes of the job ...
    ///         transaction.commit().await?;
    ///     }
    ///     ActionEnd::Cancelling => {
    ///         transaction.rollback().await?;
    ///         action.release(&pool, None).await?;
    ///         // ... and tear down
    ///     }
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if this token has finished the action already; `22023` for a column that
    /// may not be set.
    pub async fn finish<E: Executor>(
        &self,
        exec: &E,
        patch: Option<&Json>,
    ) -> Result<ActionEnd, Error> {
        let row = self.call(exec, FINISH, (&patch as _, Type::JSON)).await?;
        Ok(match column(&row, "outcome")? {
            "finished" => ActionEnd::Finished {
                status: column(&row, "status")?,
                version: column(&row, "version")?,
            },
            "cancelling" => ActionEnd::Cancelling,
            other => return Err(Error::Answer(format!("end of an action {other:?}"))),
        })
    }

    /// Releases the row, after a failure or for a teardown. [`MachineRow::lease`] shows `error` as `last_error`.
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if the action is finished.
    pub async fn release<E: Executor>(
        &self,
        exec: &E,
        error: Option<&str>,
    ) -> Result<Released, Error> {
        Released::of_row(&self.call(exec, RELEASE, (&error as _, Type::TEXT)).await?)
    }

    async fn call<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: (&(dyn ToSql + Sync), Type),
    ) -> Result<Row, Error> {
        let args: &Args<'_> = &[(&self.token as _, Type::INT8), own];
        only(self.row.rows(exec, sql, args).await?)
    }

    fn of_row(
        subject: &MachineRow,
        step_key: &str,
        row: &Row,
        length: Option<Duration>,
    ) -> Result<Self, Error> {
        let Interval(lease_left) = column(row, "lease_left")?;
        Ok(Self {
            row: subject.clone(),
            step_key: step_key.to_owned(),
            token: column(row, "token")?,
            status: column(row, "status")?,
            version: column(row, "version")?,
            lease_left,
            length,
        })
    }
}

impl MachineRow {
    /// Makes the row's lease expire now. The holder can write until a sweep reverts the row or a claim takes it.
    /// After a failed revert the next try is delayed. The call ends this delay. `false`: no live lease and no delay.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` without the right to operate.
    pub async fn expire<E: Executor>(&self, exec: &E) -> Result<bool, Error> {
        value(&self.call(exec, EXPIRE, &[]).await?)
    }
}

impl Machine {
    /// Adopts up to `max` rows and returns their number. A row in a claim state without a lease (loaded, replicated)
    /// gets an overdue lease, so the next sweep reverts it. A row whose cancel flag was set by hand gets a teardown.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` without the right to operate or to update the table.
    pub async fn adopt<E: Executor>(&self, exec: &E, max: i32) -> Result<i32, Error> {
        let own = [(&max as _, Type::INT4)];
        value(&only(call(exec, ADOPT, &[self.as_str()], &own).await?)?)
    }
}

of_row!(Released: status, version);
