//! How long and how large: the quick form of a few minutes, and the full one.

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

/// pg_once against raw SQL, over real connections to a private PostgreSQL.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub struct Settings {
    /// A few minutes: short rounds, and no table of ten million keys.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each case (5; of the counters 20); ratios are the median over them. Ten times as many first calls.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Seconds of each run (2 when quick, 5 otherwise).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Finished keys in place, for the cases that are measured again with them.
    #[arg(long, value_delimiter = ',')]
    pub keys: Option<Vec<u64>>,
    /// Events that pass where a million are asked for; ten times as many where ten million are
    /// (100,000 when quick).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1000..))]
    pub events: Option<u64>,
    /// Seconds of a steady load (20 when quick, 120 otherwise).
    #[arg(long, value_parser = clap::value_parser!(u32).range(4..))]
    pub steady: Option<u32>,
    /// The machines' cases to run, by the words that begin them (transition, history, guard, action, refund, written).
    #[arg(long, value_delimiter = ',')]
    pub machines: Option<Vec<String>>,
    /// The outbox's cases to run, by the words that begin them (take, emit, keys, idle, steady, down, dead, passed, size).
    #[arg(long, value_delimiter = ',')]
    pub outbox: Option<Vec<String>>,
    /// pgmq's SQL file; without it pgmq is left out.
    #[arg(long, default_value = "target/tools/pgmq/pgmq/sql/pgmq.sql")]
    pub pgmq_sql: PathBuf,
    /// Only the sweeps of expired keys and of large answers, and claims beside them: with this many finished keys in
    /// place, and a tenth as many expired ones. A missed bar ends the program with status 1.
    #[arg(long, value_parser = clap::value_parser!(u64).range(100_000..))]
    pub reap_among: Option<u64>,
    /// Only the cases of one noun (first: the first call of a fresh backend). What counting claims costs, an idle
    /// janitor, and what claims write between checkpoints (wal), are measured only when they are named here. If the
    /// first two cost more than they may, the program ends with status 1.
    #[arg(long)]
    pub only: Option<Noun>,
    /// Print the scripts behind the table, too; results.json has them in any case.
    #[arg(long)]
    pub queries: bool,
    /// Where the results are written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Noun {
    Keys,
    Machines,
    Outbox,
    Waits,
    First,
    Counters,
    Idle,
    Wal,
}

impl Settings {
    /// Whether the cases of `noun` are asked for.
    pub fn wants(&self, noun: Noun) -> bool {
        self.only.is_none_or(|only| only == noun)
    }

    /// Whether only one bar is asked for, and missing it is a failure.
    pub fn asks_for_a_bar(&self) -> bool {
        self.reap_among.is_some() || matches!(self.only, Some(Noun::Counters | Noun::Idle))
    }

    /// Rounds of each case.
    pub fn rounds(&self) -> u32 {
        let usual = match self.only {
            Some(Noun::Counters) => 20,
            _ => 5,
        };
        self.rounds.unwrap_or(usual)
    }

    /// Seconds of one run.
    pub fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 2 } else { 5 })
    }

    /// Events where a million are asked for.
    pub fn events(&self) -> u64 {
        self.events
            .unwrap_or(if self.quick { 100_000 } else { 1_000_000 })
    }

    /// Seconds of a steady load.
    pub fn steady(&self) -> u32 {
        self.steady.unwrap_or(if self.quick { 20 } else { 120 })
    }

    /// Whether a group of the machines' cases is asked for.
    pub fn wants_of_machines(&self, group: &str) -> bool {
        has(self.machines.as_ref(), group)
    }

    /// Whether a group of the outbox's cases is asked for.
    pub fn wants_of_outbox(&self, group: &str) -> bool {
        has(self.outbox.as_ref(), group)
    }

    /// pgmq's SQL file, where it is here.
    pub fn pgmq(&self) -> Option<&Path> {
        self.pgmq_sql.exists().then_some(&self.pgmq_sql)
    }

    /// The table sizes, smallest first.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes = self.keys.clone().unwrap_or_else(|| {
            let all = [100_000, 1_000_000, 10_000_000];
            all[..if self.quick { 2 } else { 3 }].to_vec()
        });
        sizes.sort_unstable();
        sizes
    }
}

/// Without names every group is asked for.
fn has(named: Option<&Vec<String>>, group: &str) -> bool {
    named.is_none_or(|groups| groups.iter().any(|name| name == group))
}
