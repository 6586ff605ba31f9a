//! What somebody may not do to a machine's rows with plain SQL, and what anybody may.

use crate::playground::Playground;
use crate::world::{jobs, token};
use crate::{guarded, illegal, rows, with_jobs};
use pg_once_tests::script::rows as table;

/// Asserts that each statement is refused, naming the row that stands before it, and that nothing changed.
async fn all_illegal(statements: &str) {
    let play = guarded().await;
    with_jobs(&play).await;
    let before = rows(&play).await;
    for [row, sql] in table(statements) {
        let refusal = illegal(&play, sql).await;
        let told = format!("{} {}", refusal.message, refusal.detail);
        assert!(told.contains(row), "{row} is not in: {sql}: {refusal:?}");
    }
    assert_eq!(rows(&play).await, before);
}

#[tokio::test]
async fn a_flag_is_not_cleared() {
    all_illegal(
        "6 | update job set cancel_requested = false where id = 6
         8 | update job set cancel_requested = false where id = 8
         7 | update job set cancel_requested = false where id = 7
         6 | update job set cancel_requested = not cancel_requested where id = 6
         6 | update job set cancel_requested = false, status = 'failed' where id = 6",
    )
    .await;
}

#[tokio::test]
async fn a_flag_is_not_set_but_by_cancel_request() {
    all_illegal(
        "1 | update job set cancel_requested = true where id = 1
         3 | update job set cancel_requested = true where id = 3
         5 | update job set cancel_requested = true where id = 5
         2 | update job set cancel_requested = true, status = 'failed' where id = 2",
    )
    .await;
}

#[tokio::test]
async fn a_cancelled_job_is_not_resurrected() {
    all_illegal(
        "7 | update job set status = 'ready' where id = 7
         7 | update job set status = 'new' where id = 7
         7 | update job set status = 'running' where id = 7
         7 | update job set status = 'archived' where id = 7
         7 | update job set status = 'ready', cancel_requested = false where id = 7",
    )
    .await;
}

#[tokio::test]
async fn only_cancel_finish_writes_the_cancelled_state() {
    all_illegal(
        "1 | update job set status = 'cancelled' where id = 1
         3 | update job set status = 'cancelled' where id = 3
         6 | update job set status = 'cancelled' where id = 6
         2 | update job set status = 'cancelled', cancel_requested = true where id = 2",
    )
    .await;
}

#[tokio::test]
async fn a_step_is_not_skipped_and_a_terminal_status_not_left() {
    all_illegal(
        "1 | update job set status = 'done' where id = 1
         2 | update job set status = 'done' where id = 2
         2 | update job set status = 'archived' where id = 2
         1 | update job set status = 'failed' where id = 1
         5 | update job set status = 'done' where id = 5
         5 | update job set status = 'new' where id = 5
         1 | update job set status = 'nonsense' where id = 1
         1 | update job set status = '' where id = 1
         1 | update job set status = 'READY' where id = 1",
    )
    .await;
}

#[tokio::test]
async fn a_flagged_job_makes_no_declared_move() {
    all_illegal(
        "6 | update job set status = 'failed' where id = 6
         6 | update job set status = 'new' where id = 6
         8 | update job set status = 'ready' where id = 8
         8 | update job set status = 'done' where id = 8",
    )
    .await;
}

#[tokio::test]
async fn a_claim_state_is_entered_and_left_only_by_its_lease() {
    all_illegal(
        "2 | update job set status = 'running' where id = 2
         2 | update job set status = 'retrying' where id = 2
         3 | update job set status = 'ready' where id = 3
         3 | update job set status = 'done' where id = 3
         3 | update job set status = 'failed' where id = 3
         3 | update job set status = 'retrying' where id = 3",
    )
    .await;
}

#[tokio::test]
async fn a_row_is_not_inserted_into_a_claim_state_or_the_cancelled_one() {
    all_illegal(
        "100 | insert into job (id, status) values (100, 'running')
         100 | insert into job (id, status) values (100, 'retrying')
         100 | insert into job (id, status) values (100, 'cancelled')
         100 | insert into job (id, status, cancel_requested) values (100, 'cancelled', true)
         100 | insert into job select 100, 'c', 'running'
         101 | insert into job (id, status) values (100, 'new'), (101, 'running')",
    )
    .await;
    let play = guarded().await;
    for status in ["new", "ready", "failed", "done", "archived"] {
        play.show(&format!(
            "insert into job (id, status) select count(*) + 1, '{status}' from job"
        ))
        .await;
    }
}

