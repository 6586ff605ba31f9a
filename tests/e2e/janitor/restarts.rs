//! A worker that ended for a good reason is back soon, however often that happens.

use crate::world::{launch, show, until, until_swept, worker};
use std::time::{Duration, Instant};

/// Before the launcher starts one again, and as much for a busy machine; a third restart that counted as a failure to
/// come up would take 20 s.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn settings_that_change_again_and_again_take_the_worker_away_no_longer_each_time() {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    for minutes in 1..=4 {
        until_swept(&client).await;
        let old = worker(&client, "a").await;
        let begin = Instant::now();
        show(
            &client,
            &format!("alter database a set once.janitor_grace = '{minutes} min'"),
        )
        .await;
        let gone = format!("select count(*) from pg_stat_activity where pid = {old}");
        until(&client, &gone, "0").await;
        worker(&client, "a").await;
        let took = begin.elapsed();
        assert!(took < SOON, "change {minutes}: {took:?}");
    }
}
