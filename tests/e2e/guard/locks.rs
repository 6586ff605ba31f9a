//! Item writers lock their machine's row FOR KEY SHARE: whoever cancels sees the last of them, at every
//! isolation level, and nobody else waits.

use crate::playground::Playground;
use crate::waiting::{Waiting, code};
use crate::world::{jobs, token, transition};
use crate::{guarded, illegal};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// Whether somebody holds job 1 FOR KEY SHARE or stronger, seen by a statement that would conflict.
async fn is_locked(play: &Playground) -> bool {
    match play
        .attempt("select from job where id = 1 for update nowait")
        .await
    {
        Ok(_) => false,
        Err(refusal) => {
            assert_eq!(refusal.code, "55P03");
            play.show("select from job where id = 1 for no key update nowait")
                .await;
            true
        }
    }
}

#[tokio::test]
async fn every_write_to_an_item_locks_its_machines_row_for_key_share() {
    let play = guarded().await;
    jobs(&play, 1, 2, "ready").await;
    play.show("insert into item (id, job_id) values (1, 1), (2, 1), (3, 2)")
        .await;
    for sql in [
        "insert into item (id, job_id) values (10, 1)",
        "update item set points = 5 where id = 1",
        "update item set state = 'succeeded' where id = 1",
        "update item set job_id = 1 where id = 3",
        "update item set job_id = 2 where id = 1",
    ] {
        let writer = play.another().await;
        writer.show(&format!("begin; {sql}")).await;
        assert!(is_locked(&play).await, "{sql}");
        writer.show("rollback").await;
        assert!(!is_locked(&play).await, "{sql}");
    }
}

#[tokio::test]
async fn an_item_writer_needs_no_right_on_the_machines_table() {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.ensure_role("guard_items login").await;
    play.show("grant select, insert, update, delete on item to guard_items; alter table job enable row level security")
        .await;
    let writer = play.another_as("guard_items").await;
    assert_eq!(writer.code("select from job").await, "42501");
    writer
        .show("begin; insert into item (id, job_id) values (1, 1)")
        .await;
    assert!(is_locked(&play).await);
    writer
        .show("update item set state = 'succeeded'; delete from item; commit")
        .await;
    assert_eq!(writer.code("select from job").await, "42501");
    play.show("select once.cancel_request('job', '1'); select once.cancel_refund('job', '1'); select once.cancel_confirm('job', '1', 1); select once.cancel_finish('job', '1')")
        .await;
    illegal(&writer, "insert into item (id, job_id) values (2, 1)").await;
}

#[tokio::test]
async fn item_writers_do_not_wait_for_moves_nor_moves_for_them() {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    let (writer, mover) = (play.another().await, play.another().await);
    for session in [&writer, &mover] {
        session.show("set lock_timeout = '1s'").await;
    }
    writer
        .show("begin; insert into item (id, job_id) values (1, 1)")
        .await;
    mover
        .show(&format!("begin; {}", transition("1", "new", "")))
        .await;
    writer
        .show("insert into item (id, job_id) values (2, 1); update item set state = 'succeeded'")
        .await;
    mover.show("commit").await;
    writer.show("commit").await;
    mover.show("update job set status = 'ready'").await;
    writer
        .show("begin; insert into item (id, job_id) values (3, 1)")
        .await;
    let held = token(&mover, 1, "run", "").await;
    mover
        .show(&format!("select once.action_extend('job', '1', {held})"))
        .await;
    mover.show("select once.cancel_request('job', '1')").await;
    mover
        .show(&format!("select once.action_release('job', '1', {held})"))
        .await;
    writer.show("commit").await;
}

/// A flagged job 1 whose items are refunded and confirmed: only cancel_finish is left.
async fn ready_to_finish() -> Playground {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.show(
        "insert into item (id, job_id, state, points) values (1, 1, 'succeeded', 5);
         select once.cancel_request('job', '1'); select once.cancel_refund('job', '1');
         select once.cancel_confirm('job', '1', 1)",
    )
    .await;
    play
}

const FINISH: &str = "select * from once.cancel_finish('job', '1')";

