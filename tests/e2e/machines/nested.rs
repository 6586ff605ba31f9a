//! Calls within calls and odd surroundings: triggers that call the API again, one transaction for
//! everything, prepared transactions, cancelled calls.

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};
use crate::world::{
    claim, extend, finish, job, jobs, moves, outcome, release, sweep, token, transition, world,
};

/// An AFTER trigger on job with this body; `new.note` says when.
async fn after(play: &Playground, body: &str) {
    play.show(&format!(
        "create or replace function follow() returns trigger language plpgsql as $$ begin {body} return null; end $$;
         create or replace trigger follow after update on job for each row execute function follow()"
    ))
    .await;
}

#[tokio::test]
async fn a_trigger_may_move_other_rows_through_the_api() {
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    jobs(&play, 1, 20, "new").await;
    // Each row that becomes ready takes the next one along, with the very statement that moved it.
    after(
        &play,
        "if new.status = 'ready' and old.status = 'new' and new.id < 20 then
            perform once.transition('job', (new.id + 1)::text, 'ready'); end if;",
    )
    .await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    play.ask("select count(*) from job where status = 'ready' and version = 1")
        .is("20")
        .await;
}

#[tokio::test]
async fn a_row_that_the_transaction_wrote_itself_is_not_busy() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("begin; update job set note = 'mine'").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    let first = token(&play, 1, "run", "").await;
    play.show("savepoint s; update job set note = 'again'")
        .await;
    play.show(&release(1, first, "")).await;
    play.show("rollback to s").await;
    play.show(&extend(1, first)).await;
    play.show(&release(1, first, "")).await;
    let second = token(&play, 1, "run", "").await;
    assert!(second > first);
    play.ask(&finish(1, second, ""))
        .begins("finished|done|")
        .await;
    play.show("commit").await;
    assert!(job(&play, 1).await.starts_with("done|"));
}

#[tokio::test]
async fn a_claim_in_a_prepared_transaction_holds_until_it_is_resolved() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let other = play.another().await;
    other.show("set lock_timeout = '1ms'").await;
    play.show("begin").await;
    let held = token(&play, 1, "run", "").await;
    play.show("prepare transaction 'machines_claim'").await;
    assert_eq!(
        outcome(&other, 1, "run", "")
            .await
            .split_once('|')
            .unwrap()
            .0,
        "in_progress"
    );
    assert_eq!(sweep(&other, 10).await, "0|0|f");
    play.show("commit prepared 'machines_claim'").await;
    assert_eq!(outcome(&other, 1, "run", "").await, "in_progress|running");
    play.show("begin").await;
    play.show(&finish(1, held, "")).await;
    play.show("prepare transaction 'machines_finish'").await;
    play.show("rollback prepared 'machines_finish'").await;
    assert_eq!(play.show(&finish(1, held, "")).await, "finished|done|2");
}

#[tokio::test]
async fn adoption_and_sweeps_beside_workers_rob_nobody() {
    let play = world().await;
    let sessions = sessions(&play, 6).await;
    jobs(&play, 1, 20, "ready").await;
    let worker = |i: usize| {
        format!(
            "do $$ declare c record; lost int := 0; begin
                for round in 1 .. 150 loop
                    select * into c from once.action_claim('job', (1 + (round * 7 + {i}) % 20)::text, 'run', lease => '1 h');
                    commit;
                    if c.outcome = 'claimed' then
                        perform once.action_extend('job', (1 + (round * 7 + {i}) % 20)::text, c.token);
                        commit;
                        perform once.action_release('job', (1 + (round * 7 + {i}) % 20)::text, c.token);
                        commit;
                    end if;
                end loop;
             end $$"
        )
    };
    let meddler = "do $$ declare n int; begin
            for i in 1 .. 150 loop
                n := once.action_adopt('job');
                if n <> 0 then raise 'adopted %', n; end if;
                commit;
                perform once.sweep(100, 'action_release'); commit;
            end loop;
         end $$";
    let answers = at_once(&sessions, |i| match i {
        0 | 1 => meddler.to_owned(),
        _ => worker(i),
    })
    .await;
    for answer in answers {
        answer.unwrap();
    }
    play.ask("select count(*) from job where status = 'ready'")
        .is("20")
        .await;
}

#[tokio::test]
async fn a_new_definition_beside_calls_never_breaks_one() {
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    let sessions = sessions(&play, 5).await;
    at_once(&sessions, |_| "set lock_timeout = '20s'".to_owned()).await;
    jobs(&play, 1, 10, "ready").await;
    let worker = |i: usize| {
        format!(
            "do $$ declare c record; begin
                for round in 1 .. 80 loop
                    perform once.transition('job', (1 + (round + {i}) % 10)::text, 'new'); commit;
                    perform once.transition_many('job', '{{1,2,3,4,5,6,7,8,9,10}}', 'ready'); commit;
                    select * into c from once.action_claim('job', (1 + (round + {i}) % 10)::text, 'run');
                    commit;
                    if c.outcome = 'claimed' then
                        perform once.action_release('job', (1 + (round + {i}) % 10)::text, c.token); commit;
                    end if;
                end loop;
             end $$"
        )
    };
    let definer = "do $$ begin
            for i in 1 .. 25 loop
                perform once.machine_define(once.machine_get('job')); commit;
                perform once.machine_guard('job', i % 2 = 0); commit;
            end loop;
         end $$";
    let answers = at_once(&sessions, |i| match i {
        0 => definer.to_owned(),
        _ => worker(i),
    })
    .await;
    for answer in answers {
        answer.unwrap();
    }
    play.ask("select count(*) from job where status in ('running', 'retrying')")
        .is("0")
        .await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_leaves_the_session_as_it_was() {
    let play = world().await;
    play.show("select once.machine_guard('job', true)").await;
    jobs(&play, 1, 2, "ready").await;
    let other = play.another().await;
    let held = token(&play, 2, "run", "").await;
    other
        .show("begin; select from job where id in (1, 2) for update")
        .await;
    play.show("set statement_timeout = '50ms'").await;
    for sql in [
        transition("1", "failed", ""),
        finish(2, held, ""),
        release(2, held, ""),
        "select once.cancel_request('job', '1')".to_owned(),
        "select once.transition_many('job', '{1,2}', 'failed')".to_owned(),
    ] {
        assert_eq!(play.code(&sql).await, "57014", "{sql}");
    }
    play.show("reset statement_timeout").await;
    other.show("rollback").await;
    // Nothing that a cancelled call was allowed to do is allowed to anybody else now.
    for sql in [
        "update job set status = 'done' where id = 2",
        "update job set status = 'ready' where id = 2",
        "update job set cancel_requested = true where id = 1",
    ] {
        assert_eq!(play.code(sql).await, "ON002", "{sql}");
    }
    assert_eq!(play.show(&finish(2, held, "")).await, "finished|done|2");
    play.ask(&format!("select outcome from {}", claim(1, "run", "")))
        .is("claimed")
        .await;
}
