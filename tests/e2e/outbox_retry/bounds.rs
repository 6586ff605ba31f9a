//! The backoff: min(cap, base * 2^(n-1)) times a factor between 0.5 and 1 that spreads.

use pg_once_tests::race::poll_async;

use crate::stage::Stage;

/// Seconds until the next attempt of each row.
fn waits(rows: &str) -> Vec<f64> {
    rows.lines()
        .map(|line| line.split('|').nth(2).unwrap().parse().unwrap())
        .collect()
}

/// Names of so many events.
fn names(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("e{i}")).collect();
    names.join(" ")
}

#[tokio::test]
async fn each_failure_doubles_the_wait_up_to_the_cap_and_jitter_spreads_it() {
    let stage =
        Stage::open(r#"{"backoff_base": "10 s", "backoff_cap": "60 s", "max_attempts": 100}"#)
            .await;
    stage.emit(&names(300)).await;
    for (attempt, longest) in [(1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (5, 60.0)] {
        stage.clock(&format!("{attempt} hours")).await;
        let token = stage.take(1000).await.token;
        let waits = waits(&stage.nack(token, "", "").await);
        assert_eq!(waits.len(), 300);
        let (least, most) = (
            waits.iter().copied().fold(f64::MAX, f64::min),
            waits.iter().copied().fold(0.0, f64::max),
        );
        assert!(
            least >= longest * 0.5 && most <= longest,
            "{attempt}: {least} to {most}"
        );
        // Of 300, one in each outer tenth is missing once in 10^13 runs.
        assert!(
            least < longest * 0.55 && most > longest * 0.95,
            "{attempt}: {least} to {most}"
        );
    }
}

#[tokio::test]
async fn no_option_and_no_number_of_failures_overflows() {
    let stage = Stage::open(
        r#"{"backoff_base": "900 years", "backoff_cap": "900 years", "max_attempts": 2000000000}"#,
    )
    .await;
    stage.emit("a").await;
    let token = stage.take(1).await.token;
    // A month counts 30 days.
    let year = 360.0 * 86_400.0;
    let first = waits(&stage.nack(token, "", "").await)[0];
    assert!((449.0 * year..901.0 * year).contains(&first), "{first}");
    stage
        .play
        .show("update once.retry set failures = 1999999997, due_at = '2030-01-01'")
        .await;
    let token = stage.expect(1, "a:1999999998").await;
    let later = waits(&stage.nack(token, "", "").await)[0];
    assert!((449.0 * year..901.0 * year).contains(&later), "{later}");
    stage
        .play
        .show("update once.retry set due_at = '2030-01-01'")
        .await;
    let token = stage.take(1).await.token;
    let longest = ", retry_after => '1000 years'";
    let told = stage.nack(token, "", longest).await;
    assert!(
        (999.0 * year..1001.0 * year).contains(&waits(&told)[0]),
        "{told}"
    );
    stage
        .play
        .show("update once.retry set due_at = '2030-01-01'")
        .await;
    let token = stage.take(1).await.token;
    assert_eq!(stage.nack(token, "", "").await, "a|2000000000|~|t");
}

#[tokio::test]
async fn a_nack_of_ten_thousand_events_is_one_call() {
    let stage = Stage::open(r#"{"max_attempts": 2}"#).await;
    stage.emit(&names(10_000)).await;
    let token = stage.take(10_000).await.token;
    let rows = stage.nack(token, "", ", retry_after => '1 s'").await;
    assert_eq!(rows.lines().count(), 10_000);
    stage.clock("1 s").await;
    let token = stage.take(10_000).await.token;
    let rows = stage.nack(token, "", "").await;
    assert_eq!(
        rows.lines().filter(|r| r.ends_with("|2|~|t")).count(),
        10_000
    );
    assert_eq!(stage.redrive(10_000, "").await, "10000");
}

/// Entries of the index of due rows that this session has read so far, dead ones too.
async fn entries_read(stage: &Stage) -> u64 {
    stage.play.show("select pg_stat_force_next_flush()").await;
    let read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'retry_due'";
    stage.play.show(read).await.parse().unwrap()
}

#[tokio::test]
async fn takes_do_not_read_the_retries_that_an_old_snapshot_keeps() {
    const EVENTS: u64 = 8_000;
    let stage = Stage::open("{}").await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}'); reset once.fake_now")
        .await;
    let emit = format!(
        "select count(*) from generate_series(1, {EVENTS}) g,
                lateral once.outbox_emit('t', to_json(g), order_key => 'k' || g) e"
    );
    stage.play.show(&emit).await;
    let take = "select max(token) from once.outbox_take('t', max => 10000)";
    let token = stage.play.show(take).await;
    let nack = "select count(*) from once.outbox_nack('t', 'default'";
    stage
        .play
        .show(&format!("{nack}, {token}, retry_after => '1 h')"))
        .await;
    stage
        .play
        .show("update once.retry set due_at = due_at - interval '2 h'")
        .await;
    let old = stage.another().await;
    old.play
        .show("begin isolation level repeatable read; select count(*) from once.retry")
        .await;
    let token = stage.play.show(take).await;
    let ack = format!("select once.outbox_ack('t', 'default', {token})");
    assert_eq!(stage.play.show(&ack).await, EVENTS.to_string());

    let before = entries_read(&stage).await;
    for _ in 0..20 {
        assert!(stage.try_take(10).await.is_none());
    }
    let read = entries_read(&stage).await - before;
    assert!(read < 5 * EVENTS, "20 takes read {read} entries");

    // What comes due now is seen at once, and what was committed late with an old time a little later.
    stage.emit_keyed("a b", "x").await;
    let token = stage.expect(10, "a:1 b:1").await;
    let released = format!("{nack}, {token}, kind => 'released')");
    assert_eq!(stage.play.show(&released).await, "2");
    let token = stage.expect(1, "a:1").await;
    stage.ack(token, "").await;
    stage
        .play
        .show("update once.retry set due_at = due_at - interval '1 h'")
        .await;
    poll_async("an event that is late", async || {
        Ok(stage.try_take(10).await.filter(|t| t.shown == "b:1"))
    })
    .await
    .unwrap();
    old.play.show("commit").await;
}
