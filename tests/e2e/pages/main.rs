//! What a mixed load of everything leaves on disk is sound, and a standby that compares each page which it replays
//! with the primary's own finds no difference. With `make test-assert` both servers also check themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test fails"
)]

#[path = "../janitor/world.rs"]
mod janitor;
#[path = "../load/mod.rs"]
mod load;

use janitor::show;
use load::Load;
use tokio_postgres::Client;

const DATABASE: &str = "shop";

/// The extension's tables, and those of their out-of-line values.
const TABLES: &str = "create view stored as
    select c.oid as id, c.oid::regclass as name from pg_class c
     where c.relkind in ('r', 't')
       and exists (select from pg_class o where o.relnamespace = 'once'::regnamespace and c.oid in (o.oid, o.reltoastrelid))";

/// Each shows what is wrong with them: no row, where nothing is.
const FINDINGS: [&str; 3] = [
    "select name, f.* from stored, lateral verify_heapam(id, check_toast => true) f",
    "select name, f from stored, lateral pg_check_frozen(id) f",
    "select name, f from stored, lateral pg_check_visible(id) f",
];

/// Raises what is wrong with an index of them: that it is damaged, or lacks a row of its table.
const INDEXES: &str =
    "select count(bt_index_check(indexrelid, heapallindexed => true)) > 0 from stored, pg_index
    where indrelid = id";

/// Whether the modules of contrib that look at files could be installed.
async fn has_checkers(client: &Client) -> bool {
    let available =
        "select count(*) from pg_available_extensions where name in ('amcheck', 'pg_visibility')";
    if show(client, available).await != "2" {
        eprintln!("NOT TESTED: amcheck and pg_visibility are not there; Debian's server has them");
        return false;
    }
    show(
        client,
        "create extension amcheck; create extension pg_visibility",
    )
    .await;
    show(client, TABLES).await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_page_is_sound_after_a_load_and_the_standbys_are_the_same() {
    let primary = janitor::preloaded(DATABASE)
        .setting("once.janitor_naptime", "1s")
        .setting("wal_consistency_checking", "all")
        .launch()
        .unwrap();
    let client = primary
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let has_checkers = has_checkers(&client).await;
    let standby = primary.standby().unwrap();
    let load = Load::prepare(primary.front_url(DATABASE).unwrap()).await;
    let mut running = load.start();
    running.goes_on_for(1_500).await;
    show(&client, "vacuum (freeze)").await;
    running.goes_on_for(1_500).await;
    running.settle().await;
    running.end().await.assert_whole().await;
    // A standby that finds a difference has stopped.
    standby.wait_caught_up(&primary).await.unwrap();
    for cluster in [&primary, &standby] {
        check(&cluster.connect(DATABASE).await.unwrap(), has_checkers).await;
    }
}

async fn check(client: &Client, has_checkers: bool) {
    assert_ne!(show(client, "select count(*) from once.key").await, "0");
    if !has_checkers {
        return;
    }
    for findings in FINDINGS {
        assert_eq!(show(client, findings).await, "", "{findings}");
    }
    assert_eq!(show(client, INDEXES).await, "t");
}
