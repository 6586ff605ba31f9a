//! Isolation levels and transactions that only read.

use crate::stage::Stage;
use crate::{KEPT, drain};

#[tokio::test]
async fn a_kept_snapshot_does_not_hide_what_others_have_done() {
    for level in KEPT {
        for key in ["", "key"] {
            let stage = Stage::open("{}").await;
            let emit = async |stage: &Stage, names: &str| match key {
                "" => stage.emit(names).await,
                key => stage.emit_keyed(names, key).await,
            };
            emit(&stage, "taken").await;
            let old = stage.another().await;
            old.play
                .show(&format!(
                    "begin isolation level {level}; select count(*) from once.batch"
                ))
                .await;
            let token = stage.expect(1, "taken:1").await;
            old.expect_nothing().await;
            assert_eq!(stage.ack(token, "").await, "1");
            emit(&stage, "fresh").await;
            emit(&old, "own").await;
            // What was taken and acked since is not given out again; what was emitted since is.
            let mine = old.expect(10, "fresh:1 own:1").await;
            old.play.show("savepoint s").await;
            let again = old.play.code(&old.ack_sql(token, "")).await;
            assert_eq!(again, "ON006", "{level}");
            old.play.show("rollback to s").await;
            assert_eq!(old.ack(mine, "").await, "2");
            old.play.show("commit").await;
            let again = stage.play.code(&stage.ack_sql(mine, "")).await;
            assert_eq!(again, "ON006", "{level}");
            stage.expect_nothing().await;
        }
    }
}

#[tokio::test]
async fn a_dedupe_key_emitted_after_the_snapshot_emits_nothing_twice() {
    for level in KEPT {
        let stage = Stage::open("{}").await;
        let sql = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'd')";
        let old = stage.play.another().await;
        old.show(&format!(
            "begin isolation level {level}; select count(*) from once.topic"
        ))
        .await;
        assert_eq!(stage.play.show(sql).await, "t");
        match old.attempt(sql).await {
            Ok(emitted) => assert_eq!(emitted, "f"),
            Err(refusal) => assert_eq!(refusal.code, "40001", "{refusal:?}"),
        }
        old.show("rollback").await;
        assert_eq!(drain(&stage.play, "default").await, "1", "{level}");
    }
}
