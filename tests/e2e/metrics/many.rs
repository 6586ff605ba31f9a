//! Many subscribers: each has rows, and an idle one costs next to nothing.

use super::depth::{pages, pages_of};
use super::{shop, value};
use crate::playground::Playground;
use pg_once_tests::Cluster;

async fn topics(play: &Playground, count: usize) {
    play.show(&format!(
        "select count(once.topic_set('t' || i, '{{}}')) from generate_series(1, {count}) i"
    ))
    .await;
}

/// Of one topic's default subscriber; an empty text where it has no row.
async fn of(play: &Playground, name: &str, topic: &str) -> String {
    let labels = format!(r#"{{"topic": "{topic}", "subscriber": "default"}}"#);
    value(play, name, &labels).await
}

/// Of all subscribers.
async fn depth(play: &Playground) -> String {
    play.show("select sum(value) from once.metrics() where name = 'outbox_depth'")
        .await
}

async fn told(play: &Playground, name: &str) -> String {
    play.show(&format!(
        "select count(*) from once.metrics() where name = '{name}'"
    ))
    .await
}

#[tokio::test]
async fn a_thousand_idle_subscribers_are_cheap_and_each_has_its_rows() {
    // Other tests leave dead rows in catalogs and transactions that are looked for.
    let (_cluster, play) = shop(Cluster::builder()).await;
    play.clock("0").await;
    topics(&play, 1_000).await;
    // Whatever is done for each of 16 and 8 lanes, in this many tables, would be seen here.
    let tables = "insert into once.event_kept select 1, 1, now(), -1, 0, 1, null, null, 'null'";
    play.show(tables).await;
    for call in [
        "once.metrics()",
        "once.janitor_status()",
        "once.sweep(task => 'outbox_requeue')",
        "once.sweep(task => 'outbox_retire')",
        "once.doctor()",
    ] {
        let pages = pages_of(&play, call).await;
        assert!(pages < 16_000, "{call}: {pages} pages");
    }
    assert_eq!(told(&play, "outbox_lag_seconds").await, "1000");
    assert_eq!(told(&play, "outbox_dead_letters").await, "1000");
    assert_eq!(value(&play, "pg_once_outbox_complete", "{}").await, "1");
    assert_eq!(depth(&play).await, "0");
    let last = "t1000";
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "0");
    play.show(&format!(
        "select once.outbox_emit('{last}', '{{}}', k) from (values (null), ('k')) v (k)"
    ))
    .await;
    play.clock("10 min").await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    assert_eq!(of(&play, "outbox_depth", last).await, "2");
    // In a batch, in once.retry, dead: still told.
    let take = format!("select max(token) from once.outbox_take('{last}', lease => '1 h')");
    let token = play.show(&take).await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    play.show(&format!(
        "select once.outbox_nack('{last}', 'default', {token}, retry_after => '1 min')"
    ))
    .await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    play.clock("12 min").await;
    let token = play.show(&take).await;
    play.show(&format!(
        "select once.outbox_nack('{last}', 'default', {token}, kind => 'never')"
    ))
    .await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "0");
    assert_eq!(depth(&play).await, "0");
    assert_eq!(of(&play, "outbox_dead_letters_lately", last).await, "2");
}

#[tokio::test]
async fn subscribers_that_have_acked_everything_that_is_still_stored_are_cheap_too() {
    let (_cluster, play) = shop(Cluster::builder()).await;
    topics(&play, 200).await;
    play.show("select count(once.outbox_emit('t' || i % 200 + 1, '{}', case when i % 2 = 0 then 'k' || i end)) from generate_series(1, 800) i")
        .await;
    play.show(
        "do $$ declare token bigint; begin
            for i in 1 .. 200 loop
                select max(t.token) into token from once.outbox_take('t' || i) t;
                perform once.outbox_ack('t' || i, 'default', token);
            end loop; end $$",
    )
    .await;
    assert_eq!(depth(&play).await, "0");
    let pages = pages(&play).await;
    assert!(pages < 16_000, "{pages} pages");
    play.show("select once.outbox_emit('t77', '{}', 'k')").await;
    assert_eq!(of(&play, "outbox_depth", "t77").await, "1");
    assert_eq!(depth(&play).await, "1");
}
