//! What operators see and do: pending events, pauses, dead letters that are thrown away, the list of topics.

use crate::stage::Stage;

const PEEK: &str =
    "select payload #>> '{}', state, attempt, due_at is null, order_key from once.outbox_peek('t')";

async fn emit(stage: &Stage, payload: &str, more: &str) {
    stage
        .play
        .show(&format!(
            "select once.outbox_emit('t', '\"{payload}\"'{more})"
        ))
        .await;
}

/// A batch holds its events lane by lane.
#[tokio::test]
async fn the_lowest_events_of_a_batch_of_several_lanes_are_shown() {
    let stage = Stage::open("{}").await;
    let play = &stage.play;
    let all = "select count(once.outbox_emit('t', to_json(i))) from generate_series(1, 200) i";
    play.show(all).await;
    play.show("select count(*) from once.outbox_take('t', max => 200)")
        .await;
    let two = "select payload from once.outbox_peek('t', max => 3) where state = 'leased'";
    assert_eq!(play.show(two).await, "1\n2\n3");
}

#[tokio::test]
async fn pending_events_are_shown_with_their_states_and_stay() {
    let stage = Stage::open("{}").await;
    assert_eq!(stage.play.show(PEEK).await, "");
    for key in ["a1", "a2"] {
        emit(&stage, key, ", 'a'").await;
    }
    emit(&stage, "plain", "").await;
    emit(&stage, "later", ", delay => '1 h'").await;
    let all = "a1|ready|1|f|a\na2|ready|1|f|a\nplain|ready|1|f|~\nlater|delayed|1|f|~";
    assert_eq!(stage.play.show(PEEK).await, all);
    let two = "select payload #>> '{}' from once.outbox_peek('t', max => 2)";
    assert_eq!(stage.play.show(two).await, "a1\na2");
    // A take of the key's lane and of the plain event.
    let token = stage
        .play
        .show("select token from once.outbox_take('t', max => 2)")
        .await;
    let token = token.lines().next().unwrap().to_owned();
    emit(&stage, "a3", ", 'a'").await;
    let shown = stage.play.show(PEEK).await;
    assert!(shown.contains("|leased|1|f|"), "{shown}");
    // Of one that failed, the next ones of its key wait behind it.
    let nack = format!("select count(*) from once.outbox_nack('t', 'default', {token})");
    stage.play.show(&nack).await;
    let shown = stage.play.show(PEEK).await;
    assert!(shown.contains("|delayed|2|f|"), "{shown}");
    assert!(!shown.contains("leased"), "{shown}");
    // Everything is delivered in the end, and nothing is pending then.
    stage.clock("2 h").await;
    while let Some(taken) = stage.try_take(10).await {
        stage
            .play
            .show(&format!(
                "select once.outbox_ack('t', 'default', {})",
                taken.token
            ))
            .await;
    }
    assert_eq!(stage.play.show(PEEK).await, "");
}

#[tokio::test]
async fn an_event_behind_a_failed_one_of_its_key_waits_and_one_of_an_expired_lease_is_ready() {
    let stage = Stage::open("{}").await;
    emit(&stage, "a1", ", 'a'").await;
    emit(&stage, "a2", ", 'a'").await;
    let token = stage
        .play
        .show("select max(token) from once.outbox_take('t', max => 1, lease => '1 min')")
        .await;
    assert_eq!(
        stage.play.show(PEEK).await,
        "a1|leased|1|f|a\na2|waiting|1|t|a"
    );
    stage.clock("2 min").await;
    assert!(stage.play.show(PEEK).await.starts_with("a1|ready|1|f|a\n"));
    let nack = format!(
        "select count(*) from once.outbox_nack('t', 'default', {token}, retry_after => '1 h')"
    );
    stage.play.show(&nack).await;
    assert_eq!(
        stage.play.show(PEEK).await,
        "a1|delayed|2|f|a\na2|waiting|1|t|a"
    );
}

#[tokio::test]
async fn an_event_waits_for_the_batch_that_holds_events_of_its_lane() {
    let stage = Stage::open("{}").await;
    stage.emit_keyed("a1", "a").await;
    stage.emit_keyed("b1", "b").await;
    let token = stage.take(2).await.token;
    stage.ack(token, "a1").await;
    stage.emit_keyed("a2", "a").await;
    let shown = "b1|leased|1|f|b\na2|ready|1|f|a";
    assert_eq!(stage.play.show(PEEK).await, shown);
    let other = stage.expect(10, "a2:1").await;
    stage.ack(other, "").await;
    stage.ack(token, "").await;
    // Now all keys share a lane.
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}')")
        .await;
    stage.emit_keyed("x1", "x").await;
    let token = stage.take(10).await.token;
    stage.nack(token, "x1", ", retry_after => '10 s'").await;
    stage.emit_keyed("y1 y2", "y").await;
    let token = stage.expect(1, "y1:1").await;
    stage.clock("10 s").await;
    let shown = "x1|waiting|2|t|x\ny1|leased|1|f|y\ny2|waiting|1|t|y";
    assert_eq!(stage.play.show(PEEK).await, shown);
    stage.ack(token, "").await;
    let shown = "x1|ready|2|f|x\ny2|ready|1|f|y";
    assert_eq!(stage.play.show(PEEK).await, shown);
}

