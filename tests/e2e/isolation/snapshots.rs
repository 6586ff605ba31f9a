//! A snapshot that is older than what somebody else did to the key.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};
use crate::{ABOVE, LEVELS, assert_retryable, begin, complete, refused};

const EXPIRED: &str = ", lease => '1 microsecond'";

#[tokio::test]
async fn a_request_runs_through_its_phases_at_every_level() {
    let play = Playground::open().await;
    for (i, level) in LEVELS.iter().enumerate() {
        let key = format!("k{i}");
        let in_transaction = async |sql: String| {
            begin(&play, level).await;
            let answer = play.show(&sql).await;
            play.show("commit").await;
            answer
        };
        begin(&play, level).await;
        let token = play.token(&key, ", '{\"a\": 1}'").await;
        play.show("commit").await;
        let call = |what: &str| {
            format!("select once.{what}").replace("K,", &format!("'s', '{key}', {token},"))
        };
        in_transaction(call("key_step(K, 'pay')")).await;
        in_transaction(call("key_step_done(K, 'pay', '1')")).await;
        in_transaction(call("key_advance(K, 'paid', '{}')")).await;
        in_transaction(call("key_extend(K, '5 min')")).await;
        in_transaction(call("key_complete(K, 200, '2')")).await;
        let replay = format!(
            "select outcome, response_body from once.key_claim('s', '{key}', '{{\"a\": 1}}')"
        );
        assert_eq!(in_transaction(replay).await, "replayed|2", "{level}");
    }
}

#[tokio::test]
async fn claim_writes_and_completion_fit_one_transaction_at_every_level() {
    let play = Playground::open().await;
    for level in LEVELS {
        begin(&play, level).await;
        let token = play.token(level, "").await;
        for sql in [
            "key_step('s', K, 'pay')",
            "key_step_done('s', K, 'pay')",
            "key_advance('s', K, 'paid')",
        ] {
            let sql = sql.replace("K", &format!("'{level}', {token}"));
            play.show(&format!("select once.{sql}")).await;
        }
        complete(&play, level, token).await;
        assert_eq!(play.claim(level, "").await, "replayed");
        play.show("commit").await;
        assert_eq!(play.claim(level, "").await, "replayed");
    }
}

#[tokio::test]
async fn a_claim_under_a_snapshot_from_before_the_key_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        for (state, finish) in [("held", false), ("done", true)] {
            let key = format!("{level} {state}");
            begin(&play, level).await;
            let token = other.token(&key, "").await;
            if finish {
                complete(&other, &key, token).await;
            }
            let refusal = refused(&play, &format!("select once.key_claim('s', '{key}')")).await;
            assert_retryable(&refusal, &key);
            assert!(refusal.message.contains(&key), "{refusal:?}");
        }
    }
}

#[tokio::test]
async fn a_claim_that_meets_an_open_one_is_told_so_at_every_level() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    for level in LEVELS {
        begin(&play, level).await;
        other.show("begin").await;
        other.token(level, "").await;
        assert_eq!(play.claim(level, "").await, "in_progress");
        other.show("rollback").await;
        assert_eq!(play.claim(level, "").await, "claimed");
        play.show("commit").await;
    }
}

#[tokio::test]
async fn an_answer_is_as_of_the_snapshot() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        let token = other.token(level, "").await;
        begin(&play, level).await;
        complete(&other, level, token).await;
        assert_eq!(play.claim(level, "").await, "in_progress");
        play.show("commit").await;
        assert_eq!(play.claim(level, "").await, "replayed");
        begin(&play, level).await;
        other
            .show(&format!("select once.key_forget('s', '{level}')"))
            .await;
        assert_eq!(play.claim(level, "").await, "replayed");
        play.show("commit").await;
        assert_eq!(play.claim(level, "").await, "claimed");
    }
}

/// What somebody else may have done to an abandoned key since the snapshot.
const SINCE: [&str; 6] = [
    "key_claim('s', K)",
    "key_complete('s', K, TOKEN, 200)",
    "key_advance('s', K, TOKEN, 'paid')",
    "key_release('s', K, TOKEN)",
    "key_park('s', K, TOKEN, 'unknown')",
    "key_forget('s', K)",
];

fn call(call: &str, key: &str, token: i64) -> String {
    let call = call
        .replace("K,", &format!("'{key}',"))
        .replace("K)", &format!("'{key}')"));
    format!("select once.{}", call.replace("TOKEN", &token.to_string()))
}

#[tokio::test]
async fn a_takeover_of_a_key_that_changed_since_the_snapshot_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for (round, level) in ABOVE.iter().enumerate() {
        for (i, since) in SINCE.iter().enumerate() {
            let key = format!("k{round}-{i}");
            let token = other.token(&key, EXPIRED).await;
            begin(&play, level).await;
            other.show(&call(since, &key, token)).await;
            let refusal = refused(&play, &format!("select once.key_claim('s', '{key}')")).await;
            assert_retryable(&refusal, since);
        }
    }
}

/// The step that another attempt has done meanwhile is read as it is committed.
#[tokio::test]
async fn a_superseded_holder_that_records_a_done_step_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        let dead = other.token(level, EXPIRED).await;
        begin(&play, level).await;
        let present = other.token(level, "").await;
        for write in [
            "key_step('s', K, TOKEN, 'pay')",
            "key_step_done('s', K, TOKEN, 'pay', '1')",
        ] {
            other.show(&call(write, level, present)).await;
        }
        let late = call("key_step_done('s', K, TOKEN, 'pay', '1')", level, dead);
        assert_retryable(&refused(&play, &late).await, level);
    }
}

