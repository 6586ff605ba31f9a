//! What was measured: runs, their ratios, and the bars that the ratios have to pass.
//!
//! Invariant: a ratio is the median over rounds of ours to the other side's of the same round.

use anyhow::Result;
use serde::Serialize;

use crate::cost::Cost;
use crate::database::Database;
use crate::settings::Settings;
use crate::table;

/// What the ratio of ours to another side has to be at least.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Throughput(f64),
    Cpu(f64),
}

/// A ratio that was asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bar {
    pub at_least: f64,
    /// Of the CPU ratio, not of the throughput's.
    pub by_cpu: bool,
    pub met: bool,
}

/// One side of a case; ours is the first of its case.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub name: String,
    /// What a client runs for each call, as pgbench's script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Calls (of two that belong together: pairs) per second, of each round.
    pub per_second: Vec<f64>,
    /// CPU microseconds of the server's backends per call, of each round.
    pub cpu_us: Vec<f64>,
    pub median_per_second: f64,
    pub median_cpu_us: Option<f64>,
    /// Ours divided by this side's throughput; none for ours.
    pub ratio: Option<f64>,
    /// This side's CPU time divided by ours: steadier than throughput on a machine that others use.
    pub cpu_ratio: Option<f64>,
    pub bar: Option<Bar>,
    /// Of its callers, in all rounds; none where they were not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// How large the tables of a case are.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Among {
    FinishedKeys(u64),
    Rows(u64),
    Events(u64),
}

/// A number that is not a ratio to another side, and what it may be.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    pub at_most: Option<f64>,
    /// None where nothing is asked for.
    pub met: Option<bool>,
}

impl Figure {
    pub fn of(what: String, value: f64, unit: &'static str, at_most: Option<f64>) -> Self {
        Self {
            what,
            value,
            unit,
            at_most,
            met: at_most.map(|most| value <= most),
        }
    }

    /// A number of bytes.
    pub fn size(what: String, bytes: f64, at_most: Option<f64>) -> Self {
        Self::of(what, bytes / 1e6, "MB", at_most.map(|most| most / 1e6))
    }
}

/// How long callers waited, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    pub what: String,
    pub callers: usize,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Latency {
    /// Of the callers' own times; none of nobody.
    pub fn of(what: String, times: Vec<f64>) -> Option<Self> {
        Some(Self {
            what,
            callers: times.len(),
            p50: quantile(times.clone(), 0.5)?,
            p99: quantile(times.clone(), 0.99)?,
            p999: quantile(times, 0.999)?,
        })
    }

    /// As they are told.
    pub fn times(&self) -> [String; 3] {
        [self.p50, self.p99, self.p999].map(|time| table::amount(time, "ms"))
    }
}

/// The middle half of many ratios.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub lower_quartile: f64,
    pub median: f64,
    pub upper_quartile: f64,
}

impl Spread {
    /// Of the rounds' own ratios; none of nothing.
    pub fn of(above: &[f64], below: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
        let at = |share| quantile(ratios.clone(), share);
        Some(Self {
            lower_quartile: at(0.25)?,
            median: at(0.5)?,
            upper_quartile: at(0.75)?,
        })
    }
}

/// Two sides that differ in one thing, or in nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub what: String,
    /// One side's throughput divided by the other's.
    pub throughput: Spread,
    /// The other side's server CPU time per call divided by the one's.
    pub cpu: Option<Spread>,
    /// The median of the throughput is at least the lower quartile of sides that differ in nothing.
    pub bar: Option<Bar>,
}

/// What was delivered in each second of a long run.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub what: String,
    pub side: String,
    pub per_second: Vec<f64>,
}

/// A case with all its sides.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    pub name: String,
    #[serde(flatten)]
    pub among: Among,
    /// What is counted: calls, or events.
    pub unit: &'static str,
    pub sides: Vec<Side>,
}

/// Everything that the run showed.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub postgresql: String,
    pub extension: String,
    pub cores: usize,
    pub clients: u32,
    pub rounds: u32,
    pub seconds_per_run: u32,
    pub quick: bool,
    pub cases: Vec<Case>,
    pub costs: Vec<Cost>,
    pub figures: Vec<Figure>,
    pub series: Vec<Series>,
    pub comparisons: Vec<Comparison>,
    pub latencies: Vec<Latency>,
    pub left_out: Vec<String>,
    pub seconds: u64,
}

