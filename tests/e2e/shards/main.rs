//! Whole databases move between clusters behind PgBouncer, by the script that operators use, under a storm of duplicate
//! requests: no order twice, none lost, none in the wrong shard, and whoever holds a lease goes on with his token.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../nothing_lost/content.rs"]
#[allow(dead_code)]
mod content;
#[path = "../janitor/world.rs"]
mod janitor;
mod storm;
mod world;

use std::path::Path;
use std::time::{Duration, Instant};

use pg_once_tests::{Programs, free_port, is_long, playground};
use storm::Running;
use tokio::task::block_in_place;
use tokio_postgres::error::SqlState;
use world::{DAYS, ODD, World, at, mapped, play, shards};

/// No call waits longer than this for a move that nobody stops.
const LONGEST: Duration = Duration::from_secs(10);

/// Moves something, and says how long clients waited.
async fn moved(running: &Running, what: &str, action: impl FnOnce()) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.storm.longest_wait();
    let begin = Instant::now();
    block_in_place(action);
    let took = begin.elapsed();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waited = running.storm.longest_wait();
    println!("{what}: {took:.1?}, and no call waited longer than {waited:.2?}");
    let errors = running.storm.errors();
    if !what.contains("killed") {
        assert!(waited < LONGEST, "{what}: {waited:?}");
    }
    if !is_long() {
        assert!(errors.is_empty(), "{what}: {errors:?}");
    }
}

/// What everybody held in one of the databases with everything goes on in the other cluster.
async fn goes_on(world: &World, day: usize) {
    let on = async |role: &str| {
        let role = if role.is_empty() { "postgres" } else { role };
        play(world.half, role, DAYS[day]).await
    };
    content::goes_on(&world.tokens, on).await;
}

/// A client of the wrong shard, one with a map of yesterday, one who was in the database before it moved.
async fn misrouted(world: &World, running: &Running) {
    let tenant = running.storm.tenant_of(0);
    let claim = format!("select once.key_claim('orders', '{tenant}/ada/x')");
    let wrong = world.pooler.connect("shop_1").await.unwrap();
    let error = wrong.simple_query(&claim).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "ON007");
    // This pooler has no part in the moves.
    let stale = mapped(&world.cluster).await.unwrap();
    let last = shards() - 1;
    let moved = stale.connect(&format!("shop_{last}")).await;
    let answered = match &moved {
        Ok(client) => client.simple_query("select 1").await.is_ok(),
        Err(_) => false,
    };
    assert!(!answered, "the old home lets clients in");
}

/// An operator gives up a move that died in its fourth step, as the runbook says, and clients go on at the old home.
async fn given_up(world: &World, running: &Running) {
    let admin = world.pooler.connect("pgbouncer").await.unwrap();
    moved(running, "a dump, given up", || {
        assert!(world.killed_in(4, "move-dump shop_2", false));
        // Its half-full twin would be taken for the whole one.
        let told = world.refused("move-logical shop_2", false);
        assert!(told.contains("a move-dump of shop_2 has begun"), "{told}");
        let back = "alter database shop_2_moved rename to shop_2";
        world.cluster.psql("postgres", back).unwrap();
        let open = "alter database shop_2 allow_connections true";
        world.cluster.psql("postgres", open).unwrap();
    })
    .await;
    admin.simple_query("RESUME shop_2").await.unwrap();
    let claim = format!(
        "select once.key_get('orders', '{}/none')",
        running.storm.tenant_of(2)
    );
    let client = world.pooler.connect("shop_2").await.unwrap();
    client.simple_query(&claim).await.unwrap();
}

/// The same for a move that died in *drain*, by the statements of the page.
async fn given_up_by_the_page(world: &World) {
    let words = format!("move-logical {ODD}");
    let told = world.answered("yes\nyes\nyes\nno\n", &words);
    let slot = "SELECT pg_drop_replication_slot('pg_once_move_odd_shop')";
    assert!(
        told.contains("stopped in step 4, copy") && told.contains(slot),
        "{told}"
    );
    let told = world.refused(&format!("move-dump {ODD}"), false);
    assert!(told.contains("a move-logical of"), "{told}");
    assert!(block_in_place(|| world.killed_in(8, &words, false)));
    let page = include_str!("../../../docs/how-to/shards.md");
    let (_, statements) = page.split_once("in this order:\n\n```text\n").unwrap();
    let (statements, _) = statements.split_once("```").unwrap();
    let statements = statements.replace("RENAME", "rename").replace("NAME", ODD);
    let mut session = None;
    for line in statements.lines() {
        let words: Vec<&str> = line.split([' ', '.', ':', ',']).collect();
        session = match words[..] {
            ["--", "In", database, "at", "the", place, ..] => {
                let ports = [("source", world.cluster.port()), ("target", world.half)];
                let (_, port) = ports.into_iter().find(|(name, _)| *name == place).unwrap();
                at(port, "postgres", database).await
            }
            ["--", ..] => world.pooler.connect("pgbouncer").await.ok(),
            _ => {
                let client = session.unwrap();
                while let Err(error) = client.simple_query(line).await {
                    assert_eq!(
                        error.code(),
                        Some(&SqlState::OBJECT_IN_USE),
                        "{line}: {error:?}"
                    );
                }
                Some(client)
            }
        };
    }
    drop(session);
    let client = world.pooler.connect(ODD).await.unwrap();
    client
        .simple_query("select once.shard_get()")
        .await
        .unwrap();
    drop(client);
    let slots =
        "select count(*) from pg_replication_slots where slot_name = 'pg_once_move_odd_shop'";
    assert_eq!(world.cluster.psql("postgres", slots).unwrap(), "0");
    world.run(&words, false);
}

