//! How a lease ends: finish, release, a take-over, a sweep; what its token is answered afterwards.

use crate::playground::Playground;
use crate::world::{claim, extend, finish, job, jobs, outcome, release, sweep, token, world};

/// A machine and one claimed job.
async fn running() -> (Playground, i64) {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    let token = token(&play, 1, "run", "").await;
    (play, token)
}

/// Asserts that every write with this token is told that the lease is lost.
async fn is_lost(play: &Playground, token: i64, why: &str) {
    for call in [
        extend(1, token),
        finish(1, token, ""),
        finish(1, token, r#", '{"note": "x"}'"#),
        release(1, token, ""),
        release(1, token, ", 'other'"),
    ] {
        let refusal = play.refused(&call).await;
        refusal.tells("ON001", &["job"], &format!("{why}: {call}"));
    }
}

#[tokio::test]
async fn action_expire_ends_the_lease_of_a_dead_holder_and_only_that() {
    let (play, held) = running().await;
    play.show(&format!(
        "select once.action_extend('job', 1, {held}, '6 h')"
    ))
    .await;
    play.clock("1 h").await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    let expire = "select once.action_expire('job', 1)";
    assert_eq!(play.show(expire).await, "t");
    assert_eq!(play.show(expire).await, "f");
    // Until the sweep the holder may still write; its heartbeat renews the lease.
    play.show(&extend(1, held)).await;
    assert_eq!(play.show(expire).await, "t");
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    assert_eq!(job(&play, 1).await, "ready|2");
    is_lost(&play, held, "expired and swept").await;
    assert_eq!(play.show(expire).await, "f");
    let missing = "select once.action_expire('job', 77)";
    assert_eq!(play.show(missing).await, "f");
}

#[tokio::test]
async fn a_finish_makes_the_successful_move_with_the_callers_writes() {
    let (play, token) = running().await;
    play.show("begin; insert into item (id, job_id) values (1, 1)")
        .await;
    play.ask(&finish(1, token, r#", '{"note": "ok"}'"#))
        .is("finished|done|2")
        .await;
    play.show("rollback").await;
    assert_eq!(job(&play, 1).await, "running|1");
    assert_eq!(play.show(&finish(1, token, "")).await, "finished|done|2");
    assert_eq!(job(&play, 1).await, "done|2");
}

#[tokio::test]
async fn a_repeated_finish_is_already_done() {
    let (play, token) = running().await;
    let patch = r#", '{"note": "a", "n": 1}'"#;
    play.show(&finish(1, token, patch)).await;
    for again in [patch, "", r#", '{"note": "b", "n": 1}'"#] {
        let refusal = play.refused(&finish(1, token, again)).await;
        assert_eq!(refusal.code, "ON006", "{again}: {refusal:?}");
        assert!(refusal.hint.contains("Keep what"), "{refusal:?}");
    }
    assert_eq!(play.code(&release(1, token, "")).await, "ON006");
    assert_eq!(play.code(&extend(1, token)).await, "ON006");
    assert_eq!(play.code(&finish(1, token + 1, patch)).await, "ON001");
    // The row has gone on since.
    play.show("select once.transition('job', '1', 'archived')")
        .await;
    assert_eq!(play.code(&finish(1, token, patch)).await, "ON006");
    assert_eq!(job(&play, 1).await, "archived|3");
}

#[tokio::test]
async fn a_finish_again_in_its_transaction_answers_the_same() {
    let (play, token) = running().await;
    let patch = r#", '{"note": "a", "n": 1}'"#;
    play.show("begin").await;
    let first = play.show(&finish(1, token, patch)).await;
    assert_eq!(first, "finished|done|2");
    play.show("savepoint a").await;
    for same in [patch, r#", '{  "n":1, "note": "a" }'"#] {
        assert_eq!(play.show(&finish(1, token, same)).await, first, "{same}");
    }
    play.show("release a; savepoint b").await;
    assert_eq!(
        play.code(&finish(1, token, "")).await,
        "ON006",
        "another patch"
    );
    play.show("rollback to b; commit").await;
    assert_eq!(job(&play, 1).await, "done|2");
}

#[tokio::test]
async fn an_actions_transaction_that_is_sent_twice_commits_its_writes_once() {
    let (play, token) = running().await;
    let mut items = 0..;
    let mut send = async |calls: &str| {
        let item = items.next().unwrap();
        let insert = format!("insert into item (id, job_id) values ({item}, 1)");
        let sql = format!("begin; {calls}; {insert}; commit");
        let told = play.attempt(&sql).await.map_err(|refusal| refusal.code);
        if told.is_err() {
            play.show("rollback").await;
        }
        told.err().unwrap_or_default()
    };
    let end = finish(1, token, "");
    assert_eq!(send(&end).await, "");
    assert_eq!(send(&end).await, "ON006");
    assert_eq!(send(&format!("{}; {end}", extend(1, token))).await, "ON006");
    assert_eq!(play.show("select count(*) from item").await, "1");
    // The next claim, in the same transaction too, does not hide it.
    play.show("update job set status = 'ready'").await;
    assert_eq!(
        send(&format!("select * from {}; {end}", claim(1, "run", ""))).await,
        "ON006"
    );
    assert_eq!(play.show("select count(*) from item").await, "1");
}

#[tokio::test]
async fn a_repeated_release_gives_the_same_answer_and_everything_else_is_lost() {
    let (play, token) = running().await;
    let first = play.show(&release(1, token, ", 'e'")).await;
    for error in ["'e'", "'f'", "null"] {
        assert_eq!(
            play.show(&release(1, token, &format!(", {error}"))).await,
            first
        );
    }
    assert_eq!(
        play.show("select note from once.action_lease").await,
        "e",
        "the first one stays"
    );
    assert_eq!(play.code(&finish(1, token, "")).await, "ON001");
    assert_eq!(play.code(&extend(1, token)).await, "ON001");
    assert_eq!(play.show(&release(1, token, ", 'e'")).await, first);
    assert_eq!(job(&play, 1).await, "ready|2");
}

#[tokio::test]
async fn after_the_next_claim_a_released_token_is_lost() {
    let (play, first) = running().await;
    play.show(&release(1, first, "")).await;
    let second = token(&play, 1, "run", "").await;
    is_lost(&play, first, "released, then claimed again").await;
    play.show(&finish(1, second, "")).await;
    is_lost(&play, first, "and the next one has finished").await;
}

/// ON001 would tell it to delete what it made.
#[tokio::test]
async fn after_the_next_claim_a_token_that_finished_is_still_told_that_it_is_done() {
    let (play, first) = running().await;
    play.show(&finish(1, first, "")).await;
    play.show("update job set status = 'ready'").await;
    let second = token(&play, 1, "run", "").await;
    let is_done = async |why: &str| {
        for call in [
            finish(1, first, ""),
            release(1, first, ""),
            extend(1, first),
        ] {
            assert_eq!(play.code(&call).await, "ON006", "{why}: {call}");
        }
    };
    is_done("claimed again").await;
    play.show(&release(1, second, "")).await;
    is_done("and released").await;
    is_lost(&play, second + 1, "a token of nobody").await;
    let third = token(&play, 1, "run", "").await;
    is_lost(&play, second, "released, then claimed again").await;
    play.clock("1 h").await;
    sweep(&play, 10).await;
    is_lost(&play, third, "swept").await;
    is_done("and swept").await;
}

#[tokio::test]
async fn a_finish_is_remembered_behind_those_of_later_steps_and_a_forgotten_one_is_not_told_to_delete()
 {
    let (play, first) = running().await;
    let mut tokens = vec![first];
    play.show(&finish(1, first, "")).await;
    for _ in 0..8 {
        let eighth = tokens.len() == 8;
        let oldest = tokens[usize::from(eighth)];
        play.show("update job set status = 'ready'").await;
        tokens.push(token(&play, 1, "run", "").await);
        play.show(&finish(1, *tokens.last().unwrap(), "")).await;
        assert_eq!(play.code(&finish(1, oldest, "")).await, "ON006");
        assert_eq!(play.code(&extend(1, oldest)).await, "ON006");
    }
    let refusal = play.refused(&finish(1, first, "")).await;
    assert_eq!(refusal.code, "ON001");
    assert!(refusal.hint.contains("look at the row"), "{refusal:?}");
    let refusal = play.refused(&finish(1, tokens[8] + 1, "")).await;
    assert!(refusal.hint.contains("and delete"), "{refusal:?}");
    is_lost(&play, tokens[8] + 1, "a token of nobody").await;
}

#[tokio::test]
async fn an_ended_token_is_remembered_for_a_day_swept_or_not() {
    for swept in [false, true] {
        for finished in [false, true] {
            let (play, token) = running().await;
            let end = if finished {
                finish(1, token, r#", '{"note": "x"}'"#)
            } else {
                release(1, token, ", 'x'")
            };
            let first = play.show(&end).await;
            play.clock("23 h 59 min").await;
            if swept {
                sweep(&play, 10).await;
            }
            match finished {
                true => assert_eq!(play.code(&end).await, "ON006", "{swept}"),
                false => assert_eq!(play.show(&end).await, first, "{swept}"),
            }
            play.clock("24 h 1 min").await;
            if swept {
                sweep(&play, 10).await;
                play.ask("select count(*) from once.action_lease")
                    .is("0")
                    .await;
            }
            match finished && !swept {
                // As long as the lease is stored: nobody is told to delete what he made.
                true => assert_eq!(play.code(&end).await, "ON006"),
                false => is_lost(&play, token, &format!("a day later, swept {swept}")).await,
            }
        }
    }
}

#[tokio::test]
async fn a_taken_over_or_swept_lease_is_lost_and_one_that_only_ran_out_is_not() {
    let (play, first) = running().await;
    play.clock("31 s").await;
    assert_eq!(play.show(&extend(1, first)).await, "00:00:30|f");
    play.clock("62 s").await;
    let second = token(&play, 1, "run", "").await;
    assert!(second > first);
    is_lost(&play, first, "taken over").await;
    play.clock("100 s").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    is_lost(&play, second, "swept").await;
    assert!(job(&play, 1).await.starts_with("ready|"));
    let third = token(&play, 1, "run", "").await;
    play.clock("5 min").await;
    play.ask(&finish(1, third, ""))
        .begins("finished|done|")
        .await;
}

#[tokio::test]
async fn an_overdue_lease_is_taken_over_only_where_the_claim_would_succeed_after_the_revert() {
    let play = world().await;
    jobs(&play, 1, 3, "failed").await;
    play.clock("0").await;
    let token = token(&play, 1, "retry", ", 'worker'").await;
    play.clock("10 min").await;
    // failed is not where run begins.
    assert_eq!(outcome(&play, 1, "run", "").await, "refused|retrying");
    // retry names no such requester.
    assert_eq!(
        outcome(&play, 1, "retry", ", 'clerk'").await,
        "refused|retrying"
    );
    assert_eq!(job(&play, 1).await, "retrying|1");
    assert_eq!(
        outcome(&play, 1, "retry", ", 'worker'").await,
        "claimed|retrying"
    );
    play.ask(&format!(
        "select * from once.action_finish('job', '1', {token})"
    ))
    .fails("ON001")
    .await;
}

#[tokio::test]
async fn wrong_tokens_and_rows_that_were_never_claimed_are_lost() {
    let (play, token) = running().await;
    jobs(&play, 2, 2, "ready").await;
    for token in [token - 1, token + 1, 0, -1, i64::MAX, i64::MIN] {
        is_lost(&play, token, "a token of nobody").await;
    }
    for id in [2, 77] {
        for call in [
            extend(id, token),
            finish(id, token, ""),
            release(id, token, ""),
        ] {
            assert_eq!(play.code(&call).await, "ON001", "{call}");
        }
    }
    assert_eq!(job(&play, 1).await, "running|1");
}

#[tokio::test]
async fn a_lease_whose_row_is_gone_is_dead() {
    let (play, dead) = running().await;
    play.show("delete from job where id = 1").await;
    assert_eq!(play.code(&finish(1, dead, "")).await, "ON001");
    assert_eq!(play.code(&release(1, dead, "")).await, "ON001");
    assert_eq!(outcome(&play, 1, "run", "").await, "not_found|~");
    jobs(&play, 1, 1, "ready").await;
    let next = token(&play, 1, "run", "").await;
    assert!(next > dead);
    play.show("delete from job where id = 1").await;
    play.clock("1 h").await;
    assert_eq!(crate::world::drain(&play, 10).await.1, 0);
    play.ask("select count(*) from once.action_lease where state = 'h'")
        .is("0")
        .await;
}

#[tokio::test]
async fn a_lease_whose_row_left_its_claim_state_by_hand_is_dead() {
    let (play, dead) = running().await;
    play.show("update job set status = 'ready' where id = 1")
        .await;
    let before = job(&play, 1).await;
    assert_eq!(play.code(&finish(1, dead, "")).await, "ON001");
    assert_eq!(play.code(&release(1, dead, "")).await, "ON001");
    assert_eq!(job(&play, 1).await, before);
    // The lease has not run out and stands in nobody's way.
    let next = token(&play, 1, "run", "").await;
    assert!(next > dead);
    play.show("update job set status = 'archived' where id = 1")
        .await;
    play.clock("1 h").await;
    assert_eq!(crate::world::drain(&play, 10).await.1, 0);
    assert!(job(&play, 1).await.starts_with("archived|"));
    play.ask("select count(*) from once.action_lease where state = 'h'")
        .is("0")
        .await;
}

#[tokio::test]
async fn an_extended_lease_counts_from_now_for_as_long_as_is_asked() {
    let (play, token) = running().await;
    play.clock("20 s").await;
    assert_eq!(play.show(&extend(1, token)).await, "00:00:30|f");
    play.clock("45 s").await;
    assert_eq!(outcome(&play, 1, "run", "").await, "in_progress|running");
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    let longer = format!("select lease_left from once.action_extend('job', '1', {token}, '2 h')");
    assert_eq!(play.show(&longer).await, "02:00:00");
    play.clock("2 h").await;
    assert_eq!(sweep(&play, 10).await, "0|0|f");
    let shorter = format!("select lease_left from once.action_extend('job', '1', {token}, '1 s')");
    assert_eq!(play.show(&shorter).await, "00:00:01");
    play.clock("2 h 2 s").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    for bad in ["0", "-1 s"] {
        let call =
            format!("select lease_left from once.action_extend('job', '1', {token}, '{bad}')");
        assert_eq!(play.code(&call).await, "22023");
    }
}
