//! Every answer can be lost: the call is repeated, and converges as rule 3 says.

use crate::stage::Stage;

#[tokio::test]
async fn an_emit_without_a_dedupe_key_emits_again_and_with_one_does_not() {
    let stage = Stage::open("{}").await;
    let play = &stage.play;
    let plain = "select emitted from once.outbox_emit('t', '\"plain\"')";
    assert_eq!(play.show(plain).await, "t");
    assert_eq!(play.show(plain).await, "t");
    let keyed = |payload: &str| {
        format!(
            "select event_id, emitted from once.outbox_emit('t', '\"{payload}\"', dedupe_key => 'd')"
        )
    };
    let first = play.show(&keyed("first")).await;
    let (id, emitted) = first.split_once('|').unwrap();
    assert_eq!(emitted, "t");
    let repeated = format!("{id}|f");
    for payload in ["first", "other"] {
        assert_eq!(play.show(&keyed(payload)).await, repeated);
    }
    // With whatever else: order_key, delay and headers are not compared either.
    for more in ["order_key => 'k'", "delay => '1 h'", "headers => '{}'"] {
        let sql = format!(
            "select event_id, emitted from once.outbox_emit('t', '1', dedupe_key => 'd', {more})"
        );
        assert_eq!(play.show(&sql).await, repeated, "{more}");
    }
    assert_eq!(crate::drain(play, "default").await, "plain plain first");
    // Delivered and acked, it still counts until the window is over.
    assert_eq!(play.show(&keyed("again")).await, repeated);
    play.clock("23 h").await;
    assert_eq!(play.show(&keyed("again")).await, repeated);
    play.clock("25 h").await;
    assert!(play.show(&keyed("new")).await.ends_with("|t"));
    assert_eq!(crate::drain(play, "default").await, "new");
}

#[tokio::test]
async fn a_dedupe_key_counts_with_its_transaction_and_its_topic() {
    let stage = Stage::open("{}").await;
    let play = &stage.play;
    play.show("select once.topic_set('other', '{}')").await;
    let emit = |topic: &str| {
        format!("select emitted from once.outbox_emit('{topic}', '1', dedupe_key => 'd')")
    };
    play.show("begin").await;
    assert_eq!(play.show(&emit("t")).await, "t");
    assert_eq!(play.show(&emit("t")).await, "f");
    play.show("rollback").await;
    play.show("begin; savepoint s").await;
    assert_eq!(play.show(&emit("t")).await, "t");
    play.show("rollback to s").await;
    assert_eq!(play.show(&emit("t")).await, "t");
    play.show("commit").await;
    assert_eq!(play.show(&emit("t")).await, "f");
    assert_eq!(play.show(&emit("other")).await, "t");
    assert_eq!(crate::drain(play, "default").await, "1");
}

#[tokio::test]
async fn of_two_open_emitters_of_a_dedupe_key_the_second_waits_for_the_first() {
    use crate::waiting::Waiting;
    for (end, emitted) in [("commit", "f"), ("rollback", "t")] {
        let stage = Stage::open("{}").await;
        let play = &stage.play;
        let sql = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'd')";
        play.show("begin").await;
        assert_eq!(play.show(sql).await, "t");
        let other = play.another().await;
        let watcher = play.another().await;
        let waiting = Waiting::begin(&watcher, other, sql).await;
        play.show(end).await;
        assert_eq!(waiting.end().await.1.unwrap(), emitted, "{end}");
        assert_eq!(crate::drain(play, "default").await, "1", "{end}");
    }
}

/// An emit locks a topic's subscribers before its dedupe key.
#[tokio::test]
async fn a_delayed_emit_and_a_new_subscriber_with_an_emit_of_the_same_key_are_no_deadlock() {
    use crate::waiting::Waiting;
    let stage = Stage::open("{}").await;
    let (play, other) = (&stage.play, stage.play.another().await);
    let watcher = play.another().await;
    play.show("begin; select once.subscriber_set('t', 'new', '{}')")
        .await;
    let sql = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'd', delay => '1 min')";
    let waiting = Waiting::begin(&watcher, other, sql).await;
    play.show("select once.outbox_emit('t', '1', dedupe_key => 'd'); commit")
        .await;
    assert_eq!(waiting.end().await.1.unwrap(), "f");
}

#[tokio::test]
async fn a_lost_take_waits_for_its_lease() {
    let stage = Stage::open("{}").await;
    stage.emit("a").await;
    stage.expect(10, "a:1").await;
    stage.expect_nothing().await;
    // What is emitted meanwhile does not wait.
    stage.emit("b").await;
    let token = stage.expect(10, "b:1").await;
    stage.ack(token, "").await;
    stage.clock("59 s").await;
    stage.expect_nothing().await;
    // It was alone, so the lost delivery counts, and it comes back after a backoff of at most a second.
    stage.clock("61 s").await;
    stage.expect_nothing().await;
    stage.clock("62 s").await;
    stage.expect(10, "a:2").await;
}

/// Asserts that a statement is refused with this code, names these events, and writes nothing.
async fn is_told(stage: &Stage, sql: &str, code: &str, names: &str) {
    let before = stage.stored().await;
    let refusal = stage.play.refused(sql).await;
    refusal.tells(code, &[], sql);
    for name in names.split_whitespace() {
        let id = stage.id(name).to_string();
        let mut told = refusal.detail.split(|c: char| !c.is_ascii_digit());
        assert!(told.any(|word| word == id), "{sql}: {refusal:?}");
    }
    assert_eq!(stage.stored().await, before);
}