#[tokio::test]
async fn a_refusal_says_who_holds_the_row_and_for_how_long() {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    token(&play, 1, "run", ", lease => '90 s', holder => 'attempt-77'").await;
    play.clock("30 s").await;
    let refusal = illegal(&play, "update job set status = 'ready' where id = 1").await;
    let told = format!("{} {} {}", refusal.message, refusal.detail, refusal.hint);
    assert!(told.contains("attempt-77"), "{refusal:?}");
    assert!(
        told.contains("00:01:00") || told.contains("60") || told.contains("1 min"),
        "{refusal:?}"
    );
    assert!(told.contains("running"), "{refusal:?}");
    // And that nobody does any more.
    play.clock("5 min").await;
    let refusal = illegal(&play, "update job set status = 'ready' where id = 1").await;
    let told = format!("{} {} {}", refusal.message, refusal.detail, refusal.hint);
    assert!(!told.contains("-00:"), "{refusal:?}");
    play.show("select once.sweep(task => 'action_release')")
        .await;
    let off = "select once.machine_guard('job', false); update job set status = 'running' where id = 1; \
               select once.machine_guard('job', true)";
    play.show(off).await;
    let refusal = illegal(&play, "update job set status = 'ready' where id = 1").await;
    assert!(refusal.detail.contains("action_adopt"), "{refusal:?}");
}

#[tokio::test]
async fn a_when_that_is_false_on_the_old_row_refuses_the_move() {
    let play = guarded().await;
    jobs(&play, 1, 3, "new").await;
    play.show("update job set n = -1 where id = 1").await;
    illegal(&play, "update job set status = 'ready' where id = 1").await;
    illegal(&play, "update job set status = 'ready', n = 5 where id = 1").await;
    play.show("update job set status = 'ready', n = -5 where id = 2")
        .await;
    play.show("alter table job alter n drop not null; update job set n = null where id = 3")
        .await;
    illegal(&play, "update job set status = 'ready' where id = 3").await;
}

#[tokio::test]
async fn declared_moves_by_plain_update_pass() {
    let play = guarded().await;
    jobs(&play, 1, 3, "new").await;
    for one in ["ready", "failed", "new"] {
        play.show(&format!("update job set status = '{one}' where id = 1"))
            .await;
    }
    play.show("update job set status = 'ready', note = 'x', n = 4")
        .await;
    jobs(&play, 4, 4, "done").await;
    play.show("update job set status = 'archived' where id = 4")
        .await;
    play.ask("select string_agg(status, ',' order by id) from job")
        .is("ready,ready,ready,archived")
        .await;
}

#[tokio::test]
async fn a_move_that_only_one_requester_has_passes_by_hand() {
    // The guard cannot know who asks; the move is declared.
    let play = guarded().await;
    jobs(&play, 1, 1, "failed").await;
    play.show("update job set status = 'archived' where id = 1")
        .await;
}

#[tokio::test]
async fn updates_that_change_no_status_pass_whatever_the_row_wears() {
    let play = guarded().await;
    let token = with_jobs(&play).await;
    play.show("update job set note = 'x', n = n + 1, version = version")
        .await;
    play.show("update job set status = status, cancel_requested = cancel_requested")
        .await;
    play.show("update job set status = 'cancelled' where id = 7; update job set cancel_requested = true where id = 6")
        .await;
    play.show("update wallet set points = points + 1").await;
    play.ask("select min(n), count(note) from job")
        .is("1|8")
        .await;
    play.ask(&format!(
        "select outcome from once.action_finish('job', '3', {token})"
    ))
    .is("finished")
    .await;
}

#[tokio::test]
async fn a_column_that_the_guard_watches_set_to_null_is_refused_by_somebody() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("alter table job alter cancel_requested drop not null, alter status drop not null")
        .await;
    for sql in [
        "update job set cancel_requested = null where id = 6",
        "update job set status = null where id = 3",
        "update job set status = null where id = 7",
        "update job set status = null where id = 1",
    ] {
        illegal(&play, sql).await;
    }
}

