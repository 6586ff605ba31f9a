//! Claims that meet each other, locks and open heartbeats: nobody waits, one wins.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};
use crate::world::{claim, extend, finish, job, jobs, outcome, release, sweep, token, world};

#[tokio::test]
async fn twelve_sessions_claim_one_row_and_one_gets_it() {
    let play = world().await;
    let sessions = sessions(&play, 12).await;
    jobs(&play, 1, 40, "ready").await;
    for id in 1..=40 {
        let sql = format!("select outcome from {}", claim(id, "run", ""));
        let answers = at_once(&sessions, |_| sql.clone()).await;
        let mut claimed = 0;
        for answer in answers {
            match answer.unwrap().as_str() {
                "claimed" => claimed += 1,
                other => assert_eq!(other, "in_progress"),
            }
        }
        assert_eq!(claimed, 1);
        assert_eq!(job(&play, id).await, "running|1");
    }
}

#[tokio::test]
async fn an_overdue_lease_is_taken_over_by_one_of_twelve() {
    let play = world().await;
    let sessions = sessions(&play, 12).await;
    jobs(&play, 1, 30, "ready").await;
    for id in 1..=30 {
        let old = token(&play, id, "run", ", lease => '1 microsecond'").await;
        let sql = format!("select outcome from {}", claim(id, "run", ""));
        let answers = at_once(&sessions, |_| sql.clone()).await;
        let claimed = answers
            .iter()
            .filter(|answer| answer.as_ref().unwrap() == "claimed")
            .count();
        assert_eq!(claimed, 1, "{answers:?}");
        assert_eq!(play.code(&finish(id, old, "")).await, "ON001");
    }
}

/// Asserts that a claim of job 1 answers `expected` at once, whatever is locked.
async fn at_once_is(session: &Playground, expected: &str) {
    session.show("set lock_timeout = '1ms'").await;
    let shown = session
        .show(&format!(
            "select outcome, retry_after >= '100 ms' from {}",
            claim(1, "run", "")
        ))
        .await;
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_locked_row_is_busy_at_once() {
    let play = world().await;
    let other = play.another().await;
    jobs(&play, 1, 1, "ready").await;
    for lock in [
        "select from job where id = 1 for update",
        "select from job where id = 1 for no key update",
        "select from job where id = 1 for share",
        "update job set note = 'x' where id = 1",
        "delete from job where id = 1",
        "select once.transition('job', '1', 'failed')",
        "select once.cancel_request('job', '1')",
    ] {
        other.show(&format!("begin; {lock}")).await;
        at_once_is(&play, "in_progress|t").await;
        other.show("rollback").await;
    }
    other
        .show("begin; select from job where id = 1 for key share")
        .await;
    at_once_is(&play, "claimed|~").await;
    other.show("rollback").await;
}

#[tokio::test]
async fn an_open_claim_is_busy_and_its_rollback_frees_the_row() {
    let play = world().await;
    let other = play.another().await;
    jobs(&play, 1, 1, "ready").await;
    other.show("begin; savepoint s").await;
    token(&other, 1, "run", "").await;
    at_once_is(&play, "in_progress|t").await;
    other.show("rollback to s").await;
    at_once_is(&play, "claimed|~").await;
    other.show("rollback").await;
}

#[tokio::test]
async fn a_lease_locked_by_an_open_heartbeat_is_busy_even_when_it_ran_out() {
    let play = world().await;
    let other = play.another().await;
    jobs(&play, 1, 1, "ready").await;
    let token = token(&play, 1, "run", ", lease => '1 microsecond'").await;
    let heartbeat =
        format!("select lease_left from once.action_extend('job', '1', {token}, '1 microsecond')");
    other.show(&format!("begin; {heartbeat}")).await;
    at_once_is(&play, "in_progress|t").await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    other.show("commit").await;
    at_once_is(&play, "claimed|~").await;
}

#[tokio::test]
async fn an_item_written_under_a_lost_lease_does_not_commit() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    let worker = play.another().await;
    let first = token(&worker, 1, "run", ", lease => '1 microsecond'").await;
    token(&play, 1, "run", "").await;
    worker
        .show("begin; insert into item (id, job_id) values (1, 1)")
        .await;
    assert_eq!(worker.code(&extend(1, first)).await, "ON001");
    worker.show("commit").await;
    assert_eq!(play.show("select count(*) from item").await, "0");

    // And a heartbeat that is open keeps the sweep away until the item is there.
    let second = token(&worker, 2, "run", ", lease => '1 microsecond'").await;
    worker.show("begin").await;
    let short =
        format!("select cancelling from once.action_extend('job', '2', {second}, '1 microsecond')");
    assert_eq!(worker.show(&short).await, "f");
    worker
        .show("insert into item (id, job_id) values (2, 2)")
        .await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    worker.show("commit").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    assert_eq!(play.show("select count(*) from item").await, "1");
}

