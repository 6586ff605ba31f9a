//! Owns a machine's definition, and the checks that it fits its tables and that sweeps cover the machine.

use tokio_postgres::types::Type;

use super::Machine;
use crate::executor::{call, of_row, only, value};
use crate::{Error, Executor, Json};

const DEFINE: &str = "SELECT once.machine_define(definition => $1)";
const GET: &str = "SELECT once.machine_get(machine => $1)";
const DROP: &str = "SELECT once.machine_drop(machine => $1)";
const CHECK: &str = "SELECT * FROM once.machine_check(machine => $1)";
const ASSERT: &str = "SELECT once.machine_assert()";
const GUARD: &str = "SELECT once.machine_guard(machine => $1, enabled => $2)";

/// A problem that [`Machine::check`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The machine's name.
    pub machine: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Machine {
    /// Declares a machine, or replaces its definition. Returns the stored definition.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
    /// # fn main() { with_database(async |pool, key| {
    /// use pg_once::{Json, Machine};
    ///
    /// # let table = format!("doc_{}", key.replace('-', ""));
    /// # let create = format!("CREATE TABLE {table} (id bigint PRIMARY KEY, status text NOT NULL)");
    /// # pool.get().await?.batch_execute(&create).await?;
    /// # let name = &table;
    /// let definition = Json::of(&serde_json::json!({
    ///     "machine": name, "table": table, "id": "id", "status": "status",
    ///     "status_types": ["draft", "sent"], "terminal": ["sent"],
    ///     "transitions": [{"from": ["draft"], "to": "sent"}],
    /// }))?;
    /// let stored = Machine::define(&pool, &definition).await?;
    /// assert_eq!(stored, Machine::new(name).get(&pool).await?);
    /// # Machine::new(name).drop(&pool).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON003` with all faults of the definition ([`Error::faults`]); `42501` if the table is not the caller's; `55006`
    /// if a held lease or an open teardown needs what the new definition changes.
    pub async fn define<E: Executor>(exec: &E, definition: &Json) -> Result<Json, Error> {
        let args = [(definition as _, Type::JSON)];
        value(&only(exec.query(DEFINE, &args).await?)?)
    }

    /// Returns the stored definition, with the present names of the tables.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` if it has another owner.
    pub async fn get<E: Executor>(&self, exec: &E) -> Result<Json, Error> {
        value(&only(call(exec, GET, &[self.as_str()], &[]).await?)?)
    }

    /// Drops the machine and its guard. The records of refunds stay.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` if it has another owner; `55006` while one of its rows is leased.
    pub async fn drop<E: Executor>(&self, exec: &E) -> Result<(), Error> {
        call(exec, DROP, &[self.as_str()], &[]).await.map(drop)
    }

    /// Lists problems, such as a table that does not fit the definition, or a claim state that no sweep covers.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, machine, _job| {
    /// for finding in machine.check(&pool).await? {
    ///     eprintln!("{}: {}", finding.machine, finding.problem);
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `42704` if there is no such machine.
    pub async fn check<E: Executor>(&self, exec: &E) -> Result<Vec<Finding>, Error> {
        findings(exec, Some(self.as_str())).await
    }

    /// [`Machine::check`] for all machines, also those of other owners.
    ///
    /// # Errors
    /// Any error of the database.
    pub async fn check_all<E: Executor>(exec: &E) -> Result<Vec<Finding>, Error> {
        findings(exec, None).await
    }

    /// Fails if a machine that the caller may use has a claim state without a sweep. Call this when a service starts.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));
    /// # fn main() { with_machine(async |pool, _machine, _job| {
    /// use pg_once::{Kind, Machine};
    ///
    /// match Machine::assert_covered(&pool).await {
    ///     Ok(()) => println!("a sweep covers every claim state"),
    ///     Err(error) if error.kind() == Kind::UncoveredClaimState => println!("not booting: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON004`; the error names the claim states that no sweep covers, and their machines.
    pub async fn assert_covered<E: Executor>(exec: &E) -> Result<(), Error> {
        exec.query(ASSERT, &[]).await.map(drop)
    }

    /// Turns the guard on or off. Its triggers on the machine's tables refuse undeclared changes.
    ///
    /// # Errors
    /// `42704` if there is no such machine; `42501` if a table is not the caller's.
    pub async fn guard<E: Executor>(&self, exec: &E, enabled: bool) -> Result<(), Error> {
        let own = [(&enabled as _, Type::BOOL)];
        call(exec, GUARD, &[self.as_str()], &own).await.map(drop)
    }
}

async fn findings<E: Executor>(exec: &E, machine: Option<&str>) -> Result<Vec<Finding>, Error> {
    let args = [(&machine as _, Type::TEXT)];
    let rows = exec.query(CHECK, &args).await?;
    rows.iter().map(Finding::of_row).collect()
}

of_row!(Finding: machine, problem, hint);