/// What the API does with jobs that are new, and what each call answers; TOKEN is that of the last claim.
const LIFE: &str = r#"
    select * from once.transition('job', '1', 'ready', patch => '{"note": "x"}') | t|ready|1|~
    select count(*) from once.transition_many('job', '{2,3,4}', 'ready') where moved | 3
    select token from once.action_claim('job', '1', 'run') | TOKEN
    select cancelling from once.action_extend('job', '1', TOKEN) | f
    select * from once.action_finish('job', '1', TOKEN, '{"n": 2}') | finished|done|3
    select token from once.action_claim('job', '2', 'run') | TOKEN
    select * from once.action_release('job', '2', TOKEN, 'e') | ready|3
    select outcome from once.action_claim('job', '2', 'run', lease => '1 us') | claimed
    select outcome from once.action_claim('job', '2', 'run', lease => '1 us') | claimed
    select * from once.sweep(10, 'action_release') | action_release|1|0|f
    select token from once.action_claim('job', '3', 'run') | TOKEN
    with i as (insert into item (id, job_id, state, points) select g, 3, case g % 2 when 0 then 'succeeded' else 'failed' end, g from generate_series(1, 10) g returning 1) select count(*) from i | 10
    select * from once.cancel_request('job', '3') | accepted|running
    select * from once.cancel_request('job', '4') | teardown|ready
    select status from once.action_release('job', '3', TOKEN) | ready
    select * from once.cancel_refund('job', '3', 4) | 4|6|4|6|t|1
    select * from once.cancel_refund('job', '3') | 6|24|10|30|f|2
    select * from once.cancel_confirm('job', '3', 1) | f
    select * from once.cancel_confirm('job', '3', 2) | t
    select * from once.cancel_finish('job', '3', '{"note": "over"}') | cancelled|cancelled|10|30
    select pass from once.cancel_refund('job', '4') | 1
    select * from once.cancel_finish('job', '4') | ON005
    select pass from once.cancel_refund('job', '4') | 1
    select * from once.cancel_confirm('job', '4', 1) | t
    select * from once.cancel_finish('job', '4') | cancelled|cancelled|0|0
    select * from once.cancel_finish('job', '3') | done|cancelled|10|30
    select count(*) from once.cancel_audit('job') | 0
    select points from wallet | 30"#;

async fn whole_life(play: &Playground) {
    jobs(play, 1, 4, "new").await;
    let mut token = String::new();
    for [sql, answer] in table(LIFE) {
        let shown = play.attempt(&sql.replace("TOKEN", &token)).await;
        let shown = shown.unwrap_or_else(|refusal| refusal.code);
        if answer == "TOKEN" {
            token = shown;
        } else {
            assert_eq!(shown, answer, "{sql}");
        }
    }
    play.show("delete from item where job_id = 3; delete from job where id = 3")
        .await;
}

#[tokio::test]
async fn everything_that_the_api_does_passes_the_guard() {
    whole_life(&guarded().await).await;
}

#[tokio::test]
async fn everything_that_the_api_does_fits_one_transaction_under_the_guard() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let play = guarded().await;
        play.show(&format!("begin isolation level {level}")).await;
        // A refund and a confirmation are told apart from what came before only once they have committed;
        // within one transaction everything of it counts.
        whole_life_but_errors(&play).await;
        play.show("commit").await;
    }
}

/// As `whole_life`, without the call that is refused.
async fn whole_life_but_errors(play: &Playground) {
    jobs(play, 1, 2, "new").await;
    play.show("select once.transition_many('job', '{1,2}', 'ready')")
        .await;
    let first = token(play, 1, "run", "").await;
    play.show(&format!("select once.action_finish('job', '1', {first})"))
        .await;
    let second = token(play, 2, "run", "").await;
    play.show("insert into item (id, job_id, state, points) values (1, 2, 'succeeded', 5)")
        .await;
    play.show("select once.cancel_request('job', '2')").await;
    play.show(&format!("select once.action_release('job', '2', {second})"))
        .await;
    play.show("select once.cancel_refund('job', '2'); select once.cancel_confirm('job', '2', 1)")
        .await;
    play.ask("select * from once.cancel_finish('job', '2')")
        .is("cancelled|cancelled|1|5")
        .await;
}

#[tokio::test]
async fn a_call_of_the_api_opens_the_guard_for_nothing_but_its_own_write() {
    let play = guarded().await;
    with_jobs(&play).await;
    // In the same transaction, and in the same statement, before and after calls of the API.
    play.show("begin; select once.transition('job', '1', 'ready'); savepoint s")
        .await;
    illegal(&play, "update job set status = 'done' where id = 1").await;
    play.show("rollback to s; select once.action_claim('job', '2', 'run'); savepoint s")
        .await;
    illegal(&play, "update job set status = 'ready' where id = 2").await;
    play.show("rollback to s; select once.cancel_request('job', '1'); savepoint s")
        .await;
    illegal(
        &play,
        "update job set cancel_requested = false where id = 1",
    )
    .await;
    play.show("rollback").await;
    illegal(
        &play,
        "with c as (select once.transition('job', '1', 'ready')) update job set status = 'running' where id = 2",
    )
    .await;
    illegal(
        &play,
        "update job set status = 'done', note = (once.transition('job', '1', 'ready')).status where id = 2",
    )
    .await;
    // A call that failed leaves nothing open either.
    play.show("begin; savepoint s").await;
    play.ask("select once.transition('job', '1', 'ready', patch => '{\"n\": null}')")
        .fails("23502")
        .await;
    play.show("rollback to s").await;
    illegal(&play, "update job set status = 'done' where id = 1").await;
    play.show("rollback").await;
}
