//! Calls within calls and odd surroundings: triggers that call the API again, one transaction for
//! everything, prepared transactions, sessions with unusual settings.

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};
use crate::world::{
    claim, define, drain, extend, finish, job, jobs, moves, outcome, release, sweep, token,
    transition, world,
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
    assert_eq!(
        play.show("select count(*) from job where status = 'ready' and version = 1")
            .await,
        "20"
    );
}

#[tokio::test]
async fn a_trigger_that_calls_for_its_own_row_is_answered_and_breaks_nothing() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("create table told (what text)").await;
    after(
        &play,
        "insert into told select reason from once.transition('job', new.id::text, new.status);",
    )
    .await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    assert_eq!(play.show("select what from told").await, "status");
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
    assert!(
        play.show(&finish(1, second, ""))
            .await
            .starts_with("finished|done|")
    );
    play.show("commit").await;
    assert!(job(&play, 1).await.starts_with("done|"));
}

#[tokio::test]
async fn rows_that_the_transaction_made_itself_live_alike() {
    let play = world().await;
    for level in ["read committed", "repeatable read", "serializable"] {
        play.show(&format!("begin isolation level {level}")).await;
        jobs(&play, 1, 3, "new").await;
        assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
        play.show("select once.transition_many('job', '{2,3}', 'ready')")
            .await;
        let held = token(&play, 1, "run", "").await;
        assert_eq!(play.show(&finish(1, held, "")).await, "finished|done|3");
        token(&play, 2, "run", ", lease => '1 us'").await;
        assert_eq!(sweep(&play, 10).await.split_once('|').unwrap().0, "1");
        play.show("rollback").await;
        assert_eq!(
            play.show("select count(*) from once.action_lease").await,
            "0"
        );
    }
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
        "busy"
    );
    assert_eq!(sweep(&other, 10).await, "0|0|f");
    play.show("commit prepared 'machines_claim'").await;
    assert_eq!(outcome(&other, 1, "run", "").await, "busy|running");
    play.show("begin").await;
    play.show(&finish(1, held, "")).await;
    play.show("prepare transaction 'machines_finish'").await;
    play.show("rollback prepared 'machines_finish'").await;
    assert_eq!(play.show(&finish(1, held, "")).await, "finished|done|2");
}

#[tokio::test]
async fn odd_settings_of_a_session_change_nothing() {
    let play = Playground::open().await;
    play.show(crate::world::TABLES).await;
    let definition = crate::world::JOB
        .replace("\"failed\"", "\"it's \\\\ failed\"")
        .replace(
            "n >= 0",
            "n >= 0 and note is distinct from E'a\\\\b' and at is distinct from '2030-02-01'",
        );
    let session = play.another().await;
    session
        .show(
            "set escape_string_warning = off; set standard_conforming_strings = off; set backslash_quote = off;
             set datestyle = 'SQL, DMY'; set intervalstyle = sql_standard; set timezone = 'Asia/Kathmandu';
             set bytea_output = escape; set extra_float_digits = -15; set quote_all_identifiers = on;
             set transform_null_equals = on; set plan_cache_mode = force_generic_plan; set xmlbinary = hex;
             set enable_indexscan = off; set enable_bitmapscan = off; set jit = on; set jit_above_cost = 0;
             set check_function_bodies = off; set default_table_access_method = heap; set array_nulls = off;
             set lc_messages = 'C'; set row_security = off; set client_min_messages = error",
        )
        .await;
    for place in [&session, &play] {
        place
            .show(&format!(
                "select once.machine_define($def${definition}$def$); select once.machine_guard('job', true)"
            ))
            .await;
        for (first, user) in [(1, &session), (11, &play)] {
            play.show("delete from job; delete from once.action_lease")
                .await;
            jobs(user, first, first + 3, "new").await;
            for id in first..first + 3 {
                let shown = moves(user, &id.to_string(), "ready", "").await;
                assert_eq!(shown, "t|ready|1|~");
            }
            let shown = user
                .show(&format!(
                    "select moved, reason from once.transition('job', '{first}', $$it's \\ failed$$, version => 1)"
                ))
                .await;
            assert_eq!(shown, "t|~");
            let held = token(user, first + 1, "run", "").await;
            let left = user
                .show(&format!(
                    "select lease_left > '29 s' and lease_left <= '30 s'
                       from once.action_extend('job', '{}', {held})",
                    first + 1
                ))
                .await;
            assert_eq!(left, "t");
            let done = user.show(&finish(first + 1, held, "")).await;
            assert_eq!(done, "finished|done|3");
            let shown = user
                .show(&format!(
                    "select lease_left from once.action_claim('job', '{}', 'run', lease => '1 us')",
                    first + 2
                ))
                .await;
            assert!(!shown.is_empty());
            assert_eq!(drain(user, 10).await, (1, 0));
            let refusal = user.refused("update job set status = 'done'").await;
            assert_eq!(refusal.code, "ON002");
            user.show("update job set status = 'ready' where status = 'new'")
                .await;
            assert_eq!(
                user.show("select * from once.machine_check('job')").await,
                ""
            );
        }
    }
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
    assert_eq!(
        play.show("select count(*) from job where status = 'ready'")
            .await,
        "20"
    );
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
    assert_eq!(
        play.show("select count(*) from job where status in ('running', 'retrying')")
            .await,
        "0"
    );
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
    let shown = play
        .show(&format!("select outcome from {}", claim(1, "run", "")))
        .await;
    assert_eq!(shown, "claimed");
}

#[tokio::test]
async fn ids_that_a_collation_calls_equal_are_one_row_and_one_lease() {
    let play = Playground::open().await;
    // Servers without ICU have no such collation.
    let made = play
        .attempt("create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        .await;
    if let Err(refusal) = made {
        println!("no ICU here: {}", refusal.message);
        return;
    }
    play.show("create table t (id text collate blind primary key, status text not null)")
        .await;
    let definition = r#"{"machine": "t", "table": "t", "id": "id", "status": "status",
        "status_types": ["a", "w", "b"], "steps": [{"step_key": "s", "status": "a",
        "claim_state": {"*": ["w", "a"]}, "successful_state": {"*": "b"}}]}"#;
    let defined = play
        .attempt(&format!(
            "select once.machine_define($def${definition}$def$)"
        ))
        .await;
    // To refuse such a column is as good.
    if let Err(refusal) = defined {
        assert_eq!(refusal.code, "ON003", "{refusal:?}");
        return;
    }
    define(&play, definition).await;
    play.show("insert into t values ('Row')").await;
    let claim = "select outcome, token from once.action_claim('t', 'rOW', 's')";
    let shown = play.show(claim).await;
    let token = shown.strip_prefix("claimed|").unwrap();
    let other = "select outcome from once.action_claim('t', 'ROW', 's')";
    assert_eq!(play.show(other).await, "busy");
    let finish = format!("select status from once.action_finish('t', 'Row', {token})");
    assert_eq!(play.show(&finish).await, "b");
}
