//! What an idle worker costs: under a thousandth of a core at the default nap, told by the server's system.

use crate::world::{JOBS, launch, show, until_swept, worker};
use std::time::{Duration, Instant};

/// once.janitor_naptime as it is unless somebody sets it, and here.
const DEFAULT_NAP: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_millis(200);
/// Of a core.
const BAR: f64 = 0.001;

#[tokio::test]
async fn an_idle_worker_takes_less_than_a_thousandth_of_a_core() {
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
    let pid = worker(&client, "a").await;
    let (before, begin) = (on_cpu(pid), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = on_cpu(pid) - before;
    let passes = begin.elapsed().as_secs_f64() / NAP.as_secs_f64();
    let share = used.as_secs_f64() / passes / DEFAULT_NAP.as_secs_f64();
    assert!(
        share < BAR,
        "{share:.5} of a core: {used:?} in {passes:.0} passes"
    );
}

/// How long a process has run so far, to a hundredth of a second.
fn on_cpu(pid: i32) -> Duration {
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
