//! A steady load for two minutes while somebody holds a transaction open all the time: a snapshot, or
//! a writer that has emitted one event. The end of the run beside its beginning, and beside pgmq.
//!
//! Invariant: the transaction is open from before the first event to after the last one, on both
//! sides; the open writer's event is delivered when it commits.

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use crate::database::{Database, SNAPSHOT};
use crate::measured::{Among, Asked, Case, Results, Runs, Series};
use crate::outbox::flow::{Flow, Flowed, Until};
use crate::outbox::place::Place;
use crate::outbox::side::{Keyed, Producer, Side, Worker};
use crate::table;

/// The last seconds, of the first ones.
const OF_FIRST: Asked = Asked::Throughput(0.9);
/// Of pgmq's last ones.
const OF_PGMQ: Asked = Asked::Throughput(20.0);
/// How many seconds "the first" and "the last" are, at most.
const ENDS: usize = 10;
/// A run of that length is what the bar beside pgmq is about.
const LONG: u32 = 120;

/// Who holds a transaction open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hold {
    Snapshot,
    Writer,
}

impl Hold {
    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "steady load, an old snapshot held open",
            Self::Writer => "steady load, a transaction open that has emitted",
        }
    }

    fn database(self) -> &'static str {
        match self {
            Self::Snapshot => "steady_snapshot",
            Self::Writer => "steady_writer",
        }
    }

    async fn begin(self, holder: &Client, side: Side, queue: &str) -> Result<()> {
        match self {
            Self::Snapshot => Ok(holder.batch_execute(SNAPSHOT).await?),
            Self::Writer => {
                holder.batch_execute("BEGIN").await?;
                let producer = Producer::new(side, holder, queue, Keyed::No).await?;
                producer.emit(holder, 1).await
            }
        }
    }
}

/// Both kinds of held transactions.
pub async fn all(database: &Database, results: &mut Results) -> Result<()> {
    database.set_autovacuum(true).await?;
    for hold in [Hold::Snapshot, Hold::Writer] {
        let (case, series) = one(database, hold).await?;
        results.cases.push(case);
        results.series.extend(series);
    }
    database.set_autovacuum(false).await
}

async fn one(database: &Database, hold: Hold) -> Result<(Case, Vec<Series>)> {
    let place = Place::make(database, hold.database()).await?;
    let seconds = database.settings.steady();
    let mut series = Vec::new();
    let mut runs = Vec::new();
    for &side in place.sides() {
        table::say(&format!("{}: {}, {seconds} s", hold.name(), side.name()));
        let flowed = load(&place, hold, side, seconds).await?;
        let (first, last) = ends(&flowed.per_second);
        let name = |end: &str| format!("{}, {end} {} s", side.name(), first.1);
        let (of_last, of_first) = match side {
            Side::Once => (None, Some(OF_FIRST)),
            Side::Pgmq => ((seconds >= LONG).then_some(OF_PGMQ), None),
        };
        let until = f64::from(seconds);
        let window = first.1 as f64;
        for (end, rate, bar, from) in [
            ("last", last.0, of_last, until - window),
            ("first", first.0, of_first, 1.0),
        ] {
            let mut run = Runs::none(&name(end), bar);
            run.push(rate, cpu_of(&flowed.spent, from, from + window));
            runs.push(run);
        }
        series.push(Series {
            what: hold.name().to_owned(),
            side: side.name().to_owned(),
            per_second: flowed.per_second,
        });
    }
    place.remove().await?;
    let case = Case::of(hold.name(), Among::Events(0), runs).counting("events");
    Ok((case, series))
}

async fn load(place: &Place<'_>, hold: Hold, side: Side, seconds: u32) -> Result<Flowed> {
    let queue = "steady";
    side.make(&place.client, queue).await?;
    let holder = place.connect().await?;
    hold.begin(&holder, side, queue).await?;
    let flow = Flow {
        side,
        queue,
        producers: 2,
        workers: 2,
        by: 100,
        until: Until::Seconds(seconds),
    };
    let flowed = flow.run(place).await?;
    holder.batch_execute("COMMIT").await?;
    let worker = Worker::new(side, place.connect().await?, queue, 100).await?;
    let late = worker.take_and_ack().await?;
    let expected = u64::from(hold == Hold::Writer);
    ensure!(
        late == expected,
        "{}: {}: {late} events came after the commit, not {expected}",
        hold.name(),
        side.name()
    );
    side.discard(&place.client, queue).await?;
    Ok(flowed)
}

/// Events per second of the first and the last seconds, and how many seconds these are. The very
/// first second is left out: connections warm up in it.
fn ends(per_second: &[f64]) -> ((f64, usize), (f64, usize)) {
    let whole = per_second.get(1..).unwrap_or_default();
    let n = ENDS.min(whole.len() / 3).max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / n as f64;
    let first = mean(&whole[..n.min(whole.len())]);
    let last = mean(&whole[whole.len().saturating_sub(n)..]);
    ((first, n), (last, n))
}

/// CPU microseconds of the server per event between two moments: a busy machine does not change them.
fn cpu_of(spent: &[(f64, f64, f64)], from: f64, to: f64) -> Option<f64> {
    let first = spent.iter().find(|(at, ..)| *at >= from)?;
    let last = spent.iter().rev().find(|(at, ..)| *at <= to)?;
    (last.1 > first.1).then(|| (last.2 - first.2) / (last.1 - first.1))
}
