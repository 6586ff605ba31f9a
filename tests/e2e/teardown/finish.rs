//! The end of a teardown: what cancel_finish and cleanup_confirm demand, what they see at every isolation
//! level, and that nothing can be undecided under a cancelled row.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::race::backend_pid;
use std::time::Duration;

use crate::playground::{Playground, Refusal};
use crate::shop::{self, Job};
use crate::waiting::{Waiting, code};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

async fn flagged(points: &[i64]) -> (Playground, Job) {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", points).await;
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(play.show(&request).await, "teardown");
    (play, job)
}

fn finish(job: &Job) -> String {
    job.call("status, items_total, amount_total", "cancel_finish", "")
}

fn confirm(job: &Job, pass: i64) -> String {
    job.call("confirmed", "cleanup_confirm", &format!(", {pass}"))
}

fn refund(job: &Job) -> String {
    job.call("pass", "refund", "")
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
    play.show(&job.call("pass", "refund", ", 1")).await;
    incomplete(&play, &job, "undecided").await;
    assert_eq!(play.show(&confirm(&job, 1)).await, "t");
    incomplete(&play, &job, "undecided").await;
    assert_eq!(play.show(&refund(&job)).await, "2");
    incomplete(&play, &job, "confirmed").await;
    assert_eq!(play.show(&confirm(&job, 1)).await, "f");
    incomplete(&play, &job, "confirmed").await;
    assert_eq!(play.show(&confirm(&job, 2)).await, "t");
    assert_eq!(play.show(&finish(&job)).await, "cancelled|2|3");
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
    assert_eq!(play.show(&finish(&job)).await, "cancelled|3|19");
}

#[tokio::test]
async fn a_pass_that_no_refund_returned_is_a_bad_argument() {
    let (play, job) = flagged(&[1]).await;
    for pass in ["0", "1", "-1", "null"] {
        let confirm = job.call("confirmed", "cleanup_confirm", &format!(", {pass}"));
        assert_eq!(play.code(&confirm).await, "22023", "{pass}");
    }
    play.show(&refund(&job)).await;
    assert_eq!(play.code(&confirm(&job, 2)).await, "22023");
}

#[tokio::test]
async fn a_row_that_never_had_an_item_needs_neither_refund_nor_cleanup() {
    let (play, job) = flagged(&[]).await;
    assert_eq!(play.show(&finish(&job)).await, "cancelled|0|0");
}

#[tokio::test]
async fn a_marker_set_by_hand_before_any_refund_still_wants_a_cleanup() {
    let (play, job) = flagged(&[1]).await;
    play.show("update batch_item set settled = 'returned'")
        .await;
    assert_eq!(play.code(&finish(&job)).await, "ON005");
    assert_eq!(play.show(&refund(&job)).await, "1");
    assert_eq!(play.show(&confirm(&job, 1)).await, "t");
    assert_eq!(play.show(&finish(&job)).await, "cancelled|0|0");
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
    let finish = job.call("status, items_total, amount_total", "cancel_finish", patch);
    assert_eq!(play.show(&finish).await, "cancelled|1|1");
    let row = "select status, cancel_requested, version, result, xmin from batch_job";
    let shown = play.show(row).await;
    assert!(shown.starts_with("cancelled|t|1|given back|"), "{shown}");
    assert_eq!(play.show(&finish).await, "cancelled|1|1");
    assert_eq!(play.show(&self::finish(&job)).await, "cancelled|1|1");
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
async fn finish_waits_for_an_open_item_and_then_counts_it() {
    for level in LEVELS {
        let (play, job) = flagged(&[1]).await;
        play.show(&refund(&job)).await;
        play.show(&confirm(&job, 1)).await;
        let writer = play.another().await;
        writer.show("begin").await;
        insert_item(&writer, &job).await.unwrap();
        let session = play.another().await;
        let set = format!("set default_transaction_isolation = '{level}'");
        session.show(&set).await;
        let waiting = Waiting::begin(&play, session, &finish(&job)).await;
        writer.show("commit").await;
        let answer = waiting.end().await.1;
        assert_eq!(code(&answer), "ON005", "{level}: {answer:?}");
    }
}

#[tokio::test]
async fn finish_goes_on_when_the_open_item_is_rolled_back() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    let writer = play.another().await;
    writer.show("begin").await;
    insert_item(&writer, &job).await.unwrap();
    let waiting = Waiting::begin(&play, play.another().await, &finish(&job)).await;
    writer.show("rollback").await;
    assert_eq!(waiting.end().await.1.unwrap(), "cancelled|1|1");
}

