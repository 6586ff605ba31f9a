//! Owns the list of a row's recorded moves.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::MachineRow;
use crate::executor::of_row;
use crate::{Error, Executor};

const HISTORY: &str = "SELECT * FROM once.machine_history(machine => $1, id => $2, max => $3)";

/// A move that a row has made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedMove {
    /// When the move was made.
    pub at: SystemTime,
    /// The status before.
    pub from_status: String,
    /// The status after.
    pub to_status: String,
    /// `transition`, `claim`, `finish`, `release`, `sweep`, `cancel`, or `by_hand` (an `UPDATE` with the guard on).
    pub how: String,
    /// The requester of the transition or claim; for a move that ended a claim, the requester of that claim.
    pub requester: Option<String>,
    /// The holder of the action's lease.
    pub holder: Option<String>,
    /// The database role that made the move.
    pub role: String,
}

impl MachineRow {
    /// Lists up to `max` (1 to 100000) recorded moves of this row, the newest first. A move is recorded if the
    /// machine's definition has `history` when the move is made.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, job| {
    /// # let mut definition: serde_json::Value = machine.get(&pool).await?.parse()?;
    /// # definition["history"] = "30 days".into();
    /// # pg_once::Machine::define(&pool, &definition.into()).await?;
    /// use pg_once::Transition;
    ///
    /// let job = machine.row(job);
    /// job.transition(&pool, &Transition::to("failed")).await?;
    /// let moves = job.history(&pool, 10).await?;
    /// assert_eq!((moves[0].from_status.as_str(), moves[0].how.as_str()), ("queued", "transition"));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine; `22023` for a bad `max`; `42501` without the right to observe.
    pub async fn history<E: Executor>(
        &self,
        exec: &E,
        max: i32,
    ) -> Result<Vec<RecordedMove>, Error> {
        let rows = self.rows(exec, HISTORY, &[(&max, Type::INT4)]).await?;
        rows.iter().map(RecordedMove::of_row).collect()
    }
}

of_row!(RecordedMove: at, from_status, to_status, how, requester, holder, role);