#[tokio::test]
async fn a_holders_write_after_a_change_since_the_snapshot_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    let writes = [
        "key_advance('s', K, TOKEN, 'paid', '{}')",
        "key_complete('s', K, TOKEN, 201)",
        "key_abort('s', K, TOKEN, 402)",
        "key_release('s', K, TOKEN, 'mine')",
        "key_park('s', K, TOKEN, 'mine')",
        "key_extend('s', K, TOKEN)",
        "key_step('s', K, TOKEN, 'pay')",
        "key_step_done('s', K, TOKEN, 'pay', '1')",
        "key_rotate('s', K, TOKEN, 'pay', 1)",
    ];
    for (round, level) in ABOVE.iter().enumerate() {
        for (i, write) in writes.iter().enumerate() {
            for (j, since) in SINCE.iter().enumerate() {
                let key = format!("k{round}-{i}-{j}");
                let token = other.token(&key, EXPIRED).await;
                begin(&play, level).await;
                other.show(&call(since, &key, token)).await;
                let refusal = refused(&play, &call(write, &key, token)).await;
                assert_retryable(&refusal, &format!("{write} after {since}"));
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_waited_for_a_takeover_is_a_race_above_read_committed() {
    let play = Playground::open().await;
    let thief = play.another().await;
    let mut holder = play.another().await;
    for (level, expected) in LEVELS.iter().zip(["ON001", "40001", "40001"]) {
        let token = play.token(level, EXPIRED).await;
        begin(&holder, level).await;
        thief.show("begin").await;
        thief.token(level, "").await;
        let write = call("key_complete('s', K, TOKEN, 200)", level, token);
        let waiting = Waiting::begin(&play, holder, &write).await;
        thief.show("commit").await;
        let (session, answer) = waiting.end().await;
        assert_eq!(code(&answer), expected);
        assert!(!answer.unwrap_err().hint.is_empty());
        session.show("rollback").await;
        holder = session;
    }
}

#[tokio::test]
async fn a_completer_leaves_out_what_changed_since_its_snapshot() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        play.token("stays", EXPIRED).await;
        play.token("goes", EXPIRED).await;
        play.show("select once.sweep(task => 'key_abandon')").await;
        begin(&play, level).await;
        other.token("goes", "").await;
        let taken = play
            .show("select key from once.key_take_abandoned('s')")
            .await;
        assert_eq!(taken, "stays", "{level}");
        play.show("commit").await;
        play.show("delete from once.key").await;
    }
}

#[tokio::test]
async fn a_sweep_with_an_old_snapshot_sweeps_or_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    for level in LEVELS {
        for sweep in [
            "sweep()",
            "sweep(task => 'key_abandon')",
            "sweep(task => 'key_reap')",
            "sweep(task => 'key_tombstone')",
            "sweep(task => 'inbox_reap')",
        ] {
            for other_does in ["select once.key_claim('s', 'k')", "select once.sweep()"] {
                let token = play.token("k", ", ttl => '1 microsecond'").await;
                complete(&play, "k", token).await;
                begin(&play, level).await;
                other.show(other_does).await;
                if let Err(refusal) = play.attempt(&format!("select once.{sweep}")).await {
                    assert_retryable(&refusal, &format!("{sweep} after {other_does}, {level}"));
                }
                play.show("rollback").await;
                play.show("delete from once.key").await;
            }
        }
    }
}

#[tokio::test]
async fn options_set_since_the_snapshot_are_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        for known in [false, true] {
            let scope = format!("{level} {known}");
            if known {
                other
                    .show(&format!("select once.scope_set('{scope}', '{{}}')"))
                    .await;
            }
            begin(&play, level).await;
            other
                .show(&format!(
                    r#"select once.scope_set('{scope}', '{{"ttl": "1 h"}}')"#
                ))
                .await;
            let set = format!(r#"select once.scope_set('{scope}', '{{"lease": "1 h"}}')"#);
            assert_retryable(&refused(&play, &set).await, &scope);
        }
    }
}

#[tokio::test]
async fn old_snapshots_never_meet_a_duplicate_key_while_the_row_moves() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    let sessions = sessions(&play, 4).await;
    at_once(&sessions, |i| match i {
        0 | 1 => "begin isolation level repeatable read; select 1".to_owned(),
        _ => "select 1".to_owned(),
    })
    .await;
    // Every claim and release gives the row another place; an insert that overlooks it would be 23505.
    let mover = "
        do $$ declare t bigint; begin
            for i in 1 .. 2000 loop
                select token into t from once.key_claim('s', 'k', lease => '1 microsecond');
                commit;
                if t is not null then
                    begin perform once.key_release('s', 'k', t);
                    exception when sqlstate 'ON001' then null; end;
                    commit;
                end if;
            end loop;
        end $$";
    let claimer = "
        do $$ declare o text; begin
            for i in 1 .. 6000 loop
                begin
                    select outcome into o from once.key_claim('s', 'k');
                    if o = 'claimed' then raise 'claimed on iteration %', i; end if;
                exception when serialization_failure then null;
                end;
            end loop;
        end $$";
    play.token("k", EXPIRED).await;
    let answers = at_once(&sessions, |i| {
        if i < 2 { claimer } else { mover }.to_owned()
    })
    .await;
    for answer in answers {
        assert_eq!(code(&answer), "", "{answer:?}");
    }
}