#[tokio::test]
async fn a_heartbeat_that_waits_for_a_take_over_is_lost() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let (thief, holder) = (play.another().await, play.another().await);
    let old = token(&play, 1, "run", ", lease => '1 microsecond'").await;
    thief.show("begin").await;
    token(&thief, 1, "run", "").await;
    let waiting = Waiting::begin(&play, holder, &extend(1, old)).await;
    thief.show("commit").await;
    assert_eq!(code(&waiting.end().await.1), "ON001");
}

#[tokio::test]
async fn a_heartbeat_waits_for_an_open_one_of_its_own_token_and_counts_from_then() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let (first, second) = (play.another().await, play.another().await);
    let token = token(&play, 1, "run", "").await;
    first.show("begin").await;
    first.show(&extend(1, token)).await;
    let longer = format!("select from once.action_extend('job', '1', {token}, '3 hours')");
    let waiting = Waiting::begin(&play, second, &longer).await;
    let meanwhile = play.show("select clock_timestamp()").await;
    first.show("commit").await;
    assert_eq!(code(&waiting.end().await.1), "");
    let long = format!(
        "select lease_until > timestamptz '{meanwhile}' + interval '3 hours' from once.action_lease"
    );
    assert_eq!(play.show(&long).await, "t");
}

#[tokio::test]
async fn a_finish_that_waits_for_a_take_over_that_rolls_back_finishes() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let (thief, holder) = (play.another().await, play.another().await);
    let old = token(&play, 1, "run", ", lease => '1 microsecond'").await;
    thief.show("begin").await;
    token(&thief, 1, "run", "").await;
    let waiting = Waiting::begin(&play, holder, &finish(1, old, "")).await;
    thief.show("rollback").await;
    let shown = waiting.end().await.1.unwrap();
    assert!(shown.starts_with("finished|done|"), "{shown}");
}

#[tokio::test]
async fn a_finish_and_a_cancel_request_at_once_end_in_one_of_two_ways() {
    let play = world().await;
    let sessions = sessions(&play, 2).await;
    jobs(&play, 1, 60, "ready").await;
    let (mut finished, mut cancelling) = (0, 0);
    for id in 1..=60 {
        let token = token(&play, id, "run", "").await;
        let answers = at_once(&sessions, |i| match i {
            0 => finish(id, token, ""),
            _ => format!("select outcome from once.cancel_request('job', '{id}')"),
        })
        .await;
        let told = answers[0].as_ref().unwrap();
        let cancel = answers[1].as_ref().unwrap();
        let row = play
            .show(&format!(
                "select status, cancel_requested from job where id = {id}"
            ))
            .await;
        if told.starts_with("finished") {
            finished += 1;
            // done is not terminal here, so the row can be torn down.
            assert_eq!((cancel.as_str(), row.as_str()), ("teardown", "done|t"));
        } else {
            cancelling += 1;
            assert!(told.starts_with("cancelling|running"), "{told}");
            assert_eq!((cancel.as_str(), row.as_str()), ("accepted", "running|t"));
            play.show(&release(id, token, "")).await;
        }
    }
    println!("{finished} finished first, {cancelling} were cancelled first");
}

