//! What a mixed load of everything leaves on disk is sound, and a standby that compares each page which it replays
//! with the primary's own finds no difference. With `make test-assert` both servers also check themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../janitor/world.rs"]
mod janitor;
#[path = "../load/mod.rs"]
mod load;

use janitor::show;
use load::Load;
use pg_once_tests::pages;
use pg_once_tests::playground::Playground;

const DATABASE: &str = "shop";

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
    let has_modules = pages::install(&client).await.unwrap();
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
        let client = cluster.connect(DATABASE).await.unwrap();
        assert_ne!(show(&client, "select count(*) from once.key").await, "0");
        if has_modules {
            pages::check(&client).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_row_that_its_index_lacks_is_found() {
    let play = Playground::open().await;
    play.expect_damage();
    if !pages::install(&play.client).await.unwrap() {
        return;
    }
    let ready = |is: bool| {
        format!("update pg_index set indisready = {is} where indexrelid = 'i'::regclass")
    };
    play.show("create table t (a int); create index i on t (a)")
        .await;
    pages::check(&play.client).await.unwrap();
    play.show(&ready(false)).await;
    play.show("insert into t values (1)").await;
    play.show(&ready(true)).await;
    let found = pages::check(&play.client).await.unwrap_err();
    assert_eq!(
        found.code().unwrap().code(),
        "XX001",
        "the index lacks the row"
    );
}