/// Who has the turn waits for the row, and whoever has the row may want the turn: he needs none.
#[tokio::test]
async fn whoever_has_the_row_or_an_item_of_it_finishes_beside_one_that_waits_for_it() {
    let (play, _) = flagged(&[]).await;
    for (n, held) in [
        "select once.refund('batch_job', 'ID')",
        "update batch_job set result = 'x' where id = ID",
        "select from batch_job where id = ID for update",
        "update batch_item set input = 'seen' where job_id = ID",
    ]
    .iter()
    .enumerate()
    {
        let job = shop::job_of(&play, &format!("held {n}"), &[1]).await;
        play.show(&job.call("outcome", "cancel_request", "")).await;
        play.show(&refund(&job)).await;
        play.show(&confirm(&job, 1)).await;
        let holder = play.another().await;
        // It would find a deadlock as soon as it waits.
        holder.show("set deadlock_timeout = '1ms'").await;
        let held = held.replace("ID", &job.id.to_string());
        holder.show(&format!("begin; {held}")).await;
        let waiting = Waiting::begin(&play, play.another().await, &finish(&job)).await;
        let ended = holder.attempt(&finish(&job)).await;
        assert_eq!(ended.unwrap(), "cancelled|1|1", "{held}");
        holder.show("commit").await;
        assert_eq!(waiting.end().await.1.unwrap(), "cancelled|1|1", "{held}");
        holder.show("select pg_stat_force_next_flush()").await;
    }
    assert_eq!(play.show(shop::DEADLOCKS).await, "0");
}

/// It queues FOR UPDATE for a row that was locked so, and one writer gets past while another one waits behind it.
#[tokio::test]
async fn a_finish_that_keeps_a_writer_waiting_for_another_one_lets_it_go_first() {
    let (play, job) = flagged(&[1, 2]).await;
    let id = job.id;
    let item = |n: u32| {
        format!("update batch_item set input = input where job_id = {id} and artifact = '{id}-{n}'")
    };
    let first = play.another().await;
    let finisher = play
        .another_directly("postgres", "its backend is stopped")
        .await;
    let pid = Pid::from_raw(backend_pid(&finisher.client).await.unwrap());
    first
        .show(&format!(
            "begin; savepoint s; select from batch_job where id = {id} for update"
        ))
        .await;
    let finishing = Waiting::begin(&play, finisher, &finish(&job)).await;
    let second = play.another().await;
    second.show("begin").await;
    let behind = Waiting::begin(&play, second, &item(1)).await;
    kill(pid, Signal::SIGSTOP).unwrap();
    first.show(&format!("rollback to s; {}", item(0))).await;
    let wants_the_other = Waiting::begin(&play, first, &item(1)).await;
    kill(pid, Signal::SIGCONT).unwrap();
    let (second, answer) = behind.end().await;
    answer.unwrap();
    second.show("commit").await;
    let (first, answer) = wants_the_other.end().await;
    answer.unwrap();
    first.show("commit").await;
    assert_eq!(code(&finishing.end().await.1), "ON005");
}

/// It has the row as the transaction itself has: by no subtransaction, and by no list of several that have it.
#[tokio::test]
async fn a_finish_that_waits_for_nobody_takes_no_further_transaction_id() {
    let (play, job) = flagged(&[]).await;
    play.show("begin").await;
    let id = play.show("select pg_current_xact_id()").await;
    play.show(&finish(&job)).await;
    play.show("commit").await;
    let row = format!("select xmin, xmax from batch_job where id = {}", job.id);
    assert_eq!(play.show(&row).await, format!("{id}|{id}"));
}

/// After half a second, or when its lock_timeout says so, so that whoever it waits for goes on.
#[tokio::test]
async fn a_finish_in_a_circle_of_its_own_transaction_ends_it() {
    for (timeout, ends_with) in [("0", "40P01"), ("200ms", "55P03"), ("1ms", "55P03")] {
        ends_in_a_circle(timeout, ends_with).await;
    }
}

async fn ends_in_a_circle(timeout: &str, ends_with: &str) {
    let (play, job) = flagged(&[1]).await;
    let (finisher, writer) = (play.another().await, play.another().await);
    let item = format!(
        "update batch_item set input = input where job_id = {}",
        job.id
    );
    finisher
        .show("alter table batch_item disable trigger user")
        .await;
    finisher.show("select pg_stat_reset()").await;
    finisher
        .show(&format!(
            "begin; select pg_stat_force_next_flush(); set local lock_timeout = '{timeout}'; {item}"
        ))
        .await;
    writer
        .show(&format!(
            "begin; set local deadlock_timeout = '1min';
             select from batch_job where id = {} for key share",
            job.id
        ))
        .await;
    let writing = Waiting::begin(&play, writer, &item).await;
    let finishing = Waiting::send(finisher, &finish(&job));
    let (finisher, answer) = finishing.end().await;
    assert_eq!(code(&answer), ends_with, "{timeout}");
    writing.end().await.1.unwrap();
    // Circles that it left are no deadlocks.
    finisher.show("rollback").await;
    let told = "select deadlocks from pg_stat_database where datname = current_database()";
    let deadlocks = u8::from(ends_with == "40P01").to_string();
    assert_eq!(finisher.show(told).await, deadlocks, "{timeout}");
}

