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

const TAKE: &str = "select max(token) from once.outbox_take('t', max => 10000)";

/// One lane, and an old snapshot that keeps so many retries of it that are over; a session that holds it.
async fn many_over(events: u64) -> (Stage, Stage) {
    let stage = Stage::open("{}").await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 1}'); reset once.fake_now")
        .await;
    let emit = format!(
        "select count(*) from generate_series(1, {events}) g,
                lateral once.outbox_emit('t', to_json(g), order_key => 'k' || g) e"
    );
    stage.play.show(&emit).await;
    let token = stage.play.show(TAKE).await;
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
    let token = stage.play.show(TAKE).await;
    let ack = format!("select once.outbox_ack('t', 'default', {token})");
    assert_eq!(stage.play.show(&ack).await, events.to_string());
    (stage, old)
}

#[tokio::test]
async fn takes_do_not_read_the_retries_that_an_old_snapshot_keeps() {
    const EVENTS: u64 = 8_000;
    let (stage, old) = many_over(EVENTS).await;
    let before = entries_read(&stage).await;
    // The first notes are as old as this session: a second later there are better ones.
    let mut looks = 0;
    poll_async("takes that begin where something is", async || {
        let before = entries_read(&stage).await;
        assert!(stage.try_take(10).await.is_none());
        looks += 1;
        Ok((entries_read(&stage).await - before < EVENTS / 10).then_some(()))
    })
    .await
    .unwrap();
    let read = entries_read(&stage).await - before;
    let before = entries_read(&stage).await;
    for _ in 0..20 {
        assert!(stage.try_take(10).await.is_none());
    }
    let then = entries_read(&stage).await - before;
    assert!(
        then < 2 * EVENTS,
        "20 takes read {then} entries, after {looks} that read {read}"
    );

    // What comes due now is seen at once, and what a superuser made due in the past a little later.
    let nack = "select count(*) from once.outbox_nack('t', 'default'";
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

/// A defect once: what a transaction brought that had been open for more than 5 s was hidden for up to 10 s.
#[tokio::test]
async fn what_a_transaction_brings_that_was_open_for_long_is_taken_at_once() {
    const EVENTS: u64 = 8_000;
    let stage = Stage::directly("asks what one backend remembers", "{}").await;
    stage.play.show("reset once.fake_now").await;
    // Delayed events are all in one lane, and in once.retry from the beginning.
    let emit = format!(
        "select count(*) from generate_series(1, {EVENTS}) g,
                lateral once.outbox_emit('t', to_json(g), delay => '1 us') e"
    );
    stage.play.show(&emit).await;
    let old = stage.another().await;
    old.play
        .show("begin isolation level repeatable read; select count(*) from once.retry")
        .await;
    let token = stage.play.show(TAKE).await;
    let ack = format!("select once.outbox_ack('t', 'default', {token})");
    assert_eq!(stage.play.show(&ack).await, EVENTS.to_string());
    for end in ["commit", "rollback"] {
        stage.emit_delayed("late", "1 us").await;
        let token = stage.expect(10, "late:1").await;
        let slow = stage.another().await;
        slow.play.show("reset once.fake_now").await;
        slow.play.show("begin").await;
        // Its clock was read an hour ago, so to speak.
        slow.play
            .show(&format!(
                "select count(*) from once.outbox_nack('t', 'default', {token}, kind => 'released');
                 update once.retry set due_at = due_at - interval '1 h'"
            ))
            .await;
        // A worker that came after that learns where something is, and takes from there on.
        let worker = stage.another().await;
        worker.play.show("reset once.fake_now").await;
        poll_async("takes that begin where something is", async || {
            let before = entries_read(&worker).await;
            worker.expect_nothing().await;
            Ok((entries_read(&worker).await - before < EVENTS / 10).then_some(()))
        })
        .await
        .unwrap();
        slow.play.show(end).await;
        if end == "commit" {
            let token = worker.expect(10, "late:1").await;
            worker.ack(token, "").await;
        } else {
            worker.expect_nothing().await;
            worker.ack(token, "").await;
        }
    }
    old.play.show("commit").await;
}