impl Results {
    /// An empty one, with what the run was made on.
    pub async fn of(database: &Database, settings: &Settings) -> Result<Self> {
        let row = database
            .client
            .query_one(
                "SELECT split_part(version(), ' on ', 1), extversion FROM pg_extension \
                 WHERE extname = 'pg_once'",
                &[],
            )
            .await?;
        Ok(Self {
            postgresql: row.get(0),
            extension: row.get(1),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            clients: settings.clients,
            rounds: settings.rounds(),
            seconds_per_run: settings.seconds(),
            quick: settings.quick,
            cases: Vec::new(),
            costs: Vec::new(),
            figures: Vec::new(),
            series: Vec::new(),
            comparisons: Vec::new(),
            latencies: Vec::new(),
            left_out: Vec::new(),
            seconds: 0,
        })
    }

    /// Those of the cases' sides, and the others.
    pub fn all_latencies(&self) -> Vec<&Latency> {
        let sides = self.cases.iter().flat_map(|case| &case.sides);
        let of_sides = sides.filter_map(|side| side.latency.as_ref());
        of_sides.chain(&self.latencies).collect()
    }

    /// How many bars there are, and how many were missed.
    pub fn bars(&self) -> (usize, usize) {
        let bars = || {
            let sides = self.cases.iter().flat_map(|case| &case.sides);
            let ratios = sides.filter_map(|side| side.bar).map(|bar| bar.met);
            let compared = self.comparisons.iter().filter_map(|c| c.bar);
            ratios
                .chain(self.figures.iter().filter_map(|figure| figure.met))
                .chain(compared.map(|bar| bar.met))
        };
        (bars().count(), bars().filter(|met| !met).count())
    }
}

/// What the rounds showed of one side.
#[derive(Clone, Debug)]
pub struct Runs {
    pub name: String,
    pub script: Option<String>,
    pub per_second: Vec<f64>,
    pub cpu_us: Vec<f64>,
    /// The milliseconds of callers.
    pub times: Vec<f64>,
    pub asked: Option<Asked>,
}

impl Case {
    /// The case of these runs, ours first.
    pub fn of(name: &str, among: Among, runs: Vec<Runs>) -> Self {
        let ours = runs.first().cloned();
        let sides = runs.into_iter().enumerate();
        Self {
            name: name.to_owned(),
            among,
            unit: "calls",
            sides: sides
                .map(|(at, runs)| {
                    let what = format!("{name}{}: {}", table::size(among), runs.name);
                    runs.side(what, ours.as_ref().filter(|_| at > 0))
                })
                .collect(),
        }
    }

    /// The same, where what was counted are not calls.
    pub fn counting(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }
}

impl Runs {
    /// Of nobody yet.
    pub fn none(name: &str, asked: Option<Asked>) -> Self {
        Self {
            name: name.to_owned(),
            script: None,
            per_second: Vec::new(),
            cpu_us: Vec::new(),
            times: Vec::new(),
            asked,
        }
    }

    /// One more round.
    pub fn push(&mut self, per_second: f64, cpu_us: Option<f64>) {
        self.per_second.push(per_second);
        self.cpu_us.extend(cpu_us);
    }

    fn side(self, what: String, ours: Option<&Runs>) -> Side {
        let ratio = ours.and_then(|ours| ratio_of(&ours.per_second, &self.per_second));
        let cpu_ratio = ours.and_then(|ours| ratio_of(&self.cpu_us, &ours.cpu_us));
        let bar = self.asked.and_then(|asked| {
            let (ratio, at_least, by_cpu) = match asked {
                Asked::Throughput(at_least) => (ratio?, at_least, false),
                Asked::Cpu(at_least) => (cpu_ratio?, at_least, true),
            };
            Some(Bar {
                at_least,
                by_cpu,
                met: ratio >= at_least,
            })
        });
        Side {
            name: self.name,
            script: self.script,
            median_per_second: median(self.per_second.clone()).unwrap_or_default(),
            median_cpu_us: median(self.cpu_us.clone()),
            ratio,
            cpu_ratio,
            bar,
            latency: Latency::of(what, self.times),
            per_second: self.per_second,
            cpu_us: self.cpu_us,
        }
    }
}

/// The median of the rounds' own ratios.
fn ratio_of(above: &[f64], below: &[f64]) -> Option<f64> {
    median(above.iter().zip(below).map(|(a, b)| a / b).collect())
}

/// The middle value; none of nothing.
pub fn median(values: Vec<f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value that this share of the others is below, between two of them where it falls there; none of nothing.
pub fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let place = share * values.len().checked_sub(1)? as f64;
    let (below, above) = (place.floor(), place.ceil());
    let (low, high) = (values[below as usize], values[above as usize]);
    Some(low + (high - low) * (place - below))
}
