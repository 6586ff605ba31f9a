//! Reads the state of a row and its action: the holder, the last error, and what happens next.

use std::time::{Duration, SystemTime};

use crate::executor::column;
use crate::interval::Interval;
use crate::{Error, Executor, MachineRow, Row};

const GET: &str = "SELECT * FROM once.action_get(machine => $1, id => $2)";

/// The state of a row and its action. If no lease is held, `holder`, `claimed_at` and `lease_left` are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionRecord {
    /// The status that the row has.
    pub status: String,
    /// The step of the last claim; `None` without a claim or after a finish.
    pub step_key: Option<String>,
    /// The requester of the last claim.
    pub requester: Option<String>,
    /// The name of the attempt that has the row.
    pub holder: Option<String>,
    /// When the row was claimed.
    pub claimed_at: Option<SystemTime>,
    /// The remaining time of the lease; zero after the lease expired.
    pub lease_left: Option<Duration>,
    /// The number of consecutive claims of this step without a finish.
    pub attempts: Option<i32>,
    /// The error of the last release, or of the last revert that failed.
    pub last_error: Option<String>,
    /// Whether the row's cancel flag is set.
    pub cancelling: bool,
    /// What happens next, and who does it, as text.
    pub next: String,
}

impl MachineRow {
    /// Shows why a row is stuck: who has it and for how long, what failed, and what happens next. `None` if
    /// there is no such row.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// use pg_once::ActionOptions;
    ///
    /// let job = machine.row(job);
    /// job.claim(&pool, "run", &ActionOptions::new().requester("worker")).await?;
    /// if let Some(record) = job.lease(&pool).await? {
    ///     assert_eq!((record.status.as_str(), record.attempts), ("running", Some(1)));
    ///     println!("{}", record.next);
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` without the right to observe.
    pub async fn lease<E: Executor>(&self, exec: &E) -> Result<Option<ActionRecord>, Error> {
        let rows = self.rows(exec, GET, &[]).await?;
        rows.first().map(ActionRecord::of_row).transpose()
    }
}

impl ActionRecord {
    fn of_row(row: &Row) -> Result<Self, Error> {
        let lease_left: Option<Interval> = column(row, "lease_left")?;
        Ok(Self {
            status: column(row, "status")?,
            step_key: column(row, "step_key")?,
            requester: column(row, "requester")?,
            holder: column(row, "holder")?,
            claimed_at: column(row, "claimed_at")?,
            lease_left: lease_left.map(|Interval(left)| left),
            attempts: column(row, "attempts")?,
            last_error: column(row, "last_error")?,
            cancelling: column(row, "cancelling")?,
            next: column(row, "next")?,
        })
    }
}
