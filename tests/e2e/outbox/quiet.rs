//! A take that finds nothing writes nothing: an idle worker costs a database no transaction ids and no log. What is
//! delivered costs inserts: nothing is updated or deleted, so an old snapshot has nothing to hold back.

use std::collections::BTreeMap;

use pg_once_tests::{Cluster, Lsn, race};

use crate::playground::Playground;

async fn quiet() -> (Cluster, Playground) {
    let cluster = Cluster::builder()
        .setting("autovacuum", "off")
        .setting("checkpoint_timeout", "1h")
        .launch()
        .unwrap();
    cluster
        .create_database_with_extension("quiet")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "quiet").await;
    (cluster, play)
}

/// Takes, at every level, find nothing and write nothing.
async fn writes_nothing(play: &Playground, state: &str) {
    // What was written lately is read: hints and pruning are the reader's, and only the first one's.
    for subscriber in ["default", "idle"] {
        for _ in 0..3 {
            let sql = format!("select * from once.outbox_take('t', '{subscriber}')");
            play.show(&sql).await;
        }
    }
    for level in ["read committed", "repeatable read", "serializable"] {
        // A process in the background may write a record of its own meanwhile; not every time.
        let mut least = u64::MAX;
        for _ in 0..5 {
            least = least.min(written_by_takes(play, level, state).await);
        }
        assert_eq!(least, 0, "{state} at {level}");
    }
}

/// Bytes of WAL while both subscribers take nothing.
async fn written_by_takes(play: &Playground, level: &str, state: &str) -> u64 {
    let before = Lsn::inserted(&play.client).await.unwrap();
    play.show(&format!("begin isolation level {level}")).await;
    for subscriber in ["default", "idle"] {
        let sql = format!("select * from once.outbox_take('t', '{subscriber}', 1000)");
        assert_eq!(play.show(&sql).await, "", "{state}");
    }
    assert!(race::xid_unassigned(&play.client).await.unwrap(), "{state}");
    play.show("commit").await;
    let after = Lsn::inserted(&play.client).await.unwrap();
    after.bytes_since(before)
}

#[tokio::test]
async fn a_take_that_finds_nothing_writes_nothing() {
    let (cluster, play) = quiet().await;
    play.show("select once.topic_set('t', '{\"subscribers\": [\"default\", \"idle\"]}')")
        .await;
    writes_nothing(&play, "nothing was ever emitted").await;
    let drain_idle = async || {
        while let Ok(token) = play
            .show("select max(token) from once.outbox_take('t', 'idle', 1000)")
            .await
            .parse::<i64>()
        {
            play.show(&format!("select once.outbox_ack('t', 'idle', {token})"))
                .await;
        }
    };
    play.show("select count(once.outbox_emit('t', '1', case when i % 2 = 0 then 'k' || i end)) from generate_series(1, 500) i")
        .await;
    drain_idle().await;
    let token = play
        .show("select max(token) from once.outbox_take('t', max => 1000)")
        .await;
    writes_nothing(&play, "everything is leased").await;
    play.show(&format!(
        "select count(*) from once.outbox_nack('t', 'default', {token}, retry_after => '1 h')"
    ))
    .await;
    writes_nothing(&play, "everything waits to be tried again").await;
    play.show("select once.outbox_emit('t', '1', delay => '1 h')")
        .await;
    writes_nothing(&play, "what is emitted is delayed").await;
    let open = Playground::on(&cluster, "quiet").await;
    open.show("begin; select once.outbox_emit('t', '1', 'k'), once.outbox_emit('t', '1')")
        .await;
    writes_nothing(&play, "what is emitted is not committed").await;
    open.show("rollback").await;
    writes_nothing(&play, "what is emitted was undone").await;
    play.show("select once.topic_set('busy', '{}'); select once.outbox_emit('busy', '1')")
        .await;
    writes_nothing(&play, "another topic has something").await;
}

#[tokio::test]
async fn what_is_delivered_is_one_insert_each_and_a_few_for_each_batch() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}')").await;
    let batch = async |max: u32| {
        let take = format!("select count(*), max(token) from once.outbox_take('t', max => {max})");
        let taken = play.show(&take).await;
        let (count, token) = taken.split_once('|').unwrap();
        assert_eq!(count, max.to_string());
        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
            .await;
    };
    // The first event of a database writes more.
    play.show("select once.outbox_emit('t', '1')").await;
    batch(1).await;
    for key in ["null", "'k' || i % 3"] {
        play.show("begin").await;
        let before = written(&play).await;
        play.show(&format!(
            "select count(once.outbox_emit('t', '1', {key})) from generate_series(1, 200) i"
        ))
        .await;
        batch(100).await;
        batch(100).await;
        let mut writes = written(&play).await;
        play.show("commit").await;
        for (table, [inserted, changed]) in &mut writes {
            let [i, c] = before.get(table).unwrap_or(&[0, 0]);
            *inserted -= i;
            *changed -= c;
        }
        writes.retain(|_, counts| *counts != [0, 0]);
        // A row for each lane that a batch took from: 64 events in a row are in one, three keys in three at most.
        let parts = writes.remove("batch").unwrap();
        assert!(parts[0] <= 10 && parts[1] == 0, "{key}: {parts:?}");
        let expected = [("event_0", [200, 0]), ("receipt", [2, 0])];
        let expected = expected.map(|(table, counts)| (table.to_owned(), counts));
        assert_eq!(writes, BTreeMap::from(expected), "{key}");
    }
}

/// By table: rows that this session has inserted lately, and rows that it has updated or deleted.
async fn written(play: &Playground) -> BTreeMap<String, [i64; 2]> {
    let rows = play
        .show(
            "select relname, n_tup_ins, n_tup_upd + n_tup_del from pg_stat_xact_user_tables
              where schemaname = 'once'",
        )
        .await;
    let counts = |row: &str| {
        let cells: Vec<&str> = row.split('|').collect();
        let number = |i: usize| cells[i].parse::<i64>().unwrap();
        (cells[0].to_owned(), [number(1), number(2)])
    };
    rows.lines().map(counts).collect()
}
