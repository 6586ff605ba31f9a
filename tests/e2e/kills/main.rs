//! Kill -9 of random backends, of the janitor's worker and of the postmaster during a mixed load of everything:
//! no acknowledged result is lost, nothing happens twice, no lease is stuck, every invariant holds.
//!
//! 10 kills; 100 with PG_ONCE_LONG=1.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../janitor/world.rs"]
mod janitor;
#[path = "../load/mod.rs"]
mod load;
mod planted;
mod victim;

use load::Load;
use load::invariants::{When, violated};
use pg_once_tests::{Cluster, is_long};
use victim::{Chance, Victim};

const DATABASE: &str = "shop";

/// A server with the background worker.
async fn server() -> Cluster {
    let cluster = janitor::preloaded(DATABASE)
        .setting("restart_after_crash", "on")
        .setting("once.janitor_naptime", "1s")
        .launch()
        .unwrap();
    cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    cluster
}

/// One worker at a time does every task, and doctor() has nothing to say of that.
async fn assert_janitor_is_at_work(cluster: &Cluster) {
    let client = cluster.connect(DATABASE).await.unwrap();
    janitor::until_swept(&client).await;
    let workers = format!(
        "select count(*) <= 1 from pg_stat_activity where backend_type = '{}'",
        janitor::WORKER
    );
    assert_eq!(janitor::show(&client, &workers).await, "t");
    let complaints =
        "select problem from once.doctor() where problem ~ 'janitor|sweep|background worker'";
    janitor::until(&client, complaints, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_and_nothing_happens_twice_whoever_is_killed() {
    let kills = if is_long() { 100 } else { 10 };
    let mut cluster = server().await;
    assert_janitor_is_at_work(&cluster).await;
    let load = Load::prepare(cluster.front_url(DATABASE).unwrap()).await;
    let mut running = load.start();
    let mut chance = Chance::new();
    println!("kills: {kills}, seed {}", chance.seed);
    running.goes_on_for(300).await;
    let mut crashes = 0;
    for round in 1..=kills {
        let victim = Victim::of_round(round, &mut chance);
        crashes += victim.kill(&mut cluster, &mut chance).await;
        running.goes_on_for(150).await;
        let session = load.door.enter().await;
        let violated = violated(&session, When::Always).await.unwrap();
        assert!(
            violated.is_empty(),
            "after kill {round}, {victim:?}:\n{}",
            violated.join("\n")
        );
        if round % 10 == 0 {
            println!(
                "{round} kills, {} statements answered",
                load.door.answered()
            );
        }
    }
    assert_eq!(
        crashes, kills,
        "as the server tells, and as it was asked for"
    );
    running.settle().await;
    let load = running.end().await;
    load.assert_whole().await;
    assert_janitor_is_at_work(&cluster).await;
}
