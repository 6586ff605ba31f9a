//! cancel_request and cancel_pending: every outcome, and that each call of a teardown may be repeated.

use crate::playground::Playground;
use crate::shop::{self, Job};
use crate::waiting::Waiting;

async fn request(play: &Playground, job: &Job) -> String {
    play.show(&job.call("outcome, status", "cancel_request", ""))
        .await
}

async fn claim(play: &Playground, job: &Job, lease: &str) -> String {
    let claim = job.call(
        "token",
        "action_claim",
        &format!(", 'run', 'worker', '{lease}'"),
    );
    play.show(&claim).await
}

async fn pending(play: &Playground) -> String {
    play.show("select coalesce(string_agg(id, ' '), '') from once.cancel_pending('batch_job')")
        .await
}

async fn sweep(play: &Playground) -> String {
    play.show("select done, failed from once.sweep(10, 'action_release', 'batch_job')")
        .await
}

#[tokio::test]
async fn every_outcome_of_a_request_and_of_its_repeat() {
    let play = shop::open().await;
    let idle = shop::job(&play, "idle").await;
    for _ in 0..2 {
        assert_eq!(request(&play, &idle).await, "teardown|queued");
    }
    let running = shop::job(&play, "running").await;
    let token = claim(&play, &running, "1 hour").await;
    for _ in 0..2 {
        assert_eq!(request(&play, &running).await, "accepted|running");
    }
    let release = running.call("status", "action_release", &format!(", {token}"));
    play.show(&release).await;
    assert_eq!(request(&play, &running).await, "teardown|queued");

    let done = shop::job(&play, "done").await;
    let token = claim(&play, &done, "1 hour").await;
    play.show(&done.call("outcome", "action_finish", &format!(", {token}")))
        .await;
    for _ in 0..2 {
        assert_eq!(request(&play, &done).await, "too_late|done");
    }
    let flag = format!(
        "select cancel_requested from batch_job where id = {}",
        done.id
    );
    assert_eq!(play.show(&flag).await, "f");

    let empty = shop::job_of(&play, "empty", &[]).await;
    request(&play, &empty).await;
    play.show(&empty.call("status", "cancel_finish", "")).await;
    for _ in 0..2 {
        assert_eq!(request(&play, &empty).await, "done|cancelled");
    }
    let missing = "select outcome, status from once.cancel_request('batch_job', '0')";
    assert_eq!(play.show(missing).await, "not_found|~");
    let failed = shop::job(&play, "failed").await;
    let failed_id = failed.id;
    play.show(&format!(
        "select once.transition('batch_job', '{failed_id}', 'failed')"
    ))
    .await;
    assert_eq!(request(&play, &failed).await, "teardown|failed");
}

#[tokio::test]
async fn a_request_at_an_overdue_lease_is_accepted_until_the_sweep() {
    let play = shop::open().await;
    let job = shop::job(&play, "w").await;
    let token = claim(&play, &job, "1 microsecond").await;
    assert_eq!(request(&play, &job).await, "accepted|running");
    assert_eq!(pending(&play).await, "");
    play.ask(&job.call("pass", "cancel_refund", ""))
        .fails("ON002")
        .await;
    // The overdue lease is its holder's; nobody takes it over once the flag is set.
    let again = job.call("outcome", "action_claim", ", 'run', 'worker'");
    assert_eq!(play.show(&again).await, "in_progress");
    assert_eq!(sweep(&play).await, "1|0");
    assert_eq!(request(&play, &job).await, "teardown|queued");
    assert_eq!(play.show(&again).await, "cancelling");
    let extend = job.call("cancelling", "action_extend", &format!(", {token}"));
    assert_eq!(play.code(&extend).await, "ON001");
}

#[tokio::test]
async fn whoever_runs_the_job_sees_the_request() {
    let play = shop::open().await;
    let job = shop::job(&play, "w").await;
    let token = claim(&play, &job, "1 hour").await;
    let extend = job.call("cancelling", "action_extend", &format!(", {token}"));
    assert_eq!(play.show(&extend).await, "f");
    request(&play, &job).await;
    assert_eq!(play.show(&extend).await, "t");
    let finish = job.call("outcome, status", "action_finish", &format!(", {token}"));
    for _ in 0..2 {
        assert_eq!(play.show(&finish).await, "cancelling|running");
    }
    for call in ["cancel_refund", "cancel_finish"] {
        assert_eq!(play.code(&job.call("*", call, "")).await, "ON002", "{call}");
    }
    play.ask(&job.call("*", "cancel_confirm", ", 1"))
        .fails("ON002")
        .await;
    let release = job.call("status", "action_release", &format!(", {token}"));
    for _ in 0..2 {
        assert_eq!(play.show(&release).await, "queued");
    }
    assert_eq!(pending(&play).await, job.id.to_string());
    play.show(&job.call("pass", "cancel_refund", "")).await;
}

