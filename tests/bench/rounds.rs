//! A case run in rounds: in each round every side runs once, each time another one first, so that
//! neither a growing table nor a busy machine favours one of them.
//!
//! Invariant: a figure is only taken of calls that did their work, where a contender says how that shows.

use anyhow::{Result, ensure};

use crate::database::{Database, TABLES};
use crate::jobs::Fill;
use crate::measured::{Among, Asked, Case, Runs};
use crate::pgbench::{self, Script, Until};
use crate::table;

/// Further rounds, for the callers' times alone: their log makes the clients slower.
const TIMED: usize = 3;

/// One side of a case.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    pub name: &'static str,
    /// SQL before each of its runs, where sides share a table: what makes it theirs.
    pub setup: &'static str,
    pub script: Script<'static>,
    pub asked: Option<Asked>,
    /// How it shows that every call did its work.
    pub proof: Option<Proof>,
}

/// A number that grows with every call.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    pub query: &'static str,
    pub per_call: u32,
}

/// What is done before each round.
#[derive(Clone, Copy, Debug)]
pub enum Before {
    Nothing,
    EmptyKeys,
    Fill(Fill),
}

/// A case: the contenders, ours first, and the tables that they find.
#[derive(Clone, Debug)]
pub struct Contest {
    pub name: &'static str,
    pub among: Among,
    /// What the scripts know as :stock.
    pub stock: u64,
    pub before_round: Before,
    pub until: Until,
    pub contenders: Vec<Contender>,
}

impl Contest {
    /// Runs all rounds.
    pub async fn run(&self, database: &Database) -> Result<Case> {
        table::begin(self.name, self.among);
        let mut runs: Vec<Runs> = self.contenders.iter().map(Contender::no_runs).collect();
        let rounds = database.settings.rounds() as usize;
        for round in 0..rounds + TIMED {
            let timed = round >= rounds;
            self.before_round.make(database).await?;
            for turn in 0..self.contenders.len() {
                let at = (round + turn) % self.contenders.len();
                let run = self.contenders[at].run(database, self, timed).await?;
                match timed {
                    true => runs[at].times.extend(run.times),
                    false => runs[at].push(run.per_second, run.cpu_us),
                }
            }
        }
        Ok(Case::of(self.name, self.among, runs))
    }
}

impl Before {
    async fn make(&self, database: &Database) -> Result<()> {
        match self {
            Before::Nothing => Ok(()),
            Before::EmptyKeys => {
                let truncate = format!("TRUNCATE {}", TABLES.join(", "));
                Ok(database.client.batch_execute(&truncate).await?)
            }
            Before::Fill(fill) => fill.make(database).await,
        }
    }
}

impl Contender {
    pub fn of(name: &'static str, script: Script<'static>, asked: Option<Asked>) -> Self {
        Self {
            name,
            setup: "",
            script,
            asked,
            proof: None,
        }
    }

    async fn run(
        &self,
        database: &Database,
        contest: &Contest,
        timed: bool,
    ) -> Result<pgbench::Run> {
        database.client.batch_execute(self.setup).await?;
        let before = self.worked(database).await?;
        let run = if timed {
            pgbench::run_timed
        } else {
            pgbench::run
        };
        let run = tokio::task::block_in_place(|| {
            run(database, self.script, contest.stock, contest.until)
        })?;
        let grown = self.worked(database).await? - before;
        let expected = self
            .proof
            .map_or(0.0, |p| run.count * f64::from(p.per_call));
        ensure!(
            grown as f64 == expected,
            "{}, {}: {grown} of {expected} moves were made",
            contest.name,
            self.name
        );
        Ok(run)
    }

    async fn worked(&self, database: &Database) -> Result<i64> {
        match self.proof {
            Some(proof) => database.number(proof.query).await,
            None => Ok(0),
        }
    }

    fn no_runs(&self) -> Runs {
        let script = [self.setup, self.script.text].join("\n");
        Runs {
            script: Some(script.trim().to_owned()),
            ..Runs::none(self.name, self.asked)
        }
    }
}
