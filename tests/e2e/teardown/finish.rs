//! The end of a teardown: what cancel_finish and cancel_confirm demand, what they see at every isolation
//! level, and that nothing can be undecided under a cancelled row.

use crate::playground::{Playground, Refusal};
use crate::shop::{self, Job};
use crate::waiting::Waiting;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

async fn flagged(points: &[i64]) -> (Playground, Job) {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", points).await;
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(play.show(&request).await, "teardown");
    (play, job)
}

fn finish(job: &Job) -> String {
    job.call(
        "outcome, status, items_total, amount_total",
        "cancel_finish",
        "",
    )
}

fn confirm(job: &Job, pass: i64) -> String {
    job.call("confirmed", "cancel_confirm", &format!(", {pass}"))
}

fn refund(job: &Job) -> String {
    job.call("pass", "cancel_refund", "")
}

async fn insert_item(play: &Playground, job: &Job) -> Result<String, Refusal> {
    play.attempt(&format!(
        "insert into batch_item (job_id, input, state, points, artifact)
         values ({}, 'late', 'succeeded', 9, 'late')",
        job.id
    ))
    .await
}

/// Asserts that the finish is refused for what is missing, and says what that is and what to do.
async fn incomplete(play: &Playground, job: &Job, what: &str) {
    let refusal = play.refused(&finish(job)).await;
    assert_eq!(refusal.code, "ON005", "{refusal:?}");
    let told = format!("{} {}", refusal.message, refusal.detail);
    assert!(told.contains(what), "{what}: {refusal:?}");
    assert!(told.contains("batch_job"), "{refusal:?}");
    assert!(told.contains(&job.id.to_string()), "{refusal:?}");
    assert!(!refusal.hint.is_empty(), "{refusal:?}");
}

#[tokio::test]
async fn finish_names_what_is_missing_until_nothing_is() {
    let (play, job) = flagged(&[1, 2]).await;
    incomplete(&play, &job, "undecided").await;
    play.show(&job.call("pass", "cancel_refund", ", 1")).await;
    incomplete(&play, &job, "undecided").await;
    assert_eq!(play.show(&confirm(&job, 1)).await, "t");
    incomplete(&play, &job, "undecided").await;
    assert_eq!(play.show(&refund(&job)).await, "2");
    incomplete(&play, &job, "confirmed").await;
    assert_eq!(play.show(&confirm(&job, 1)).await, "f");
    incomplete(&play, &job, "confirmed").await;
    assert_eq!(play.show(&confirm(&job, 2)).await, "t");
    assert_eq!(play.show(&finish(&job)).await, "cancelled|cancelled|2|3");
}

#[tokio::test]
async fn a_confirmation_of_an_earlier_pass_is_none() {
    let (play, job) = flagged(&[1]).await;
    assert_eq!(play.show(&refund(&job)).await, "1");
    insert_item(&play, &job).await.unwrap();
    assert_eq!(play.show(&refund(&job)).await, "2");
    assert_eq!(play.show(&confirm(&job, 1)).await, "f");
    assert_eq!(play.show(&confirm(&job, 2)).await, "t");
    assert_eq!(play.show(&confirm(&job, 2)).await, "t");
    // A late item after the confirmation takes it back, in effect.
    insert_item(&play, &job).await.unwrap();
    incomplete(&play, &job, "undecided").await;
    assert_eq!(play.show(&refund(&job)).await, "3");
    incomplete(&play, &job, "confirmed").await;
    assert_eq!(play.show(&confirm(&job, 3)).await, "t");
    assert_eq!(play.show(&finish(&job)).await, "cancelled|cancelled|3|19");
}

#[tokio::test]
async fn a_row_that_never_had_an_item_needs_neither_refund_nor_cleanup() {
    let (play, job) = flagged(&[]).await;
    assert_eq!(play.show(&finish(&job)).await, "cancelled|cancelled|0|0");
}

