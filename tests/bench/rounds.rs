//! Interleaved rounds: each side once per round, in an order that turns with the round, so that
//! neither a growing table nor a busy machine favours one of them.

use anyhow::Result;

use crate::database::{Database, TABLES};
use crate::measured::{Case, Runs};
use crate::pgbench::{self, Script, Until};
use crate::table;

/// One side of a case.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    pub name: &'static str,
    pub script: Script<'static>,
    /// The ratio of ours to this one that is asked for.
    pub at_least: Option<f64>,
}

/// A case: the contenders, ours first, and the table that they find.
#[derive(Clone, Debug)]
pub struct Contest {
    pub name: &'static str,
    pub finished_keys: u64,
    /// Whether every round begins with empty tables.
    pub empty_tables: bool,
    pub contenders: Vec<Contender>,
}

impl Contest {
    /// Runs all rounds.
    pub async fn run(&self, database: &Database) -> Result<Case> {
        table::begin(self.name, self.finished_keys);
        let mut runs: Vec<Runs> = self.contenders.iter().map(Contender::no_runs).collect();
        for round in 0..database.settings.rounds as usize {
            if self.empty_tables {
                let truncate = format!("TRUNCATE {}", TABLES.join(", "));
                database.client.batch_execute(&truncate).await?;
            }
            for turn in 0..self.contenders.len() {
                let at = (round + turn) % self.contenders.len();
                let until = Until::Seconds(database.settings.seconds());
                let run = tokio::task::block_in_place(|| {
                    let script = self.contenders[at].script;
                    pgbench::run(database, script, self.finished_keys, until)
                })?;
                runs[at].per_second.push(run.per_second);
                runs[at].cpu_us.extend(run.cpu_us);
            }
        }
        Ok(Case::of(self.name, self.finished_keys, runs))
    }
}

impl Contender {
    fn no_runs(&self) -> Runs {
        Runs {
            name: self.name,
            per_second: Vec::new(),
            cpu_us: Vec::new(),
            at_least: self.at_least,
        }
    }
}