#[tokio::test]
async fn cancel_finish_waits_for_open_item_writers_and_sees_what_they_wrote() {
    for writer_level in LEVELS {
        for finisher_level in LEVELS {
            for (end, expected) in [("commit", "ON005"), ("rollback", "")] {
                let play = ready_to_finish().await;
                let (writer, finisher) = (play.another().await, play.another().await);
                // The finisher's snapshot is older than the writer's item.
                finisher
                    .show(&format!(
                        "begin isolation level {finisher_level}; select count(*) from item"
                    ))
                    .await;
                writer
                    .show(&format!(
                        "begin isolation level {writer_level}; insert into item (id, job_id) values (2, 1)"
                    ))
                    .await;
                let waiting = Waiting::begin(&play, finisher, FINISH).await;
                writer.show(end).await;
                let (finisher, answer) = waiting.end().await;
                let told = code(&answer).to_owned();
                finisher.show("commit").await;
                let what = format!("{writer_level}, {finisher_level}, {end}: {answer:?}");
                assert!(
                    told == expected || told == "40001" && finisher_level != LEVELS[0],
                    "{what}"
                );
                let left = play
                    .show(
                        "select count(*) from job, item where job.id = item.job_id and status = 'cancelled' and settled is null",
                    )
                    .await;
                assert_eq!(left, "0", "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_writer_whose_snapshot_is_older_than_the_cancellation_is_refused() {
    for level in LEVELS {
        let play = ready_to_finish().await;
        let writer = play.another().await;
        writer
            .show(&format!(
                "begin isolation level {level}; select count(*) from job, item"
            ))
            .await;
        assert_eq!(play.show(FINISH).await, "cancelled|cancelled|1|5");
        for sql in [
            "insert into item (id, job_id) values (2, 1)",
            "insert into item (id, job_id, state, points) values (2, 1, 'succeeded', 9)",
        ] {
            writer.show("savepoint s").await;
            let told = writer.code(sql).await;
            assert!(
                told == "ON002" || told == "40001" && level != LEVELS[0],
                "{level}: {told}"
            );
            writer.show("rollback to s").await;
        }
        writer.show("commit").await;
        assert_eq!(play.show("select count(*) from item").await, "1");
    }
}

#[tokio::test]
async fn a_writer_that_waits_for_a_cancellation_is_refused_when_it_commits() {
    for level in LEVELS {
        for (end, refused) in [("commit", true), ("rollback", false)] {
            let play = ready_to_finish().await;
            let (writer, finisher) = (play.another().await, play.another().await);
            finisher.show(&format!("begin; {FINISH}")).await;
            writer
                .show(&format!(
                    "begin isolation level {level}; select count(*) from item"
                ))
                .await;
            let sql = "insert into item (id, job_id) values (2, 1)";
            let waiting = Waiting::begin(&play, writer, sql).await;
            finisher.show(end).await;
            let (writer, answer) = waiting.end().await;
            writer.show("commit").await;
            let told = code(&answer);
            if refused {
                assert!(
                    told == "ON002" || told == "40001" && level != LEVELS[0],
                    "{level} {end}: {answer:?}"
                );
            } else {
                assert_eq!(told, "", "{level} {end}: {answer:?}");
            }
            let left = play.show("select count(*) from item").await;
            assert_eq!(left, if refused { "1" } else { "2" }, "{level} {end}");
        }
    }
}

#[tokio::test]
async fn an_item_that_moves_from_job_to_job_locks_both_and_deadlocks_with_nobody() {
    let play = guarded().await;
    jobs(&play, 1, 2, "ready").await;
    play.show("insert into item (id, job_id) select g, 1 + g % 2 from generate_series(1, 20) as g")
        .await;
    let sessions = crate::waiting::sessions(&play, 6).await;
    let answers = crate::waiting::at_once(&sessions, |i| {
        format!(
            "do $$ begin
                for round in 1 .. 40 loop
                    case {i} % 3
                    when 0 then update item set job_id = 3 - job_id where id = 1 + (round + {i}) % 20;
                    when 1 then perform once.transition_many('job', '{{2,1}}', case when round % 2 = 0 then 'ready' else 'new' end);
                    else update item set points = points + 1 where id = 1 + round % 20;
                    end case;
                    commit;
                end loop;
             end $$"
        )
    })
    .await;
    for answer in answers {
        answer.unwrap();
    }
}
