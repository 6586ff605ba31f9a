//! cancel_audit: it proves the sums, and shows what somebody has done behind the guard's back.

use crate::playground::Playground;
use crate::shop::{self, Job};

const AUDIT: &str =
    "select id, marked_amount, refunded_amount, difference from once.cancel_audit('batch_job')";

async fn torn_down(play: &Playground, wallet: &str, points: &[i64]) -> Job {
    let job = shop::job_of(play, wallet, points).await;
    play.show(&job.call("outcome", "cancel_request", "")).await;
    play.show(&job.call("pass", "cancel_refund", "")).await;
    play.show(&job.call("confirmed", "cancel_confirm", ", 1"))
        .await;
    job
}

async fn finish(play: &Playground, job: &Job) {
    let finish = job.call("status", "cancel_finish", "");
    assert_eq!(play.show(&finish).await, "cancelled");
}

async fn points(play: &Playground, wallet: &str) -> String {
    play.show(&format!(
        "select points from wallet where customer = '{wallet}'"
    ))
    .await
}

#[tokio::test]
async fn with_the_guard_on_nobody_undoes_a_refund_by_hand() {
    let play = shop::open().await;
    let job = torn_down(&play, "w", &[1, 2]).await;
    for sql in [
        "update batch_item set settled = null",
        "update batch_item set settled = 'kept'",
        "update batch_item set points = points + 1",
        "update batch_item set state = 'failed'",
        "delete from batch_item",
        "update batch_job set cancel_requested = false",
        "update batch_job set status = 'cancelled'",
        "update batch_job set status = 'running'",
        "update batch_job set status = 'done'",
    ] {
        let refusal = play.refused(sql).await;
        assert_eq!(refusal.code, "ON002", "{sql}: {refusal:?}");
    }
    let other = shop::job_of(&play, "other", &[]).await;
    let moved = format!("update batch_item set job_id = {}", other.id);
    assert_eq!(play.code(&moved).await, "ON002");
    // What the money does not depend on may change.
    play.show("update batch_item set input = 'seen', artifact = ''")
        .await;
    finish(&play, &job).await;
    assert_eq!(play.show(AUDIT).await, "");
    for sql in [
        "update batch_job set status = 'queued'",
        "update batch_job set cancel_requested = false",
        "update batch_item set points = points + 1",
        "update batch_item set settled = null",
    ] {
        assert_eq!(play.code(sql).await, "ON002", "{sql}");
    }
}

#[tokio::test]
async fn without_the_guard_repeated_calls_still_never_pay_twice() {
    let play = shop::open().await;
    shop::guard(&play, false).await;
    let job = torn_down(&play, "w", &[1, 2]).await;
    for _ in 0..3 {
        let refund = job.call("items, amount, amount_total", "cancel_refund", "");
        assert_eq!(play.show(&refund).await, "0|0|3");
    }
    finish(&play, &job).await;
    let refund = job.call("items, amount, amount_total", "cancel_refund", "");
    assert_eq!(play.show(&refund).await, "0|0|3");
    assert_eq!(points(&play, "w").await, "1000");
    assert_eq!(play.show(AUDIT).await, "");
}

#[tokio::test]
async fn a_marker_reset_by_hand_is_paid_again_and_shown() {
    let play = shop::open().await;
    let other = torn_down(&play, "other", &[10]).await;
    let job = torn_down(&play, "w", &[1, 2]).await;
    let id = job.id;
    shop::guard(&play, false).await;
    play.show(&format!(
        "update batch_item set settled = null where job_id = {id} and points = 2"
    ))
    .await;
    // What was refunded for it is not marked any more.
    assert_eq!(play.show(AUDIT).await, format!("{id}|1|3|2"));
    let refund = job.call(
        "items, amount, items_total, amount_total, pass",
        "cancel_refund",
        "",
    );
    assert_eq!(play.show(&refund).await, "1|2|3|5|2");
    assert_eq!(points(&play, "w").await, "1002");
    assert_eq!(play.show(AUDIT).await, format!("{id}|3|5|2"));
    play.ask(&job.call("confirmed", "cancel_confirm", ", 2"))
        .is("t")
        .await;
    finish(&play, &job).await;
    finish(&play, &other).await;
    assert_eq!(play.show(AUDIT).await, format!("{id}|3|5|2"));
    let one = |id: i64| format!("select difference from once.cancel_audit('batch_job', '{id}')");
    assert_eq!(play.show(&one(id)).await, "2");
    assert_eq!(play.show(&one(other.id)).await, "");
    assert_eq!(play.show(&one(0)).await, "");
}

