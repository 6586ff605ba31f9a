//! One request twelve times at once, through the client: how long a duplicate takes that waits for the first one's
//! answer, and one that does not.
//!
//! Invariant: of each twelve one ran, and the others have its bytes, or a 409, or the case fails.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use deadpool_postgres::{Manager, Pool};
use pg_once::http::{Answer, RETRY_AFTER};
use pg_once::{Json, Key, Response, Scope};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::database::Database;
use crate::measured::Latency;
use crate::table;

const AT_ONCE: usize = 12;
/// How long the work of the first one takes.
const WORK: Duration = Duration::from_millis(50);
/// Longer than any answer takes.
const LONG: Duration = Duration::from_secs(10);

/// Both ways, in turns.
pub async fn measure(database: &Database) -> Result<Vec<Latency>> {
    table::say("twelve at once, with and without a wait");
    let manager = Manager::new(database.url().parse()?, NoTls);
    let pool = Pool::builder(manager).max_size(AT_ONCE).build()?;
    let until = database.settings.seconds() * database.settings.rounds();
    let (begin, mut waiting, mut refused) = (Instant::now(), vec![], vec![]);
    // The first bursts open the connections.
    burst(&pool, LONG).await?;
    burst(&pool, Duration::ZERO).await?;
    while begin.elapsed() < Duration::from_secs(until.into()) {
        waiting.extend(burst(&pool, LONG).await?);
        refused.extend(burst(&pool, Duration::ZERO).await?);
    }
    let what = |end| format!("{AT_ONCE} at once, 50 ms of work: {end}");
    let all = [
        (what("a duplicate that waits is answered"), waiting),
        (what("a duplicate that does not is refused"), refused),
    ];
    Ok(all
        .into_iter()
        .filter_map(|(what, times)| Latency::of(what, times))
        .collect())
}

/// One request, twelve times at once: the milliseconds of the eleven duplicates.
async fn burst(pool: &Pool, wait: Duration) -> Result<Vec<f64>> {
    let key = Scope::new("bench.waits").key(&Uuid::new_v4().to_string());
    let mut requests = JoinSet::new();
    for _ in 0..AT_ONCE {
        requests.spawn(request(pool.clone(), key.clone(), wait));
    }
    let (mut ran, mut duplicates) = (vec![], vec![]);
    for ended in requests.join_all().await {
        let (here, answer, time) = ended?;
        match here {
            true => ran.push(answer.body),
            false => duplicates.push((answer, time)),
        }
    }
    ensure!(ran.len() == 1, "{} of {AT_ONCE} ran", ran.len());
    let as_it_should = |answer: &Answer| match wait.is_zero() {
        true => answer.status == 409 && answer.header(RETRY_AFTER) == Some("1"),
        false => answer.status == 201 && answer.body == ran[0],
    };
    let bad = duplicates.iter().find(|(answer, _)| !as_it_should(answer));
    ensure!(bad.is_none(), "a duplicate has another answer: {bad:?}");
    Ok(duplicates.into_iter().map(|(_, time)| time).collect())
}

/// Whether it ran here, its answer, and its milliseconds.
async fn request(pool: Pool, key: Key, wait: Duration) -> Result<(bool, Answer, f64)> {
    let begin = Instant::now();
    let body = Json::of(&Uuid::new_v4().to_string())?;
    let mut here = false;
    let outcome = key.run(&pool).wait(wait).run(|_| {
        here = true;
        let answer = Response::new(201).with_body(body.as_str());
        async {
            tokio::time::sleep(WORK).await;
            Ok(answer?.into())
        }
    });
    let answer = Answer::of(&outcome.await?);
    Ok((here, answer, begin.elapsed().as_secs_f64() * 1e3))
}