#[tokio::test]
async fn an_ack_of_what_this_token_has_acked_is_already_done() {
    for key in ["", "key"] {
        let stage = Stage::open("{}").await;
        match key {
            "" => stage.emit("a b c d").await,
            key => stage.emit_keyed("a b c d", key).await,
        }
        let token = stage.take(10).await.token;
        assert_eq!(stage.ack(token, "b b").await, "1");
        for names in ["b", "b b", "d b", "b d c"] {
            is_told(&stage, &stage.ack_sql(token, names), "ON006", "b").await;
        }
        assert_eq!(stage.ack(token, "d").await, "1");
        assert_eq!(stage.ack(token, "").await, "2");
        for names in ["", "a b c d", "b", "d a"] {
            is_told(&stage, &stage.ack_sql(token, names), "ON006", names).await;
        }
        let none = format!("select once.outbox_ack('t', 'default', {token}, '{{}}')");
        assert_eq!(stage.play.show(&none).await, "0");
        // The lease is long over, what was done still known.
        stage.clock("23 h").await;
        is_told(&stage, &stage.ack_sql(token, ""), "ON006", "a c").await;
        stage.expect_nothing().await;
    }
}

#[tokio::test]
async fn an_ack_again_in_its_transaction_answers_the_same_and_changes_nothing() {
    let stage = Stage::open("{}").await;
    stage.emit("a b c").await;
    let token = stage.take(10).await.token;
    stage.play.show("begin").await;
    for (names, acked) in [("b", "1"), ("a b", "2"), ("", "1")] {
        assert_eq!(stage.ack(token, names).await, acked, "{names}");
        let before = stage.stored().await;
        stage.play.show("savepoint s").await;
        assert_eq!(stage.ack(token, names).await, acked, "{names}");
        assert_eq!(stage.stored().await, before);
    }
    stage.play.show("commit").await;
    is_told(&stage, &stage.ack_sql(token, ""), "ON006", "c").await;
}

#[tokio::test]
async fn a_handlers_transaction_that_is_sent_twice_commits_its_writes_once() {
    let stage = Stage::open("{}").await;
    let play = &stage.play;
    play.show("create table handled (name text)").await;
    stage.emit("a b c d").await;
    let token = stage.take(10).await.token;
    let handle = async |end: &str| {
        let extend = format!("select once.outbox_extend('t', 'default', {token})");
        let sql = format!("begin; insert into handled values ('x'); {extend}; {end}; commit");
        let told = play.attempt(&sql).await.map_err(|refusal| refusal.code);
        if told.is_err() {
            play.show("rollback").await;
        }
        told.err().unwrap_or_default()
    };
    // Two handlers of one batch name their events; neither is told of the other's.
    let ends = [
        stage.ack_sql(token, "a"),
        stage.ack_sql(token, "b"),
        stage.nack_sql(token, "c", ", retry_after => '1 h'"),
    ];
    for end in &ends {
        assert_eq!(handle(end).await, "");
    }
    for end in &ends {
        assert_eq!(handle(end).await, "ON006", "{end}");
    }
    assert_eq!(play.show("select count(*) from handled").await, "3");
    assert_eq!(handle(&stage.ack_sql(token, "")).await, "");
    assert_eq!(handle(&stage.ack_sql(token, "")).await, "ON006");
    assert_eq!(play.show("select count(*) from handled").await, "4");
}

#[tokio::test]
async fn an_ack_of_what_this_token_has_nacked_is_lost_and_a_nack_of_it_already_done() {
    let stage = Stage::open(r#"{"backoff_base": "100 s", "backoff_cap": "100 s"}"#).await;
    stage.emit("a b c").await;
    let token = stage.take(10).await.token;
    assert_eq!(stage.ack(token, "a").await, "1");
    stage.nack(token, "b c", "").await;
    for (names, named) in [("a", "a"), ("a c", "a")] {
        is_told(&stage, &stage.ack_sql(token, names), "ON006", named).await;
    }
    for names in ["b", "c b"] {
        is_told(&stage, &stage.ack_sql(token, names), "ON001", names).await;
    }
    is_told(&stage, &stage.ack_sql(token, ""), "ON001", "").await;
    for names in ["", "b c", "a", "c"] {
        is_told(&stage, &stage.nack_sql(token, names, ""), "ON006", names).await;
    }
}

#[tokio::test]
async fn an_extension_counts_from_now_each_time_and_never_past_its_life() {
    let stage = Stage::open(r#"{"lease": "60 s", "max_lease_life": "10 min"}"#).await;
    stage.emit("a b").await;
    let token = stage.take(10).await.token;
    let extend = |lease: &str| format!("select once.outbox_extend('t', 'default', {token}{lease})");
    for at in ["10 s", "50 s", "100 s"] {
        stage.clock(at).await;
        for _ in 0..2 {
            assert_eq!(stage.play.show(&extend("")).await, "00:01:00", "{at}");
        }
        stage.expect_nothing().await;
    }
    let long = extend(", '1 h'");
    assert_eq!(stage.play.show(&long).await, "00:08:20");
    stage.clock("599 s").await;
    stage.expect_nothing().await;
    assert_eq!(stage.play.show(&long).await, "00:00:01");
    assert_eq!(stage.ack(token, "a").await, "1");
    stage.clock("601 s").await;
    // It ran out and nobody has it yet; then somebody has.
    stage.expect(10, "b:1").await;
    assert_eq!(stage.play.code(&long).await, "ON001");
    is_told(&stage, &stage.ack_sql(token, "b"), "ON001", "b").await;
    is_told(&stage, &stage.ack_sql(token, "a"), "ON006", "a").await;
}