/// Where pg_hba.conf does not let the script in, nothing is begun.
fn not_let_in(world: &World, rejected: &str, words: &str, refusal: &str) {
    let rules = world.cluster.data_directory().join("pg_hba.conf");
    let old = std::fs::read_to_string(&rules).unwrap();
    let reload = || {
        world
            .cluster
            .psql("postgres", "select pg_reload_conf()")
            .unwrap()
    };
    std::fs::write(&rules, format!("host {rejected} all all reject\n{old}")).unwrap();
    reload();
    let refused = world.refused(words, false);
    assert!(refused.contains(refusal), "{refused}");
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(world.cluster.psql("postgres", slots).unwrap(), "0");
    std::fs::write(&rules, old).unwrap();
    reload();
}

/// Made in a database, the move that is refused, what it says, and how it is taken away.
const REFUSED: [(&str, &str, &str); 2] = [
    (
        "create table late (a integer primary key deferrable)",
        "no replica identity, and their updates would fail: late",
        "drop table late",
    ),
    (
        "create subscription s connection 'dbname=none' publication p with (connect = false);
         alter subscription s enable",
        "subscriptions are enabled: s in day_logical",
        "alter subscription s disable; alter subscription s set (slot_name = none); drop subscription s",
    ),
];

/// What cannot be restored is refused before clients wait, and so is a second move beside the first.
fn not_begun(world: &World) {
    let first = &world.cluster;
    let place = "create tablespace away location ''";
    first.psql("postgres", place).unwrap();
    let table = "create table placed () tablespace away; create subscription s connection 'dbname=none' publication p with (connect = false)";
    first.psql("shop_2", table).unwrap();
    let refused = world.refused("move-dump shop_2", false);
    assert!(refused.contains("shop_2 cannot be dumped"), "{refused}");
    let drop = "drop table placed; alter subscription s set (slot_name = none)";
    first.psql("shop_2", drop).unwrap();
    first.psql("postgres", "drop tablespace away").unwrap();
    let paused = world.beside_another("move-logical shop_2", || {
        world.refused("move-dump shop_2", false)
    });
    assert!(paused.contains("another move with"), "{paused}");
}

/// A pooler that died has forgotten the pause: clients get errors until the move is done, and ask again. An earlier run
/// had stopped at the fence, where the subscription is disabled, and the log has gone on since.
async fn pooler_dies(world: &mut World, running: &Running) {
    let begin = Instant::now();
    let words = "move-logical shop_3";
    assert!(block_in_place(|| world.killed_in(4, words, false)));
    let twin = at(world.half, "postgres", "shop_3_coming").await.unwrap();
    let disable = "alter subscription pg_once_move disable";
    twin.batch_execute(disable).await.unwrap();
    drop(twin);
    let write = "select pg_logical_emit_message(false, 'test', repeat('x', 2000000))";
    world.cluster.psql("shop_3", write).unwrap();
    block_in_place(|| world.run_while_the_pooler_dies(words));
    let errors = running.storm.errors();
    println!(
        "replication, and the pooler killed in each step: {:.1?}, {} errors",
        begin.elapsed(),
        errors.len()
    );
    assert!(!errors.is_empty(), "nobody met the dead pooler");
}

