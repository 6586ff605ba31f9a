//! How long and how large: the quick form of a few minutes, and the full one.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// pg_once against raw SQL, over real connections to a private PostgreSQL.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub struct Settings {
    /// A few minutes: short rounds, and no table of ten million keys.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each case; ratios are the median over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each run (2 when quick, 5 otherwise).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Finished keys in place, for the cases that are measured again with them.
    #[arg(long, value_delimiter = ',')]
    pub keys: Option<Vec<u64>>,
    /// Only the cases of one noun.
    #[arg(long)]
    pub only: Option<Noun>,
    /// Where the results are written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Noun {
    Keys,
    Machines,
}

impl Settings {
    /// Whether the cases of `noun` are asked for.
    pub fn wants(&self, noun: Noun) -> bool {
        self.only.is_none_or(|only| only == noun)
    }

    /// Seconds of one run.
    pub fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 2 } else { 5 })
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
