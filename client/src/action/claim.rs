//! Owns the claim of a row for a step of its machine, and the claim's answers.

use std::time::Duration;

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Action;
use crate::executor::column;
use crate::interval::Interval;
use crate::options::setters;
use crate::{Error, Executor, MachineRow};

const CLAIM: &str = "SELECT * FROM once.action_claim(machine => $1, id => $2, step_key => $3, \
                     requester => $4, lease => $5, holder => $6, version => $7)";

/// The answer of a claim. A `match` must handle each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionClaim {
    /// The row is in the claim state now. Commit before any foreign call, then work.
    Claimed(Action),
    /// Another attempt has the row, a sweep must still revert it, or the row, its lease or its machine is locked.
    InProgress {
        /// The time to wait before asking again.
        retry_after: Duration,
    },
    /// The row's cancel flag is set, no lease covers the row, and its status is not terminal: tear it down.
    Cancelling,
    /// The step does not start from the row's status, or the row does not have the version asked for, or the step
    /// has no `successful_state` for this requester.
    Refused {
        /// The status that the row has.
        status: String,
        /// The row's version, if the machine has a version column.
        version: Option<i64>,
    },
    /// There is no such row.
    NotFound,
    /// The step declares no claim state for this requester: there is no lease. Make the move with
    /// [`MachineRow::transition`].
    Unclaimed,
}

/// The options of a claim.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ActionOptions {
    pub(crate) requester: Option<String>,
    pub(crate) lease: Option<Duration>,
    holder: Option<String>,
    pub(crate) version: Option<i64>,
}

impl ActionOptions {
    setters! {
        /// The requester, which selects the claim state and the successful state of the step.
        requester: impl Into<String>,
        /// The length of the lease (default: the step's). [`Action::extend`] without a length uses this length again.
        lease: Duration,
        /// The name of this attempt. A repeated claim by the lease's holder gets the same lease, so a claim whose
        /// answer was lost can be repeated. Never use a worker's name: two attempts with one name would both believe
        /// that they hold the row.
        holder: impl Into<String>,
        /// Claims the row only at this version.
        version: i64,
    }

    /// Defaults: no requester (so the states declared for `*` are used), the step's lease, no holder, any version.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a fresh holder: a random UUID.
    pub fn fresh_holder(self) -> Self {
        self.holder(Uuid::new_v4().to_string())
    }
}

impl MachineRow {
    /// Claims the row for a machine's step. Never waits for a row's lock or lease, only for a lock on the whole table.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::{ActionClaim, ActionOptions};
    ///
    /// let worker = ActionOptions::new().requester("worker");
    /// let job = machine.row(job);
    /// let action = match job.claim(&pool, "run", &worker.clone().fresh_holder()).await? {
    ///     ActionClaim::Claimed(action) => action,
    ///     ActionClaim::InProgress { retry_after } => panic!("come back in {retry_after:?}"),
    ///     ActionClaim::Cancelling => panic!("tear it down"),
    ///     ActionClaim::Refused { status, .. } => panic!("it is {status}"),
    ///     ActionClaim::NotFound => panic!("no such job"),
    ///     ActionClaim::Unclaimed => panic!("no claim state for this requester"),
    /// };
    /// // The queue delivers the job a second time.
    /// let second = job.claim(&pool, "run", &worker.fresh_holder()).await?;
    /// assert!(matches!(second, ActionClaim::InProgress { .. }));
    /// action.release(&pool, Some("only looking")).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` for an unknown step; `42501` without the right to update
    /// the table; `ON002` if a trigger or policy suppresses the update; `40001` for a lost race above READ COMMITTED.
    /// The call waits for DDL on the table. If the DDL renamed it or changed a declared column, the call gets `40001`.
    pub async fn claim<E: Executor>(
        &self,
        exec: &E,
        step_key: &str,
        options: &ActionOptions,
    ) -> Result<ActionClaim, Error> {
        let lease = options.lease.map(Interval);
        let own = [
            (&step_key as _, Type::TEXT),
            (&options.requester as _, Type::TEXT),
            (&lease as _, Type::INTERVAL),
            (&options.holder as _, Type::TEXT),
            (&options.version as _, Type::INT8),
        ];
        let row = self.call(exec, CLAIM, &own).await?;
        Ok(match column(&row, "outcome")? {
            "claimed" => ActionClaim::Claimed(Action::of_row(self, step_key, &row, options.lease)?),
            "in_progress" => {
                let Interval(retry_after) = column(&row, "retry_after")?;
                ActionClaim::InProgress { retry_after }
            }
            "cancelling" => ActionClaim::Cancelling,
            "refused" => ActionClaim::Refused {
                status: column(&row, "status")?,
                version: column(&row, "version")?,
            },
            "not_found" => ActionClaim::NotFound,
            "unclaimed" => ActionClaim::Unclaimed,
            other => return Err(Error::Answer(format!("action outcome {other:?}"))),
        })
    }
}