#[tokio::test]
async fn a_request_waits_for_a_finish_and_comes_too_late() {
    let play = shop::open().await;
    let job = shop::job(&play, "w").await;
    let token = claim(&play, &job, "1 hour").await;
    let worker = play.another().await;
    let finish = job.call("outcome", "action_finish", &format!(", {token}"));
    assert_eq!(worker.show(&format!("begin; {finish}")).await, "finished");
    let sql = job.call("outcome, status", "cancel_request", "");
    let waiting = Waiting::begin(&play, play.another().await, &sql).await;
    worker.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "too_late|done");
}

/// A defect once: the amounts were added up as what they were before.
#[tokio::test]
async fn a_refund_that_waits_while_a_type_changes_pays_what_the_items_say() {
    for (change, after) in [
        (
            "alter table batch_item alter points type numeric using points * 0.25",
            "2|0.75|1",
        ),
        ("alter table wallet alter points type int", "ON003"),
        ("alter table batch_item rename settled to decided", "ON003"),
    ] {
        let play = shop::open().await;
        play.show("alter table wallet alter points type numeric")
            .await;
        let job = shop::job_of(&play, "w", &[1, 2]).await;
        play.show(&job.call("outcome", "cancel_request", "")).await;
        shop::guard(&play, false).await;
        let balance = play.show("select points from wallet").await;
        let refund = job.call("items, amount_total, pass", "cancel_refund", "");
        let known = play.another().await;
        known.show(&format!("begin; {refund}; rollback")).await;
        let migration = play.another().await;
        migration
            .show("begin; lock table batch_item, wallet in access exclusive mode")
            .await;
        let waiting = Waiting::begin(&play, known, &refund).await;
        migration.show(&format!("{change}; commit")).await;
        let (session, answer) = waiting.end().await;
        assert_eq!(crate::waiting::code(&answer), "40001", "{change}");
        assert_eq!(play.show("select points from wallet").await, balance);
        match after {
            "ON003" => assert_eq!(session.code(&refund).await, after, "{change}"),
            _ => assert_eq!(session.show(&refund).await, after, "{change}"),
        }
    }
}

/// What is not listed is confirmed as deleted: a list has to be of what is there, not of what a snapshot shows.
#[tokio::test]
async fn a_list_of_artifacts_is_whole_whatever_the_snapshot() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[1, 2]).await;
    play.show(&job.call("outcome", "cancel_request", "")).await;
    let old = play.another().await;
    old.show("begin isolation level repeatable read; select count(*) from wallet")
        .await;
    play.show(&job.call("pass", "cancel_refund", "")).await;
    let list = job.call("count(*)", "cancel_items", "");
    assert_eq!(old.show(&list).await, "2");
    old.show("commit").await;
}

#[tokio::test]
async fn pending_lists_what_is_flagged_and_not_leased_and_not_finished_oldest_first() {
    let play = shop::open().await;
    let mut jobs = Vec::new();
    for n in 0..5 {
        jobs.push(shop::job_of(&play, &format!("w{n}"), &[1, 2]).await);
    }
    claim(&play, &jobs[1], "1 hour").await;
    claim(&play, &jobs[2], "1 microsecond").await;
    for n in [3, 2, 1, 0] {
        request(&play, &jobs[n]).await;
    }
    let id = |n: usize| jobs[n].id.to_string();
    assert_eq!(pending(&play).await, format!("{} {}", id(3), id(0)));
    assert_eq!(sweep(&play).await, "1|0");
    assert_eq!(pending(&play).await, [id(3), id(2), id(0)].join(" "));
    let first = "select id, status, items_total, amount_total, requested_at between now() - interval '1 minute' and clock_timestamp()
                   from once.cancel_pending('batch_job', 1)";
    assert_eq!(play.show(first).await, format!("{}|queued|0|0|t", id(3)));
    play.show(&jobs[3].call("pass", "cancel_refund", ", 1"))
        .await;
    assert_eq!(play.show(first).await, format!("{}|queued|1|1|t", id(3)));
    // A repeated request does not move the job to the end of the queue.
    request(&play, &jobs[3]).await;
    let pass = play.show(&jobs[3].call("pass", "cancel_refund", "")).await;
    play.show(&jobs[3].call("confirmed", "cancel_confirm", &format!(", {pass}")))
        .await;
    assert_eq!(play.show(first).await, format!("{}|queued|2|3|t", id(3)));
    play.show(&jobs[3].call("status", "cancel_finish", ""))
        .await;
    assert_eq!(pending(&play).await, [id(2), id(0)].join(" "));
    shop::guard(&play, false).await;
    play.show(&format!("delete from batch_item where job_id = {}", id(2)))
        .await;
    play.show(&format!("delete from batch_job where id = {}", id(2)))
        .await;
    assert_eq!(pending(&play).await, id(0), "a row that is gone");
}

