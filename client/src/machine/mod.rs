//! Owns the noun `machine`: the declared states and moves of one of the user's tables.
//!
//! A [`Machine`] is declared once ([`Machine::define`]), from JSON in your repository. A [`MachineRow`] is one row of
//! its table. It has the calls for declared moves ([`MachineRow::transition`]), for work that a crash can interrupt
//! ([`MachineRow::claim`]), and for the teardown ([`MachineRow::cancel`]).
//!
//! Invariant: each method here that takes an executor runs one statement, a call of one SQL function; the client caches
//! nothing.

mod define;
mod history;
mod transition;

use std::fmt;
use std::sync::Arc;

use crate::executor::{Args, call, only};
use crate::{Error, Executor, Row};

pub use define::Finding;
pub use history::RecordedMove;
pub use transition::{MovedRow, Reason, Transition, Transitioned};

/// A machine, by its name. Only [`Machine::define`] declares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine(Arc<str>);

/// One row of a machine's table, by its id.
///
/// Made by [`Machine::row`]; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MachineRow {
    machine: Machine,
    id: Arc<str>,
}

impl Machine {
    /// Names a machine.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Names one row of the machine. The id may be any type that prints as the id does in SQL: a number, a text, a
    /// UUID.
    ///
    /// ```
    /// let job = pg_once::Machine::new("batch_job").row(7);
    /// assert_eq!((job.machine().as_str(), job.id()), ("batch_job", "7"));
    /// ```
    #[must_use]
    pub fn row(&self, id: impl fmt::Display) -> MachineRow {
        MachineRow {
            machine: self.clone(),
            id: id.to_string().into(),
        }
    }
}

impl MachineRow {
    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The row's id, as text.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Makes one call, which answers one row. The call's arguments are the machine, this row's id, then `own`.
    pub(crate) async fn call<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Row, Error> {
        only(self.rows(exec, sql, own).await?)
    }

    /// Like `call`, for an answer of any number of rows.
    pub(crate) async fn rows<E: Executor>(
        &self,
        exec: &E,
        sql: &str,
        own: &Args<'_>,
    ) -> Result<Vec<Row>, Error> {
        call(exec, sql, &[self.machine.as_str(), self.id()], own).await
    }
}

impl fmt::Debug for MachineRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.machine.as_str(), self.id)
    }
}
