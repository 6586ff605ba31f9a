//! Events that become visible late: a commit with a lower id, a transaction id older than its emit, transactions
//! of many savepoints, prepared ones. Each is delivered once, in its place; an open one delays only its own.

use crate::drain;
use crate::playground::Playground;
use crate::stage::Stage;

/// A stage with one lane for keys, so that whatever shares it is looked at together.
async fn stage() -> Stage {
    let stage = Stage::open("{}").await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    stage
}

/// Emits with or without an order_key.
async fn emit(stage: &Stage, names: &str, key: &str) {
    match key {
        "" => stage.emit(names).await,
        key => stage.emit_keyed(names, key).await,
    }
}

/// Takes these and acks them.
async fn deliver(stage: &Stage, shown: &str) {
    let token = stage.expect(100, shown).await;
    stage.ack(token, "").await;
}

#[tokio::test]
async fn a_commit_that_comes_late_with_a_lower_id_is_delivered() {
    for key in ["", "key"] {
        let stage = stage().await;
        let slow = stage.another().await;
        slow.play.show("begin").await;
        emit(&slow, "low", key).await;
        emit(&stage, "high", key).await;
        assert!(stage.id("low") < stage.id("high"));
        deliver(&stage, "high:1").await;
        // The lane goes on through several windows, and one batch of it stays out.
        for name in ["w1", "w2", "w3"] {
            emit(&stage, name, key).await;
            deliver(&stage, &format!("{name}:1")).await;
            stage.expect_nothing().await;
        }
        emit(&slow, "later", key).await;
        emit(&stage, "w4", key).await;
        let out = stage.expect(100, "w4:1").await;
        slow.play.show("commit").await;
        if key.is_empty() {
            deliver(&stage, "low:1 later:1").await;
            stage.ack(out, "").await;
        } else {
            stage.expect_nothing().await;
            stage.ack(out, "").await;
            // Emitted after the late commit, so behind it.
            emit(&stage, "behind", key).await;
            deliver(&stage, "low:1 later:1 behind:1").await;
        }
        stage.expect_nothing().await;
    }
}

#[tokio::test]
async fn a_transaction_whose_id_is_older_than_its_emit_is_delivered_in_its_place() {
    for key in ["", "key"] {
        for taken_between in [true, false] {
            let stage = stage().await;
            let old = stage.another().await;
            old.play.show("begin; select pg_current_xact_id()").await;
            emit(&stage, "a", key).await;
            if taken_between {
                deliver(&stage, "a:1").await;
            }
            emit(&old, "b", key).await;
            if taken_between {
                stage.expect_nothing().await;
                old.play.show("commit").await;
                emit(&stage, "c", key).await;
                deliver(&stage, "b:1 c:1").await;
            } else {
                old.play.show("commit").await;
                emit(&stage, "c", key).await;
                deliver(&stage, "a:1 b:1 c:1").await;
            }
            stage.expect_nothing().await;
        }
    }
}

#[tokio::test]
async fn several_open_emitters_that_end_in_any_order_lose_nothing() {
    for key in ["", "key"] {
        let stage = stage().await;
        let mut open = Vec::new();
        for i in 0..6 {
            let other = stage.another().await;
            other.play.show("begin").await;
            emit(&other, &format!("open{i}"), key).await;
            emit(&stage, &format!("done{i}"), key).await;
            deliver(&stage, &format!("done{i}:1")).await;
            open.push(other);
        }
        for i in [3, 0, 5, 1] {
            emit(&open[i], &format!("last{i}"), key).await;
            open[i].play.show("commit").await;
            deliver(&stage, &format!("open{i}:1 last{i}:1")).await;
            stage.expect_nothing().await;
        }
        // One at a time out of a window of two late ones, and one that was undone.
        open[2].play.show("commit").await;
        open[4].play.show("rollback").await;
        emit(&stage, "end", key).await;
        for name in ["open2:1", "end:1"] {
            let token = stage.expect(1, name).await;
            stage.ack(token, "").await;
        }
        stage.expect_nothing().await;
    }
}

/// Emits these numbers, each in a savepoint of its own; every third of them is undone.
async fn emit_in_savepoints(play: &Playground, numbers: std::ops::Range<usize>, more: &str) {
    let mut sql = String::new();
    for n in numbers {
        let end = if n % 3 == 0 {
            "rollback to s"
        } else {
            "release s"
        };
        sql += &format!("savepoint s; select once.outbox_emit('t', '{n}'{more}); {end};\n");
    }
    play.client.batch_execute(&sql).await.unwrap();
}

/// The numbers that `emit_in_savepoints` leaves.
fn left(numbers: std::ops::Range<usize>) -> String {
    let left: Vec<String> = numbers
        .filter(|n| n % 3 != 0)
        .map(|n| n.to_string())
        .collect();
    left.join(" ")
}

#[tokio::test]
async fn an_emitter_with_more_savepoints_than_a_snapshot_holds_is_not_lost() {
    for key in ["", ", 'key'"] {
        let stage = stage().await;
        let play = &stage.play;
        let big = play.another().await;
        big.show("begin").await;
        emit_in_savepoints(&big, 1..150, key).await;
        assert_eq!(drain(play, "default").await, "");
        play.show(&format!("select once.outbox_emit('t', '1000'{key})"))
            .await;
        assert_eq!(drain(play, "default").await, "1000");
        emit_in_savepoints(&big, 150..200, key).await;
        play.show(&format!("select once.outbox_emit('t', '1001'{key})"))
            .await;
        assert_eq!(drain(play, "default").await, "1001");
        big.show("commit").await;
        play.show(&format!("select once.outbox_emit('t', '1002'{key})"))
            .await;
        let came = drain(play, "default").await;
        let expected = left(1..200) + " 1002";
        match key {
            // Without a key they come from several lanes.
            "" => assert_eq!(crate::sorted(&came), crate::sorted(&expected)),
            _ => assert_eq!(came, expected),
        }
    }
}

#[tokio::test]
async fn a_prepared_transaction_delivers_when_it_is_committed_and_not_before() {
    for key in ["", ", 'key'"] {
        let stage = stage().await;
        let play = &stage.play;
        let emit = format!("select once.outbox_emit('t', '9'{key})");
        let name = &play.database.name;
        for (end, expected) in [("commit prepared", "9 10"), ("rollback prepared", "10")] {
            play.show("begin").await;
            emit_in_savepoints(play, 3..90, key).await;
            play.show("rollback; begin").await;
            play.show(&emit).await;
            play.show(&format!("prepare transaction 'emit {name}'"))
                .await;
            assert_eq!(drain(play, "default").await, "");
            play.show(&format!("select once.outbox_emit('t', '8'{key})"))
                .await;
            assert_eq!(drain(play, "default").await, "8");
            play.show(&format!("{end} 'emit {name}'")).await;
            play.show(&format!("select once.outbox_emit('t', '10'{key})"))
                .await;
            assert_eq!(drain(play, "default").await, expected, "{end}");
        }
    }
}