#[tokio::test]
async fn every_call_of_a_teardown_may_be_repeated() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[1, 2]).await;
    request(&play, &job).await;
    request(&play, &job).await;
    let refund = job.call(
        "items, amount, items_total, amount_total, remaining, pass",
        "cancel_refund",
        "",
    );
    assert_eq!(play.show(&refund).await, "2|3|2|3|f|1");
    assert_eq!(play.show(&refund).await, "0|0|2|3|f|1");
    let confirm = job.call("confirmed", "cancel_confirm", ", 1");
    let finish = job.call(
        "outcome, status, items_total, amount_total",
        "cancel_finish",
        "",
    );
    for _ in 0..2 {
        assert_eq!(play.show(&confirm).await, "t");
    }
    let stored = "select (select string_agg(c::text, ' ') from once.cancel as c),
                         (select string_agg(r::text, ' ') from once.refund as r),
                         (select string_agg(j::text, ' ') from batch_job as j),
                         (select string_agg(w::text, ' ') from wallet as w)";
    assert_eq!(play.show(&finish).await, "cancelled|cancelled|2|3");
    let after = play.show(stored).await;
    for _ in 0..2 {
        assert_eq!(play.show(&finish).await, "done|cancelled|2|3");
        assert_eq!(request(&play, &job).await, "done|cancelled");
        assert_eq!(play.show(&refund).await, "0|0|2|3|f|1");
        assert_eq!(play.show(&confirm).await, "t");
    }
    assert_eq!(play.show(stored).await, after);
}

#[tokio::test]
async fn a_teardown_of_what_is_not_there_or_not_flagged_is_refused() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[1]).await;
    let done = shop::job(&play, "done").await;
    let token = claim(&play, &done, "1 hour").await;
    play.show(&done.call("outcome", "action_finish", &format!(", {token}")))
        .await;
    for id in [job.id, done.id, 0] {
        for call in [
            "cancel_refund('M', 'I')",
            "cancel_confirm('M', 'I', 1)",
            "cancel_finish('M', 'I')",
        ] {
            let sql = format!("select once.{call}");
            let here = sql.replace('M', "batch_job").replace('I', &id.to_string());
            let refusal = play.refused(&here).await;
            refusal.tells("ON002", &["batch_job", &id.to_string()], &here);
            let nowhere = sql.replace('M', "nothing").replace('I', "1");
            assert_eq!(play.code(&nowhere).await, "42704", "{nowhere}");
        }
    }
    for call in [
        "cancel_request('nothing', '1')",
        "cancel_items('nothing', '1')",
        "cancel_pending('nothing')",
        "cancel_audit('nothing')",
    ] {
        let sql = format!("select * from once.{call}");
        assert_eq!(play.code(&sql).await, "42704", "{call}");
        let null = sql.replace("'nothing'", "null");
        assert_eq!(play.code(&null).await, "22023", "{null}");
    }
    let bad = play
        .code("select once.cancel_request('batch_job', 'x')")
        .await;
    assert!(matches!(bad.as_str(), "22P02" | "22023"), "{bad}");
}

#[tokio::test]
async fn a_machine_without_cancel_has_no_teardown() {
    let play = Playground::open().await;
    play.show(
        r#"create table doc (id text primary key, status text not null default 'draft');
           insert into doc values ('a');
           select once.machine_define('{"machine": "doc", "table": "doc", "id": "id", "status": "status",
               "status_types": ["draft", "sent"], "transitions": [{"from": ["draft"], "to": "sent"}]}')"#,
    )
    .await;
    for call in [
        "cancel_request('doc', 'a')",
        "cancel_refund('doc', 'a')",
        "cancel_items('doc', 'a')",
        "cancel_confirm('doc', 'a', 1)",
        "cancel_finish('doc', 'a')",
        "cancel_pending('doc')",
    ] {
        let sql = format!("select * from once.{call}");
        assert_eq!(play.code(&sql).await, "22023", "{call}");
    }
}
