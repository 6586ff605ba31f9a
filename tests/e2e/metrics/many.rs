//! More subscribers than have rows: idle ones cost next to nothing, and the worst are always told.

use super::depth::{pages, pages_of};
use super::{shop, value};
use crate::playground::Playground;
use pg_once_tests::Cluster;
use std::time::Instant;

/// Subscribers that have rows of a kind.
const TOLD: usize = 200;

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

/// How many subscribers have anything to tell, and whether all is told.
async fn outbox(play: &Playground, kind: &str) -> String {
    let labels = format!(r#"{{"of": "{kind}"}}"#);
    let subscribers = value(play, "pg_once_outbox_subscribers", &labels).await;
    let complete = value(play, "pg_once_outbox_complete", &labels).await;
    format!("{subscribers} {complete}")
}

async fn told(play: &Playground, name: &str) -> String {
    play.show(&format!(
        "select count(*) from once.metrics() where name = '{name}'"
    ))
    .await
}

/// For a person who reads the log: a loaded machine says little of the clock, the best of some runs a bit more.
async fn times(play: &Playground, call: &str) -> String {
    let mut times = Vec::new();
    for _ in 0..15 {
        let begin = Instant::now();
        play.show(&format!("select count(*) from {call}")).await;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    format!("best {:?}, median {:?}", times[0], times[7])
}

#[tokio::test]
async fn a_thousand_idle_subscribers_cost_a_row_each_and_hide_none_that_lags() {
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
        assert!(pages < 8_000, "{call}: {pages} pages");
        eprintln!("{call}: {pages} pages, {}", times(&play, call).await);
    }
    assert_eq!(told(&play, "outbox_lag_seconds").await, TOLD.to_string());
    assert_eq!(told(&play, "outbox_dead_letters").await, TOLD.to_string());
    for kind in ["backlog", "dead_letters", "failures"] {
        assert_eq!(outbox(&play, kind).await, "0 1", "{kind}");
    }
    let last = "t1000";
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "");
    play.show(&format!(
        "select once.outbox_emit('{last}', '{{}}', k) from (values (null), ('k')) v (k)"
    ))
    .await;
    play.clock("10 min").await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    assert_eq!(of(&play, "outbox_depth", last).await, "2");
    assert_eq!(outbox(&play, "backlog").await, "1 1");
    // In a batch, in once.retry, dead: still told.
    let take = format!("select max(token) from once.outbox_take('{last}', lease => '1 h')");
    let token = play.show(&take).await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    play.show(&format!(
        "select once.outbox_nack('{last}', 'default', {token}, retry_after => '1 min')"
    ))
    .await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "600");
    assert_eq!(outbox(&play, "failures").await, "1 1");
    play.clock("12 min").await;
    let token = play.show(&take).await;
    play.show(&format!(
        "select once.outbox_nack('{last}', 'default', {token}, kind => 'never')"
    ))
    .await;
    assert_eq!(of(&play, "outbox_lag_seconds", last).await, "");
    assert_eq!(outbox(&play, "backlog").await, "0 1");
    assert_eq!(of(&play, "outbox_dead_letters_lately", last).await, "2");
    assert_eq!(outbox(&play, "dead_letters").await, "1 1");
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
    assert_eq!(outbox(&play, "backlog").await, "0 1");
    let pages = pages(&play).await;
    eprintln!("{pages} pages, {}", times(&play, "once.metrics()").await);
    assert!(pages < 12_000, "{pages} pages");
    play.show("select once.outbox_emit('t77', '{}', 'k')").await;
    assert_eq!(outbox(&play, "backlog").await, "1 1");
    assert_eq!(of(&play, "outbox_depth", "t77").await, "1");
}

