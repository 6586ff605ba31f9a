//! A take that finds nothing writes nothing: an idle worker costs a database no transaction ids and no log.

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