#[tokio::test]
async fn a_marked_amount_changed_behind_the_guard_is_shown() {
    let play = shop::open().await;
    let job = torn_down(&play, "w", &[1, 2]).await;
    let id = job.id;
    shop::guard(&play, false).await;
    play.show("update batch_item set points = 7 where points = 2")
        .await;
    assert_eq!(play.show(AUDIT).await, format!("{id}|8|3|-5"));
    play.show("update batch_item set state = 'failed' where points = 7")
        .await;
    assert_eq!(play.show(AUDIT).await, format!("{id}|1|3|2"));
    play.show("update batch_item set state = 'succeeded', points = 2 where points = 7")
        .await;
    assert_eq!(play.show(AUDIT).await, "");
}

#[tokio::test]
async fn an_item_marked_by_hand_is_shown_with_or_without_a_refund() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[1, 2]).await;
    shop::guard(&play, false).await;
    play.show("update batch_item set settled = 'returned' where points = 2")
        .await;
    shop::guard(&play, true).await;
    assert_eq!(play.show(AUDIT).await, format!("{}|2|0|-2", job.id));
    play.show(&job.call("outcome", "cancel_request", "")).await;
    play.ask(&job.call("items, amount", "cancel_refund", ""))
        .is("1|1")
        .await;
    assert_eq!(play.show(AUDIT).await, format!("{}|3|1|-2", job.id));
}

#[tokio::test]
async fn a_row_that_is_gone_is_not_audited_and_the_record_stays() {
    let play = shop::open().await;
    let job = torn_down(&play, "w", &[1, 2]).await;
    finish(&play, &job).await;
    play.show("delete from batch_item; delete from batch_job")
        .await;
    assert_eq!(play.show(AUDIT).await, "");
    let record = "select row_id, pass, items, amount, wallet, role, at between now() - interval '1 minute' and clock_timestamp()
                    from once.refund";
    let expected = format!("{}|1|2|3|w|postgres|t", job.id);
    assert_eq!(play.show(record).await, expected);
}

#[tokio::test]
async fn a_role_that_may_not_write_the_tables_tears_nothing_down() {
    let play = shop::open().await;
    play.show(
        "create role reader_of_teardown login; grant usage on schema public to reader_of_teardown;
         grant select on all tables in schema public to reader_of_teardown;
         select once.grant_role('reader_of_teardown', 'use')",
    )
    .await;
    let job = shop::job_of(&play, "w", &[1]).await;
    let reader = play.another_as("reader_of_teardown").await;
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(reader.code(&request).await, "42501");
    play.show(&request).await;
    let refund = job.call("pass", "cancel_refund", "");
    assert_eq!(reader.code(&refund).await, "42501");
    // Rights on the job alone do not open the items, those on the items not the wallet.
    for table in ["batch_job", "batch_item"] {
        play.show(&format!("grant update on {table} to reader_of_teardown"))
            .await;
        assert_eq!(reader.code(&refund).await, "42501", "{table}");
    }
    play.show("grant update on wallet to reader_of_teardown")
        .await;
    assert_eq!(reader.show(&refund).await, "1");
    drop(reader);
    play.show("drop owned by reader_of_teardown; drop role reader_of_teardown")
        .await;
}