#[tokio::test]
async fn finish_sets_the_patch_and_the_version_and_repeats_without_a_write() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    for bad in ["id", "status", "version", "cancel_requested", "nothing"] {
        let patch = format!(", '{{\"{bad}\": 1}}'");
        let finish = job.call("status", "cancel_finish", &patch);
        assert_eq!(play.code(&finish).await, "22023", "{bad}");
    }
    let patch = ", '{\"result\": \"given back\"}'";
    let finish = job.call(
        "outcome, status, items_total, amount_total",
        "cancel_finish",
        patch,
    );
    assert_eq!(play.show(&finish).await, "cancelled|cancelled|1|1");
    let row = "select status, cancel_requested, version, result, xmin from batch_job";
    let shown = play.show(row).await;
    assert!(shown.starts_with("cancelled|t|1|given back|"), "{shown}");
    assert_eq!(play.show(&finish).await, "done|cancelled|1|1");
    let plain = self::finish(&job);
    assert_eq!(play.show(&plain).await, "done|cancelled|1|1");
    assert_eq!(play.show(row).await, shown);
}

#[tokio::test]
async fn an_item_committed_after_the_snapshot_is_seen() {
    for level in LEVELS {
        let (play, job) = flagged(&[1]).await;
        play.show(&refund(&job)).await;
        play.show(&confirm(&job, 1)).await;
        let writer = play.another().await;
        let sql = format!("begin isolation level {level}; select count(*) from batch_item");
        assert_eq!(play.show(&sql).await, "1");
        insert_item(&writer, &job).await.unwrap();
        assert_eq!(play.code(&finish(&job)).await, "ON005", "{level}");
        play.show("rollback").await;
    }
}

#[tokio::test]
async fn a_refund_after_the_snapshot_is_no_confirmation() {
    for level in LEVELS {
        let (play, job) = flagged(&[1]).await;
        play.show(&refund(&job)).await;
        play.show(&confirm(&job, 1)).await;
        let other = play.another().await;
        let sql = format!("begin isolation level {level}; select count(*) from batch_item");
        play.show(&sql).await;
        insert_item(&other, &job).await.unwrap();
        assert_eq!(other.show(&refund(&job)).await, "2");
        // Above READ COMMITTED the rows that the refund wrote may be a lost race instead.
        let refused = play.code(&finish(&job)).await;
        let expected: &[&str] = match level {
            "read committed" => &["ON005"],
            _ => &["ON005", "40001"],
        };
        assert!(expected.contains(&refused.as_str()), "{level}: {refused}");
        play.show("rollback").await;
    }
}

#[tokio::test]
async fn two_finishes_of_one_row_make_one_move() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    let first = play.another().await;
    first.show("begin").await;
    assert_eq!(first.show(&finish(&job)).await, "cancelled|cancelled|1|1");
    let second = Waiting::begin(&play, play.another().await, &finish(&job)).await;
    first.show("commit").await;
    assert_eq!(second.end().await.1.unwrap(), "done|cancelled|1|1");
    let row = "select status, version from batch_job";
    assert_eq!(play.show(row).await, "cancelled|1");
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(play.show(&request).await, "done");
}

#[tokio::test]
async fn without_a_refund_member_finish_needs_only_the_flag() {
    let play = Playground::open().await;
    play.show(
        r#"create table doc (id text primary key, status text not null default 'draft', stop boolean not null default false);
           insert into doc values ('a'), ('b');
           select once.machine_define('{"machine": "doc", "table": "doc", "id": "id", "status": "status",
               "status_types": ["draft", "sent", "void"], "terminal": ["sent", "void"],
               "transitions": [{"from": ["draft"], "to": "sent"}], "cancel": {"flag": "stop", "to": "void"}}');
           select once.machine_guard('doc', true)"#,
    )
    .await;
    play.ask("select once.cancel_finish('doc', 'a')")
        .fails("ON002")
        .await;
    for call in [
        "cancel_refund('doc', 'a')",
        "cancel_items('doc', 'a')",
        "cancel_confirm('doc', 'a', 1)",
    ] {
        assert_eq!(
            play.code(&format!("select once.{call}")).await,
            "22023",
            "{call}"
        );
    }
    play.ask("select outcome, status from once.cancel_request('doc', 'a')")
        .is("teardown|draft")
        .await;
    let moved = "select moved, reason from once.transition('doc', 'a', 'sent')";
    assert_eq!(play.show(moved).await, "f|cancelling");
    for outcome in ["cancelled", "done"] {
        assert_eq!(
            play.show("select * from once.cancel_finish('doc', 'a')")
                .await,
            format!("{outcome}|void|0|0")
        );
    }
    play.ask("select outcome from once.cancel_request('doc', 'a')")
        .is("done")
        .await;
}
