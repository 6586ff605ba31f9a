//! What breaks beside the program: every function under cancels, terminations, savepoints, prepared transactions,
//! changes of the tables and kills; a disk that runs full; a network that is cut in the middle of each call.
//!
//! `make test-long ARGS=faults` runs them (PG_ONCE_LONG=1); `cargo test --test faults -- --ignored` takes seconds.
//! README.md has the recipes for what is tried by hand. PG_ONCE_SEED and PG_ONCE_FUZZ_SECONDS choose another fuzz.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod disk;
mod disturb;
mod end;
mod fuzz;
#[path = "../janitor/world.rs"]
mod janitor;
#[path = "../load/mod.rs"]
mod load;
mod network;
mod proxy;
#[path = "../kills/victim.rs"]
mod victim;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuzz::Fuzz;
use load::Load;
use pg_once_tests::playground::Playground;
use pg_once_tests::{Cluster, is_long, pages};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use victim::{Chance, Victim};

/// The fuzz's own.
const DATABASE: &str = "fuzz";
/// Where the mixed load is, whose clients keep to the protocol: it has the invariants of the whole system.
const SHOP: &str = "shop";

const SESSIONS: usize = 6;

/// A server that logs each error's code.
fn builder() -> pg_once_tests::Builder {
    janitor::preloaded("fuzz, shop")
        // A busy machine reads the log of half a minute again within the patience of the sessions.
        .setting("checkpoint_timeout", "30 s")
        .setting("log_line_prefix", "%m [%p] %q%u@%d !%e ")
        .setting("restart_after_crash", "on")
        .setting("autovacuum_naptime", "1s")
        .setting("once.janitor_naptime", "1s")
}

/// Until then, or after so many transactions.
fn length() -> (Duration, u64) {
    let named = std::env::var("PG_ONCE_FUZZ_SECONDS").ok();
    let seconds = match named.and_then(|text| text.parse().ok()) {
        Some(seconds) => seconds,
        None if is_long() => 25 * 60,
        None => 8,
    };
    (Duration::from_secs(seconds), 300_000)
}

fn start(fuzz: &Arc<Fuzz>, chance: &Chance) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    for who in 0..SESSIONS {
        let (fuzz, chance) = (Arc::clone(fuzz), chance.of(who as u64 + 1));
        tasks.push(tokio::spawn(async move { fuzz.session(who, chance).await }));
    }
    tasks
}

/// A log that a new postmaster would overwrite stays.
fn keep_log(cluster: &Cluster, round: usize) {
    let log = cluster.directory().join("server.log");
    std::fs::rename(log, cluster.directory().join(format!("server-{round}.log"))).unwrap();
}

async fn kill(victim: Victim, cluster: &mut Cluster, chance: &mut Chance, round: usize) {
    if matches!(victim, Victim::Postmaster | Victim::Everything) {
        keep_log(cluster, round);
    }
    victim.kill(cluster, chance).await;
}

fn assert_alive(tasks: &[JoinHandle<()>], seed: u64) {
    let ended = tasks.iter().any(JoinHandle::is_finished);
    assert!(
        !ended,
        "seed {seed}: a session has met what it should not; see above"
    );
}

#[tokio::test]
async fn the_fuzz_has_a_call_of_every_function() {
    fuzz::calls(&Playground::open().await.client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "make test-long ARGS=faults"]
async fn every_function_keeps_its_promises_under_cancels_kills_and_changes_beside_it() {
    let mut cluster = builder().launch().unwrap();
    let client = cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let has_modules = pages::install(&client).await.unwrap();
    let shop = cluster.create_database_with_extension(SHOP).await.unwrap();
    pages::install(&shop).await.unwrap();
    let fuzz = Arc::new(Fuzz::prepare(cluster.url(DATABASE)).await);
    let load = Load::prepare(format!("{}?application_name=load", cluster.url(SHOP))).await;
    let mut chance = Chance::new();
    let seed = chance.seed;
    let (time, transactions) = length();
    println!(
        "fuzz: {} s or {transactions} transactions, seed {seed}",
        time.as_secs()
    );
    // The load needs half a minute to come to its end.
    let has_load = time > Duration::from_secs(30);
    if !has_load {
        println!(
            "left out: the mixed load in a second database, which `kills` has in its short form"
        );
    }
    let running = has_load.then(|| load.start());
    let mut tasks = start(&fuzz, &chance);
    tasks.extend(disturb::start(&fuzz, &chance));
    let begin = Instant::now();
    // A kill every five seconds at first, every half minute later: most of the time everybody is at work.
    let mut round = 0;
    let mut next_kill = Duration::from_secs(4);
    let mut next_word = Duration::from_secs(30);
    while begin.elapsed() < time && fuzz.transactions() < transactions {
        sleep(Duration::from_millis(200)).await;
        assert_alive(&tasks, seed);
        if begin.elapsed() > next_kill {
            round += 1;
            kill(
                Victim::of_round(round, &mut chance),
                &mut cluster,
                &mut chance,
                round,
            )
            .await;
            next_kill = begin.elapsed() + Duration::from_secs(if round < 4 { 5 } else { 30 });
        }
        if begin.elapsed() > next_word {
            println!(
                "{} s, {round} kills, load {}, fuzz {}",
                begin.elapsed().as_secs(),
                load.door.answered(),
                fuzz.progress()
            );
            next_word += Duration::from_secs(30);
        }
    }
    fuzz.close();
    for task in tasks {
        task.await
            .unwrap_or_else(|_| panic!("seed {seed}: see above"));
    }
    println!("the end, seed {seed}: {}", fuzz.progress());
    kill(Victim::Everything, &mut cluster, &mut chance, round + 1).await;
    if let Some(mut running) = running {
        running.settle_within(Duration::from_secs(600)).await;
        running.end().await.assert_whole().await;
    }
    let client = cluster.connect(DATABASE).await.unwrap();
    disturb::end_all_prepared(&client, &mut chance).await;
    end::drain(&client).await;
    end::assert_whole(&client).await;
    if has_load {
        end::assert_enough(&client).await;
    }
    if has_modules {
        pages::check(&client).await.unwrap();
        pages::check(&cluster.connect(SHOP).await.unwrap())
            .await
            .unwrap();
    }
    end::assert_logs_are_clean(cluster.directory());
}