/// PG_ONCE_OLD_PG_CONFIG names the older server (`make test-matrix` sets it).
#[tokio::test]
async fn a_shard_moves_by_replication_to_a_newer_version_whose_janitor_waits_for_the_switch() {
    let new = Programs::from_env().unwrap();
    let older = std::env::var_os("PG_ONCE_OLD_PG_CONFIG")
        .map(|path| Programs::of(Path::new(&path)).unwrap())
        .filter(|older| older.version() < new.version());
    if older.is_none() {
        eprintln!("NOT TESTED with two versions: PG_ONCE_OLD_PG_CONFIG names no older server");
    }
    let Some((world, newer)) = World::of_two_servers(older.unwrap_or(new)).await else {
        return;
    };
    for (make, refusal, undo) in REFUSED {
        world.cluster.psql(DAYS[1], make).unwrap();
        let refused = world.refused("move-logical day_logical", false);
        assert!(refused.contains(refusal), "{refused}");
        world.cluster.psql(DAYS[1], undo).unwrap();
    }
    let begins = "create sequence numbers; select setval('numbers', 1000, false)";
    world.cluster.psql(DAYS[1], begins).unwrap();
    world.run("move-logical day_logical", false);
    goes_on(&world, 1).await;
    let next = newer.psql(DAYS[1], "select nextval('numbers')").unwrap();
    assert_eq!(next, "1000");

    // In shop_0 the janitor has something to do: a lease that is over.
    let task = "select done, served_by from once.janitor_status() where task = 'key_abandon'";
    let other = newer.connect("postgres").await.unwrap();
    assert!(world.killed_in(6, "move-logical shop_0", false));
    let twin = newer.connect("shop_0_coming").await.unwrap();
    janitor::until(&twin, "select count(*) from once.key", "1").await;
    for _ in 0..2 {
        janitor::until_swept(&other).await;
    }
    assert_eq!(
        janitor::show(&twin, "select count(*) from once.janitor").await,
        "0"
    );
    drop(twin);
    world.run("move-logical shop_0", false);
    let home = newer.connect("shop_0").await.unwrap();
    janitor::until(&home, task, &format!("1|{}", janitor::WORKER)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shards_move_under_fire_and_each_order_is_made_once() {
    let Some(mut world) = World::prepare().await else {
        return;
    };
    let first = world.cluster.port();
    let held = at(first, "postgres", &format!("shop_{}", shards() - 1)).await;
    let running = storm::Storm::start(&world.pooler, first).await;

    let upper: Vec<String> = (shards() / 2..shards())
        .map(|shard| format!("shop_{shard}"))
        .collect();
    let split = format!("split {} {}", upper.join(" "), DAYS[0]);
    let told = world.answered("yes\nno\n", &split);
    assert!(told.contains("not done: step 2, copy"), "{told}");
    block_in_place(|| not_let_in(&world, "replication", &split, "host replication postgres"));
    let half = world.half;
    assert!(!world.cluster.split_directory(half).exists(), "{told}");
    moved(&running, "a split, killed in each step", || {
        world.run_killed_in_each_step(&split, false);
    })
    .await;
    assert!(held.unwrap().simple_query("select 1").await.is_err());
    misrouted(&world, &running).await;

    let third = free_port().unwrap();
    let (again, _) = upper.split_at(upper.len() / 2);
    moved(&running, "a split", || {
        world.run_between(&format!("split {}", again.join(" ")), [half, third]);
    })
    .await;
    let refused = world.refused("split shop_0", false);
    assert!(refused.contains("was promoted before"), "{refused}");
    moved(&running, "a dump, killed in each step", || {
        world.run_killed_in_each_step("move-dump shop_0", false);
    })
    .await;
    let refusal = "postgres into shop_1_moved at";
    block_in_place(|| not_let_in(&world, "shop_1_moved", "move-logical shop_1", refusal));
    moved(&running, "replication, killed in each step", || {
        world.run_killed_in_each_step("move-logical shop_1", false);
    })
    .await;
    // The split left a copy of it there.
    let refused = world.refused("move-dump shop_0", true);
    assert!(
        refused.contains("DROP DATABASE \"shop_0_moved\""),
        "{refused}"
    );
    let last = shards() - 1;
    moved(&running, "replication, back to the first cluster", || {
        world.run(&format!("move-logical shop_{last}"), true);
    })
    .await;

    block_in_place(|| not_begun(&world));
    given_up(&world, &running).await;
    given_up_by_the_page(&world).await;
    let idle = world.pooler.connect("shop_2").await.unwrap();
    let tenant = running.storm.tenant_of(2);
    let open = format!("begin; insert into orders (key, tenant) values ('open', '{tenant}')");
    idle.simple_query(&open).await.unwrap();
    moved(
        &running,
        "a dump, and somebody idle in a transaction for 1 s",
        || {
            world.run("move-dump shop_2 --patience 1", false);
        },
    )
    .await;
    assert!(idle.simple_query("commit").await.is_err());
    pooler_dies(&mut world, &running).await;

    world.run("move-logical day_logical", false);
    let said = world.run("move-dump day_dump", false);
    assert!(said.contains("day_dump_moved has "), "{said}");
    for day in 0..DAYS.len() {
        goes_on(&world, day).await;
    }
    let storm = running.end().await;
    let home = |shard| match shard {
        0..=3 => half,
        _ if again.contains(&format!("shop_{shard}")) => third,
        _ if shard >= shards() / 2 && shard != last => half,
        _ => first,
    };
    let orders = storm.prove(home).await;
    println!("{orders} orders");
    assert!(orders > 500, "{orders}");
}
