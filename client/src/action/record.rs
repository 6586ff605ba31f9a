//! Owns the view of a row: who has it, and what happens next.

use std::time::{Duration, SystemTime};

use crate::executor::column;
use crate::interval::Interval;
use crate::{Error, Executor, MachineRow, Row};

const GET: &str = "SELECT * FROM once.action_get(machine => $1, id => $2)";

/// Where a row stands. Without a lease the fields about the lease are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionRecord {
    /// The status that the row has.
    pub status: String,
    /// The step that the row is claimed for.
    pub step_key: Option<String>,
    /// The requester that the row is claimed for.
    pub requester: Option<String>,
    /// The name of the attempt.
    pub holder: Option<String>,
    /// When the row was claimed.
    pub claimed_at: Option<SystemTime>,
    /// The time left of the lease; zero after it expired.
    pub lease_left: Option<Duration>,
    /// Claims of this step since the row last finished an action.
    pub attempts: Option<i32>,
    /// What failed last.
    pub last_error: Option<String>,
    /// The row's cancel flag is set.
    pub cancelling: bool,
    /// What happens next, and by whom: one sentence.
    pub next: String,
}

impl MachineRow {
    /// Shows who has this row, for how long, what failed and what happens next: why it is stuck. `None` if
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