/// Each of others, and each left at once, the last one long after the first.
#[tokio::test]
async fn a_finish_that_meets_one_circle_after_another_goes_on() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    play.show("select once.machine_guard('batch_job', false)")
        .await;
    let id = job.id;
    // Whose circles are left, and not found by who looks first.
    let begin = "begin; set local deadlock_timeout = '1min'";
    let settled = format!(
        "{begin}; insert into batch_item (job_id, input, state, points, artifact, settled)
         values ({id}, 'x', 'succeeded', 0, '', 'returned')"
    );
    let item = format!("update batch_item set input = input where job_id = {id} and points = 1");
    let row = format!("update batch_job set result = 'x' where id = {id}");
    let mut keeper = play.another().await;
    keeper.show(&settled).await;
    let finishing = Waiting::begin(&play, play.another().await, &finish(&job)).await;
    for circle in 0..3 {
        let (holder, behind) = (play.another().await, play.another().await);
        let (first, next) = (play.another().await, play.another().await);
        holder.show(&format!("begin; {row}")).await;
        behind.show(&settled).await;
        first.show(&format!("{begin}; {item}")).await;
        let first = Waiting::begin(&play, first, &row).await;
        holder.show("commit").await;
        let behind = Waiting::begin(&play, behind, &item).await;
        next.show(&settled).await;
        keeper.show("commit").await;
        keeper = next;
        let (first, answer) = first.end().await;
        answer.unwrap();
        first.show("rollback").await;
        let (behind, answer) = behind.end().await;
        answer.unwrap();
        behind.show("rollback").await;
        if circle < 2 {
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    }
    keeper.show("rollback").await;
    assert_eq!(code(&finishing.end().await.1), "");
}

#[tokio::test]
async fn a_finish_without_its_turn_waits_no_longer_than_its_lock_timeout() {
    let (play, job) = flagged(&[]).await;
    let (holder, other) = (play.another().await, play.another().await);
    holder
        .show("begin; update batch_job set result = 'x'")
        .await;
    let waiting = Waiting::begin(&play, play.another().await, &finish(&job)).await;
    other
        .show("set lock_timeout = '1ms'; begin; savepoint s")
        .await;
    assert_eq!(other.code(&finish(&job)).await, "55P03");
    other.show("rollback to s").await;
    assert_eq!(other.show("show lock_timeout").await, "1ms");
    holder.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "cancelled|0|0");
    assert_eq!(other.show(&finish(&job)).await, "cancelled|0|0");
}

#[tokio::test]
async fn an_item_that_waited_for_the_finish_is_refused() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    let finisher = play.another().await;
    finisher.show(&format!("begin; {}", finish(&job))).await;
    let insert = format!(
        "insert into batch_item (job_id, input, state, points, artifact) values ({}, 'late', 'succeeded', 9, '')",
        job.id
    );
    let waiting = Waiting::begin(&play, play.another().await, &insert).await;
    finisher.show("commit").await;
    let answer = waiting.end().await.1;
    assert_eq!(code(&answer), "ON002", "{answer:?}");
    // And so is one whose snapshot is from before.
    let other = flagged_beside(&play, "other").await;
    let writer = play.another().await;
    writer
        .show("begin isolation level repeatable read; select count(*) from batch_job")
        .await;
    play.show(&finish(&other)).await;
    let answer = insert_item(&writer, &other).await;
    assert!(matches!(code(&answer), "ON002" | "40001"), "{answer:?}");
}

/// A second job, flagged and without items.
async fn flagged_beside(play: &Playground, wallet: &str) -> Job {
    let job = shop::job_of(play, wallet, &[]).await;
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(play.show(&request).await, "teardown");
    job
}

#[tokio::test]
async fn under_a_cancelled_row_items_may_go_but_not_come() {
    let (play, job) = flagged(&[1]).await;
    play.show(&refund(&job)).await;
    play.show(&confirm(&job, 1)).await;
    assert_eq!(play.code("delete from batch_item").await, "ON002");
    play.show(&finish(&job)).await;
    assert_eq!(code(&insert_item(&play, &job).await), "ON002");
    let undecided = "update batch_item set settled = null";
    assert_eq!(play.code(undecided).await, "ON002");
    play.show("delete from batch_item").await;
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
    assert_eq!(
        play.code("select once.cancel_finish('doc', 'a')").await,
        "ON002"
    );
    for call in [
        "refund('doc', 'a')",
        "cleanup_items('doc', 'a')",
        "cleanup_confirm('doc', 'a', 1)",
    ] {
        assert_eq!(
            play.code(&format!("select once.{call}")).await,
            "22023",
            "{call}"
        );
    }
    assert_eq!(
        play.show("select outcome, status from once.cancel_request('doc', 'a')")
            .await,
        "teardown|draft"
    );
    let moved = "select moved, reason from once.transition('doc', 'a', 'sent')";
    assert_eq!(play.show(moved).await, "f|cancelling");
    for _ in 0..2 {
        assert_eq!(
            play.show("select * from once.cancel_finish('doc', 'a')")
                .await,
            "void|0|0"
        );
    }
    assert_eq!(
        play.show("select outcome from once.cancel_request('doc', 'a')")
            .await,
        "done"
    );
}
