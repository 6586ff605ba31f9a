//! The caller's transaction is the unit: savepoints, several calls in one transaction.

use crate::stage::Stage;

#[tokio::test]
async fn what_a_savepoint_undid_was_never_emitted_taken_or_acked() {
    for key in ["", "key"] {
        let stage = Stage::open("{}").await;
        let emit = async |names: &str| match key {
            "" => stage.emit(names).await,
            key => stage.emit_keyed(names, key).await,
        };
        stage.play.show("begin").await;
        emit("a").await;
        stage.play.show("savepoint s").await;
        emit("undone").await;
        stage.play.show("rollback to s").await;
        emit("b").await;
        stage.play.show("savepoint s; savepoint inner_").await;
        emit("c").await;
        stage.play.show("release inner_; savepoint again").await;
        emit("undone_too").await;
        stage
            .play
            .show("rollback to again; release s; commit")
            .await;

        stage.play.show("begin; savepoint s").await;
        stage.expect(10, "a:1 b:1 c:1").await;
        stage.play.show("rollback to s").await;
        let token = stage.expect(10, "a:1 b:1 c:1").await;
        stage.play.show("commit").await;
        stage.play.show("begin; savepoint s").await;
        assert_eq!(stage.ack(token, "").await, "3");
        stage.play.show("rollback to s").await;
        assert_eq!(stage.ack(token, "b").await, "1");
        stage.play.show("commit").await;
        assert_eq!(stage.ack(token, "").await, "2");
        stage.expect_nothing().await;
    }
}

#[tokio::test]
async fn emit_take_and_emit_in_one_transaction_are_one_after_the_other() {
    for key in ["", "key"] {
        for end in ["commit", "rollback"] {
            let stage = Stage::open("{}").await;
            let emit = async |names: &str| match key {
                "" => stage.emit(names).await,
                key => stage.emit_keyed(names, key).await,
            };
            emit("before").await;
            stage.play.show("begin").await;
            emit("a").await;
            let first = stage.expect(10, "before:1 a:1").await;
            emit("b").await;
            stage.play.show("savepoint s").await;
            emit("undone").await;
            stage.play.show("rollback to s").await;
            if key.is_empty() {
                let second = stage.expect(10, "b:1").await;
                assert!(second > first);
                stage.ack(second, "").await;
                stage.ack(first, "").await;
            } else {
                // Its key is out.
                stage.expect_nothing().await;
                stage.ack(first, "").await;
                let second = stage.expect(10, "b:1").await;
                stage.ack(second, "").await;
            }
            emit("c").await;
            stage.play.show(end).await;
            emit("after").await;
            let rest = match end {
                "commit" => "c:1 after:1",
                _ => "before:1 after:1",
            };
            let token = stage.expect(10, rest).await;
            stage.ack(token, "").await;
            stage.expect_nothing().await;
        }
    }
}

#[tokio::test]
async fn a_take_in_the_middle_of_a_transaction_moves_past_what_it_saw_and_no_further() {
    let stage = Stage::open("{}").await;
    let other = stage.another().await;
    other.play.show("begin").await;
    other.emit("other1").await;
    stage.play.show("begin").await;
    stage.emit("own1").await;
    let token = stage.expect(10, "own1:1").await;
    stage.ack(token, "").await;
    other.emit("other2").await;
    stage.emit("own2").await;
    other.play.show("commit").await;
    stage.play.show("commit").await;
    let taken = stage.take(10).await;
    assert_eq!(crate::sorted(&taken.shown), "other1:1 other2:1 own2:1");
}