#[tokio::test]
async fn a_paused_subscriber_takes_nothing_and_what_is_out_may_be_acked() {
    let stage = Stage::open("{}").await;
    emit(&stage, "one", "").await;
    let out = stage.try_take(10).await.unwrap();
    let set = |paused: &str| {
        format!(
            "select once.subscriber_set('t', 'default', '{{\"paused\": {paused}}}') ->> 'paused'"
        )
    };
    assert_eq!(stage.play.show(&set("true")).await, "true");
    emit(&stage, "two", "").await;
    assert!(stage.try_take(10).await.is_none());
    let ack = format!("select once.outbox_ack('t', 'default', {})", out.token);
    assert_eq!(stage.play.show(&ack).await, "1");
    let list =
        "select topic, subscriber, paused, lag is not null, depth, dead, options ->> 'lanes',
                       options ->> 'max_attempts' from once.topic_list()";
    assert_eq!(stage.play.show(list).await, "t|default|t|t|1|0|16|10");
    let metric = "select value from once.metrics() where name = 'outbox_paused'";
    assert_eq!(stage.play.show(metric).await, "1");
    let told = "select level, problem from once.doctor() where problem like 'paused%'";
    assert_eq!(
        stage.play.show(told).await,
        "info|paused: topic \"t\", subscriber \"default\""
    );
    assert_eq!(stage.play.show(&set("null")).await, "false");
    assert!(stage.try_take(10).await.is_some());
    assert_eq!(stage.play.show(metric).await, "0");
    let code = stage
        .play
        .code("select once.subscriber_set('t', 'default', '{\"paused\": 1}')")
        .await;
    assert_eq!(code, "22023");
}

#[tokio::test]
async fn a_topic_without_subscribers_is_listed() {
    let stage = Stage::open("{}").await;
    stage
        .play
        .show("select once.topic_set('bare', '{\"subscribers\": []}')")
        .await;
    let list =
        "select topic, subscriber, options ->> 'dedupe_for', paused, depth from once.topic_list()";
    assert_eq!(
        stage.play.show(list).await,
        "bare|~|24:00:00|~|~\nt|default|24:00:00|f|0"
    );
}

/// An event with this payload, dead.
async fn dead(stage: &Stage, payload: &str) -> String {
    emit(stage, payload, "").await;
    let taken = stage.try_take(1).await.unwrap();
    let more = ", kind => 'never', error => 'of ada@example.org'";
    stage.nack(taken.token, "", more).await;
    stage
        .play
        .show("select max(event_id) from once.outbox_dead('t')")
        .await
}

/// Rows of the extension's tables that have this text.
async fn left(stage: &Stage, text: &str) -> String {
    let all = "select string_agg(format('select %L from %s t where t::text like %L', c.relname, c.oid::regclass, '%'), ' union all ')
                 from pg_class c where c.relnamespace = 'once'::regnamespace and c.relkind = 'r' and c.relname !~ '^event_[0-3]'";
    let sql = stage
        .play
        .show(all)
        .await
        .replace("'%'", &format!("'%{text}%'"));
    stage.play.show(&sql).await
}

#[tokio::test]
async fn a_dead_letter_that_is_discarded_is_nowhere_any_more() {
    let stage = Stage::open("{}").await;
    let id = dead(&stage, "ada@example.org").await;
    let other = dead(&stage, "bob@example.org").await;
    let discard = format!("select once.outbox_discard('t', 'default', array[{id}, {id}, -5])");
    assert_eq!(stage.play.show(&discard).await, "1");
    assert_eq!(stage.play.show(&discard).await, "0", "a repeated call");
    let listed = "select event_id from once.outbox_dead('t')";
    assert_eq!(stage.play.show(listed).await, other);
    stage
        .play
        .ask(&format!(
            "select count(*) from once.outbox_deliveries('t', 'default', {id})"
        ))
        .is("0")
        .await;
    let code = stage
        .play
        .code("select once.outbox_discard('t', 'default', null)")
        .await;
    assert_eq!(code, "22023");
    // Segments are truncated as a whole, which outbox_retire's tests show.
    assert_eq!(
        left(&stage, "ada@example.org")
            .await
            .matches("dead")
            .count(),
        1
    );
    stage
        .play
        .show(&format!(
            "select once.outbox_discard('t', 'default', array[{other}])"
        ))
        .await;
    assert_eq!(left(&stage, "example.org").await, "");
}

#[tokio::test]
async fn dead_letters_end_with_dead_for_whether_a_sweep_has_run_or_not() {
    let stage = Stage::open(r#"{"dead_for": "2 days"}"#).await;
    let first = dead(&stage, "first").await;
    stage.clock("1 day").await;
    let second = dead(&stage, "second").await;
    let listed = "select event_id from once.outbox_dead('t')";
    assert_eq!(stage.play.show(listed).await, format!("{first}\n{second}"));
    stage.clock("49 hours").await;
    assert_eq!(stage.play.show(listed).await, second);
    let redrive = format!("select once.outbox_redrive('t', event_ids => array[{first}])");
    assert_eq!(stage.play.show(&redrive).await, "0");
    let due = "select due from once.janitor_status() where task = 'dead_reap'";
    assert_eq!(stage.play.show(due).await, "1");
    let reap = "select done, failed, more from once.sweep(task => 'dead_reap')";
    assert_eq!(stage.play.show(reap).await, "1|0|f");
    assert_eq!(stage.play.show(reap).await, "0|0|f");
    assert_eq!(
        stage.play.show("select event_id from once.dead").await,
        second
    );
}
