//! What pg_once costs an idle server, its launcher and its worker together: under a thousandth of a core at the
//! default nap, told by the server's system.

use std::collections::BTreeSet;
use std::time::Duration;

use pg_once_tests::race::poll_async;
use tokio_postgres::Client;

use crate::world::{JOBS, WORKER, launch, show, until_swept};

/// once.janitor_naptime as it is unless somebody sets it, and here.
const DEFAULT_NAP: Duration = Duration::from_secs(10);
/// Of a core.
const BAR: f64 = 0.001;
/// What the two use between them is told in hundredths of a second: so many passes that a few do not matter.
const PASSES: usize = 25;

#[tokio::test]
async fn an_idle_launcher_and_its_worker_take_less_than_a_thousandth_of_a_core() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    // Something in every table that a pass looks at, nothing of it due.
    show(
        &client,
        "select once.topic_set('t', '{\"subscribers\": [\"a\", \"b\"]}');
         select once.outbox_emit('t', '{}', order_key => g::text) from generate_series(1, 100) as g;
         select count(*) from once.outbox_take('t', 'a', 10);
         select once.inbox_accept('s', 'm');
         select count(*) from generate_series(1, 100) as g, lateral once.key_claim('s', g::text);
         select count(*) from generate_series(1, 50) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 h')",
    )
    .await;
    until_swept(&client).await;
    let ours = ours(&client).await;
    assert_eq!(ours.len(), 2, "{ours:?}");
    let before = on_cpu(&ours);
    passes(&client, PASSES).await;
    let used = on_cpu(&ours) - before;
    assert_eq!(ours, self::ours(&client).await, "one was started anew");
    let share = used.as_secs_f64() / PASSES as f64 / DEFAULT_NAP.as_secs_f64();
    println!("an idle worker and its launcher take {share:.5} of a core");
    assert!(
        share < BAR,
        "{share:.5} of a core: {used:?} in {PASSES} passes"
    );
}

/// The processes of pg_once: `<pid> <what it is>`, the launcher and a worker for each database.
async fn ours(client: &Client) -> BTreeSet<String> {
    let sql = "select pid || ' ' || backend_type from pg_stat_activity where backend_type like 'pg_once%'";
    show(client, sql).await.lines().map(str::to_owned).collect()
}

/// Waits until the worker has ended so many passes: each time it says that it rests, it says since when. One that is
/// overlooked is waited for once more, at the worker's cost. The launcher looks once in a nap, as the worker does.
async fn passes(client: &Client, wanted: usize) {
    let sql = format!(
        "select extract(epoch from state_change) from pg_stat_activity
          where backend_type = '{WORKER}' and query ~ '^resting'"
    );
    let mut last = String::new();
    // The rest that it is at now is none of them.
    let mut rests = 0;
    poll_async("passes of an idle worker", async || {
        let since = show(client, &sql).await;
        if !since.is_empty() && since != last {
            (last, rests) = (since, rests + 1);
        }
        Ok((rests > wanted).then_some(()))
    })
    .await
    .unwrap();
}

/// How long these have run so far, all together.
fn on_cpu(processes: &BTreeSet<String>) -> Duration {
    let pids = processes.iter().filter_map(|p| p.split(' ').next());
    pids.map(on_cpu_of).sum()
}

/// To a hundredth of a second.
fn on_cpu_of(pid: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name before it may hold anything.
    let (_, numbers) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = numbers
        .split(' ')
        .skip(11)
        .take(2)
        .map(|number| number.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}
