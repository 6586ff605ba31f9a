//! Owns the declared move of a row: one conditional UPDATE, and the reason if the move was not made.
//!
//! Invariant: a lost race is an answer and never an error (under READ COMMITTED). Every reason of the server is a
//! variant of [`Reason`]; an unknown reason is an error.

use std::fmt::Display;

use tokio_postgres::types::Type;

use super::{Machine, MachineRow};
use crate::executor::column;
use crate::options::setters;
use crate::{Error, Executor, Json, Row};

const TRANSITION: &str = "SELECT * FROM once.transition(machine => $1, id => $2, to_status => $3, \
                          from_status => $4, patch => $5, requester => $6, version => $7)";
const TRANSITION_MANY: &str = "SELECT * FROM once.transition_many(machine => $1, ids => $2, \
                               to_status => $3, from_status => $4, requester => $5)";

/// A move to make, and its conditions.
#[derive(Clone, Debug)]
#[must_use]
pub struct Transition {
    to: String,
    from: Option<Vec<String>>,
    pub(crate) patch: Option<Json>,
    pub(crate) requester: Option<String>,
    pub(crate) version: Option<i64>,
}

/// The outcome of a move. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transitioned {
    /// This call made the move.
    Moved {
        /// The row's new status.
        status: String,
        /// The row's new version, where the machine has one.
        version: Option<i64>,
    },
    /// The move was not made; nothing was written.
    NotMoved {
        /// Why.
        reason: Reason,
        /// The row's status, which did not change; `None` if there is no row.
        status: Option<String>,
        /// The row's version, where the machine has one.
        version: Option<i64>,
    },
}

/// Why a move was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no such row.
    NotFound,
    /// The move does not start from the row's status: another session may have been first.
    Status,
    /// The move's `when` is not true.
    Guard,
    /// The row is at another version.
    Version,
    /// The row is in a claim state: an action has a lease on it.
    Claimed,
    /// The row's cancel flag is set.
    Cancelling,
}

/// One row of [`Machine::transition_many`]'s answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedRow {
    /// The row's id, as it was given.
    pub id: String,
    /// The outcome of its move.
    pub outcome: Transitioned,
}

impl Transition {
    setters! {
        /// Other columns of the row to set in the same UPDATE: a JSON object.
        patch: Json,
        /// Who makes the move. The move may also be a step of the machine in which this requester has no claim state.
        requester: impl Into<String>,
        /// Moves the row only if it is at this version.
        version: i64,
    }

    /// Asks for any declared move to this status.
    pub fn to(status: impl Into<String>) -> Self {
        Self {
            to: status.into(),
            from: None,
            patch: None,
            requester: None,
            version: None,
        }
    }

    /// Moves the row only if its status is one of these.
    pub fn from<S: Into<String>>(self, statuses: impl IntoIterator<Item = S>) -> Self {
        Self {
            from: Some(statuses.into_iter().map(Into::into).collect()),
            ..self
        }
    }
}

impl MachineRow {
    /// Makes a declared move, or returns why not. For work that a crash can interrupt use [`MachineRow::claim`].
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::{Reason, Transition, Transitioned};
    ///
    /// let give_up = Transition::to("failed").from(["queued"]).version(0);
    /// let job = machine.row(job);
    /// match job.transition(&pool, &give_up).await? {
    ///     Transitioned::Moved { status, version } => assert_eq!((&*status, version), ("failed", Some(1))),
    ///     Transitioned::NotMoved { reason, .. } => panic!("{reason:?}"),
    /// }
    /// // A second try gets an answer, not an error: the row is `failed` already.
    /// let late = job.transition(&pool, &give_up).await?;
    /// assert!(matches!(late, Transitioned::NotMoved { reason: Reason::Status, .. }));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `ON002` if no declared move leads to that status, or a trigger or policy
    /// suppresses the UPDATE; `22023` for a bad argument; `42501` without the right to update the table; `40001` for a
    /// lost race above READ COMMITTED, or if the table's name or a declared column changed while this call waited.
    pub async fn transition<E: Executor>(
        &self,
        exec: &E,
        transition: &Transition,
    ) -> Result<Transitioned, Error> {
        let own = [
            (&transition.to as _, Type::TEXT),
            (&transition.from as _, Type::TEXT_ARRAY),
            (&transition.patch as _, Type::JSON),
            (&transition.requester as _, Type::TEXT),
            (&transition.version as _, Type::INT8),
        ];
        Transitioned::of_row(&self.call(exec, TRANSITION, &own).await?)
    }
}

impl Machine {
    /// Moves many rows to one status in one statement. Locks the rows in the order of their ids. An id that is given
    /// twice counts as one. `from` and `requester` are as in [`Transition`].
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::Transitioned;
    ///
    /// let ids = [job, 999_999];
    /// let moved = machine.transition_many(&pool, &ids, "failed", Some(&["queued"]), None).await?;
    /// assert_eq!(moved.len(), 2);
    /// let made = moved.iter().filter(|row| matches!(row.outcome, Transitioned::Moved { .. }));
    /// assert_eq!(made.count(), 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`MachineRow::transition`]; `22023` also for more than 10,000 ids.
    pub async fn transition_many<E: Executor, I: Display + Sync>(
        &self,
        exec: &E,
        ids: &[I],
        to: &str,
        from: Option<&[&str]>,
        requester: Option<&str>,
    ) -> Result<Vec<MovedRow>, Error> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let args = [
            (&self.as_str() as _, Type::TEXT),
            (&ids as _, Type::TEXT_ARRAY),
            (&to as _, Type::TEXT),
            (&from as _, Type::TEXT_ARRAY),
            (&requester as _, Type::TEXT),
        ];
        let rows = exec.query(TRANSITION_MANY, &args).await?;
        rows.iter().map(MovedRow::of_row).collect()
    }
}

impl MovedRow {
    fn of_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: column(row, "id")?,
            outcome: Transitioned::of_row(row)?,
        })
    }
}

impl Transitioned {
    fn of_row(row: &Row) -> Result<Self, Error> {
        let version = column(row, "version")?;
        if column(row, "moved")? {
            return Ok(Self::Moved {
                status: column(row, "status")?,
                version,
            });
        }
        Ok(Self::NotMoved {
            reason: Reason::of_name(column(row, "reason")?)?,
            status: column(row, "status")?,
            version,
        })
    }
}

impl Reason {
    fn of_name(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "not_found" => Self::NotFound,
            "status" => Self::Status,
            "guard" => Self::Guard,
            "version" => Self::Version,
            "claimed" => Self::Claimed,
            "cancelling" => Self::Cancelling,
            other => return Err(Error::Answer(format!("reason {other:?}"))),
        })
    }
}