#[tokio::test]
async fn an_old_snapshot_gets_an_answer_or_a_race_to_retry() {
    let play = world().await;
    let other = play.another().await;
    let changes = [
        "select once.action_claim('job', 'ID', 'run')",
        "select once.transition('job', 'ID', 'failed')",
        "select once.cancel_request('job', 'ID')",
        "update job set note = 'x' where id = ID",
        "delete from job where id = ID",
    ];
    let mut id = 0;
    for level in ["repeatable read", "serializable"] {
        for change in changes {
            id += 1;
            jobs(&play, id, id, "ready").await;
            play.show(&format!(
                "begin isolation level {level}; select count(*) from job"
            ))
            .await;
            other.show(&change.replace("ID", &id.to_string())).await;
            match play
                .attempt(&format!("select outcome from {}", claim(id, "run", "")))
                .await
            {
                Ok(answer) => assert_ne!(answer, "claimed", "{level}, {change}"),
                Err(refusal) => {
                    refusal.tells("40001", &[], &format!("{level}, {change}"));
                }
            }
            play.show("rollback").await;
        }
    }
}

#[tokio::test]
async fn claims_and_ends_above_read_committed_run_through() {
    let play = world().await;
    let mut id = 0;
    for level in ["repeatable read", "serializable"] {
        id += 1;
        jobs(&play, id, id, "ready").await;
        let begin = format!("begin isolation level {level}; select count(*) from job");
        play.show(&begin).await;
        let first = token(&play, id, "run", "").await;
        play.show("commit").await;
        play.show(&begin).await;
        play.show(&extend(id, first)).await;
        play.show("commit").await;
        play.show(&begin).await;
        play.show(&release(id, first, "")).await;
        let second = token(&play, id, "run", "").await;
        play.ask(&finish(id, second, "")).begins("finished").await;
        play.show("commit").await;
        assert_eq!(outcome(&play, id, "run", "").await, "refused|done");
    }
}

#[tokio::test]
async fn workers_and_sweeps_at_once_do_every_job_once() {
    let play = world().await;
    let sessions = sessions(&play, 8).await;
    jobs(&play, 1, 60, "ready").await;
    play.show("create table made (job_id bigint, token bigint)")
        .await;
    // Half of the claims die: their lease is over at once and they never come back.
    let worker = |i: usize| {
        format!(
            "do $$ declare c record; f record; begin
                for round in 1 .. 4 loop for id in 1 .. 60 loop
                    select * into c from once.action_claim('job', id::text, 'run',
                        lease => case when (id + round + {i}) % 2 = 0 then interval '1 us' else '1 min' end);
                    commit;
                    continue when c.outcome <> 'claimed' or (id + round + {i}) % 2 = 0 and round < 4;
                    begin
                        insert into made values (id, c.token);
                        select * into f from once.action_finish('job', id::text, c.token);
                    exception when sqlstate 'ON001' then null;
                    end;
                    commit;
                end loop; end loop;
             end $$"
        )
    };
    let sweeper = "do $$ begin
            for i in 1 .. 100 loop perform once.sweep(7, 'action_release'); commit; end loop;
        end $$";
    let answers = at_once(&sessions, |i| match i {
        0 | 1 => sweeper.to_owned(),
        _ => worker(i),
    })
    .await;
    for answer in answers {
        answer.unwrap();
    }
    play.clock("1 year").await;
    crate::world::drain(&play, 100).await;
    play.ask(
        "select count(*) filter (where status = 'done') = (select count(*) from made),
                    count(*) filter (where status not in ('done', 'ready')),
                    (select count(*) = count(distinct job_id) from made),
                    count(*) filter (where status = 'done') > 30 from job",
    )
    .is("t|0|t|t")
    .await;
}