#[tokio::test]
async fn of_more_than_have_rows_the_worst_are_told_and_a_gauge_says_that_others_are_not() {
    let play = Playground::open().await;
    topics(&play, 250).await;
    // The later the number, the older: the first topics are the best.
    play.show(
        "do $$ begin
            for i in reverse 250 .. 1 loop
                perform set_config('once.fake_now', ('2030-01-01+00'::timestamptz - i * interval '1 min')::text, false);
                perform once.outbox_emit('t' || i, '{}');
            end loop; end $$",
    )
    .await;
    play.clock("0").await;
    assert_eq!(told(&play, "outbox_lag_seconds").await, TOLD.to_string());
    let least = "select min(value) >= 51 * 60, max(value) >= 250 * 60 from once.metrics() where name = 'outbox_lag_seconds'";
    assert_eq!(play.show(least).await, "t|t");
    assert_eq!(outbox(&play, "backlog").await, "250 0");
    // Each fails and dies; the youngest deaths are those of the last topics.
    play.show(
        "do $$ declare token bigint; begin
            for i in 1 .. 250 loop
                perform set_config('once.fake_now', ('2030-01-01+00'::timestamptz - (250 - i) * interval '1 s')::text, false);
                select max(t.token) into token from once.outbox_take('t' || i) t;
                perform once.outbox_nack('t' || i, 'default', token, kind => 'never');
            end loop; end $$",
    )
    .await;
    play.clock("0").await;
    assert_eq!(outbox(&play, "backlog").await, "0 1");
    assert_eq!(outbox(&play, "dead_letters").await, "250 0");
    assert_eq!(outbox(&play, "failures").await, "250 0");
    assert_eq!(
        told(&play, "outbox_dead_letters_lately").await,
        TOLD.to_string()
    );
    assert_eq!(of(&play, "outbox_dead_letters_lately", "t250").await, "1");
    assert_eq!(of(&play, "outbox_dead_letters_lately", "t51").await, "1");
    assert_eq!(of(&play, "outbox_dead_letters_lately", "t50").await, "");
    play.show(
        "select count(once.outbox_redrive('t' || i, 'default')) from generate_series(1, 60) i",
    )
    .await;
    assert_eq!(outbox(&play, "dead_letters").await, "190 1");
}

/// Whoever writes while a lane is taken from may yet emit a lower id, and is looked for in that lane.
#[tokio::test]
async fn open_writers_hide_no_subscriber_and_a_gauge_says_where_they_were_too_many_to_be_looked_for()
 {
    const WRITERS: usize = 400;
    const SUBSCRIBERS: usize = 100;
    let builder = Cluster::builder().setting("max_prepared_transactions", "1000");
    let (cluster, before) = shop(builder).await;
    for name in ["beside", "behind"] {
        cluster.create_database_with_extension(name).await.unwrap();
    }
    let writers = async |database: &str, sql: &str| {
        let writer = Playground::on(&cluster, database).await;
        for i in 0..WRITERS {
            writer
                .show(&format!(
                    "begin; {sql}; prepare transaction '{database} {i}'"
                ))
                .await;
        }
        writer
    };
    let topic = async |play: &Playground| {
        play.show("select once.topic_set('t', '{\"subscribers\": [\"first\"]}')")
            .await;
    };
    let subscribe = async |play: &Playground| {
        let some = format!(
            "select count(once.subscriber_set('t', 's' || i, '{{}}')) from generate_series(2, {SUBSCRIBERS}) i"
        );
        play.show(&some).await;
        play.show("select count(once.outbox_emit('t', '{}', 'k' || i % 500)) from generate_series(1, 2000) i")
            .await;
    };
    let all_told = async |play: &Playground, complete: u8| {
        let told_of = outbox(play, "backlog").await;
        assert_eq!(told_of, format!("{SUBSCRIBERS} {complete}"));
        let rows = told(play, "outbox_lag_seconds").await;
        assert_eq!(rows, SUBSCRIBERS.to_string());
        pages(play).await
    };
    topic(&before).await;
    subscribe(&before).await;
    let alone = all_told(&before, 1).await;
    // Those that write elsewhere are asked for once, not in each lane.
    let elsewhere = writers("postgres", "select pg_current_xact_id()").await;
    // One that has ended shows every snapshot that the others have not.
    elsewhere.show("select pg_current_xact_id()").await;
    let beside = Playground::on(&cluster, "beside").await;
    topic(&beside).await;
    subscribe(&beside).await;
    let pages = all_told(&beside, 1).await;
    assert!(
        pages < alone + alone / 4 + 10 * WRITERS as u64,
        "{pages} pages, {alone} alone"
    );
    let behind = Playground::on(&cluster, "behind").await;
    topic(&behind).await;
    let writer = writers("behind", "select once.outbox_emit('t', '{}', 'late')").await;
    subscribe(&behind).await;
    for i in 0..WRITERS {
        writer.show(&format!("commit prepared 'behind {i}'")).await;
    }
    let pages = all_told(&behind, 0).await;
    assert!(pages < alone + 400_000, "{pages} pages, {alone} alone");
}
