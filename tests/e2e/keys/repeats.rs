//! Rule 3: a repeated call does nothing twice, and says so. Within its transaction it answers the same. After the
//! commit ON006 keeps the caller's writes beside it from committing again; the other calls converge, until somebody
//! else has the lease: then it is ON001.

use crate::playground::Playground;
use pg_once_tests::script::rows;

/// Every write that presents a token, `$` stands for it.
const WRITES: &str = r#"
advance | select once.key_advance('s', 'k', $, 'paid', '{"a": 1}')
advance with a lease | select once.key_advance('s', 'k', $, 'paid', null, '9 s')
complete | select once.key_complete('s', 'k', $, 200, '{"a":  1}', '[]')
complete without a body | select once.key_complete('s', 'k', $, 204)
abort | select once.key_abort('s', 'k', $, 502, '"no"')
release | select once.key_release('s', 'k', $, 'error', '3 s')
release at once | select once.key_release('s', 'k', $)
park | select once.key_park('s', 'k', $, 'why')
step | select * from once.key_step('s', 'k', $, 'mail')
step_done | select * from once.key_step_done('s', 'k', $, 'pay', '{"id":  7}')
step_done without a result | select * from once.key_step_done('s', 'k', $, 'pay')
rotate | select once.key_rotate('s', 'k', $, 'pay', 1)"#;

const EXTEND: [&str; 2] = ["extend", "select once.key_extend('s', 'k', $)"];

/// What a write is told where an earlier transaction has made it; "" where it converges in silence.
fn repeated(name: &str) -> &'static str {
    let first = name.split(' ').next();
    match ["advance", "complete", "abort", "step_done"].contains(&first.unwrap()) {
        true => "ON006",
        false => "",
    }
}

/// A claimed key with a step begun and a point reached: something for each write to change.
async fn begin(play: &Playground) -> i64 {
    begin_key(play, "k").await
}

pub async fn begin_key(play: &Playground, key: &str) -> i64 {
    play.clock("0").await;
    let token = play.token(key, ", '1'").await;
    play.show(&format!(
        "select once.key_step('s', '{key}', {token}, 'pay');
         select once.key_advance('s', '{key}', {token}, 'begun', '0')"
    ))
    .await;
    token
}

fn with(sql: &str, token: i64) -> String {
    sql.replace('$', &token.to_string())
}

fn with_key(sql: &str, key: &str, token: i64) -> String {
    with(sql, token).replace("'k'", &format!("'{key}'"))
}

#[tokio::test]
async fn every_write_repeated_in_its_transaction_answers_the_same_and_changes_nothing_more() {
    let play = Playground::open().await;
    for [name, write] in rows(WRITES) {
        let token = begin_key(&play, name).await;
        let write = with_key(write, name, token);
        let before = play.stored().await;
        play.show("begin; savepoint a").await;
        let first = play.show(&write).await;
        let stored = play.stored().await;
        assert_ne!(stored, before, "{name} writes something");
        for then in ["release a", "savepoint b", "select 1"] {
            play.show(then).await;
            assert_eq!(play.show(&write).await, first, "{name}, {then}");
            assert_eq!(play.stored().await, stored, "{name}, {then}");
        }
        play.show("commit").await;
    }
}

#[tokio::test]
async fn every_write_repeated_by_another_transaction_says_so_or_converges() {
    let play = Playground::open().await;
    let other_session = play.another().await;
    other_session.clock("0").await;
    for [name, write] in rows(WRITES) {
        let token = begin_key(&play, name).await;
        let write = with_key(write, name, token);
        let first = play.show(&write).await;
        let stored = play.stored().await;
        for session in [&play, &other_session] {
            for at in ["0", "2 min"] {
                session.clock(at).await;
                match (session.attempt(&write).await, repeated(name)) {
                    (Ok(again), "") => assert_eq!(again, first, "{name} at {at}"),
                    (Err(refusal), code) => {
                        assert_eq!(refusal.code, code, "{name} at {at}: {refusal:?}");
                        assert!(refusal.message.contains(name), "{refusal:?}");
                        assert!(refusal.hint.contains("your own writes"), "{refusal:?}");
                    }
                    (Ok(again), _) => panic!("{name} at {at} answered {again}"),
                }
                assert_eq!(play.stored().await, stored, "{name} at {at}");
            }
            session.clock("0").await;
        }
    }
}

#[tokio::test]
async fn every_write_repeated_after_somebody_else_took_over_is_lease_lost() {
    let play = Playground::open().await;
    for [name, write] in rows(WRITES) {
        let token = begin_key(&play, name).await;
        let write = with_key(write, name, token);
        play.show(&write).await;
        play.clock("2 h").await;
        let taken = play.claim(name, ", '1'").await;
        let stored = play.stored().await;
        let repeated = play.attempt(&write).await.map_err(|refusal| refusal.code);
        match taken.as_str() {
            "resumed" => assert_eq!(repeated.unwrap_err(), "ON001", "{name}"),
            "replayed" => assert_eq!(repeated.unwrap_err(), "ON006", "{name}"),
            "parked" => assert!(repeated.is_ok(), "{name}: nobody else has it"),
            other => panic!("{name}: {other}"),
        }
        assert_eq!(play.stored().await, stored, "{name}");
    }
}

#[tokio::test]
async fn every_write_of_a_superseded_holder_is_lease_lost_and_undoes_the_transaction() {
    let play = Playground::open().await;
    play.show("create table local (write text)").await;
    let token = begin(&play).await;
    play.clock("2 h").await;
    let present = play.token("k", ", '1'").await;
    let stored = play.stored().await;
    for [name, write] in rows(WRITES).into_iter().chain([EXTEND]) {
        for wrong in [token, present + 1, present - 1, 0, -1, i64::MAX, i64::MIN] {
            play.show(&format!("begin; insert into local values ('{name}')"))
                .await;
            let refused = play.refused(&with(write, wrong)).await;
            refused.tells("ON001", &["\"k\"", "\"s\""], name);
            assert_eq!(
                play.code("select 1").await,
                "25P02",
                "{name}: the transaction has failed"
            );
            play.show("commit").await;
        }
    }
    assert_eq!(play.show("select count(*) from local").await, "0");
    assert_eq!(play.stored().await, stored);
    // Caught, it undoes what the subtransaction did, and the rest commits.
    play.show(&format!(
        "do $$ begin
            insert into local values ('kept');
            begin
                insert into local values ('fenced');
                perform once.key_advance('s', 'k', {token}, 'p');
            exception when sqlstate 'ON001' then null; end;
         end $$"
    ))
    .await;
    play.ask("select string_agg(write, ' ') from local")
        .is("kept")
        .await;
    play.ask(&format!("select once.key_extend('s', 'k', {present})"))
        .is("00:01:00")
        .await;
}

#[tokio::test]
async fn a_holder_whose_lease_ran_out_while_nobody_took_over_can_do_each_write() {
    let play = Playground::open().await;
    for [name, write] in rows(WRITES).into_iter().chain([EXTEND]) {
        let token = begin_key(&play, name).await;
        play.clock("3 h").await;
        let before = play.stored().await;
        play.show(&with_key(write, name, token)).await;
        assert_ne!(play.stored().await, before, "{name}");
    }
}

#[tokio::test]
async fn a_holder_whose_lease_ran_out_into_a_parking_by_option_can_do_each_write() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park", "max_attempts": 1}')"#)
        .await;
    for [name, write] in rows(WRITES) {
        let token = begin_key(&play, name).await;
        play.clock("3 h").await;
        assert_eq!(play.claim(name, ", '1'").await, "parked");
        play.ask("select once.sweep(task => 'key_abandon'); select count(*) from once.key_take_abandoned('s')")
            .is("0")
            .await;
        let before = play.stored().await;
        play.show(&with_key(write, name, token)).await;
        assert_ne!(play.stored().await, before, "{name}");
    }
}

#[tokio::test]
async fn every_write_to_a_key_that_is_not_there_is_lease_lost() {
    let play = Playground::open().await;
    for [name, write] in rows(WRITES).into_iter().chain([EXTEND]) {
        let refused = play.refused(&with(write, 7)).await;
        refused.tells("ON001", &["\"k\""], name);
    }
    assert_eq!(play.stored().await, "");
    for ended in ["forgotten", "past gone_for"] {
        let token = begin(&play).await;
        play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
            .await;
        match ended {
            "forgotten" => drop(play.show("select once.key_forget('s', 'k')").await),
            _ => play.clock("3 days").await,
        }
        for [name, write] in rows(WRITES).into_iter().chain([EXTEND]) {
            assert_eq!(
                play.code(&with(write, token)).await,
                "ON001",
                "{name} after {ended}"
            );
        }
    }
}

#[tokio::test]
async fn extend_alone_counts_afresh_when_it_is_repeated() {
    let play = Playground::open().await;
    let token = begin(&play).await;
    let extend = format!("select once.key_extend('s', 'k', {token}, '30 s')");
    assert_eq!(play.show(&extend).await, "00:00:30");
    play.clock("20 s").await;
    assert_eq!(play.show(&extend).await, "00:00:30");
    play.clock("50 s").await;
    assert_eq!(play.claim("k", ", '1'").await, "resumed");
    assert_eq!(play.code(&extend).await, "ON001");
}

#[tokio::test]
async fn after_the_finish_any_write_of_the_finishing_token_is_already_done() {
    for finish in ["key_complete", "key_abort"] {
        let play = Playground::open().await;
        let token = begin(&play).await;
        let the_finish = format!("select once.{finish}('s', 'k', {token}, 201, '1', '2')");
        play.show(&the_finish).await;
        let stored = play.stored().await;
        let others = [
            "select once.key_complete('s', 'k', $, 202, '1', '2')",
            "select once.key_complete('s', 'k', $, 201, '1 ', '2')",
            "select once.key_complete('s', 'k', $, 201, '1', null)",
            "select once.key_complete('s', 'k', $, 201, null, '2')",
            "select once.key_abort('s', 'k', $, 201, '1', '[2]')",
        ];
        let writes = rows(WRITES).into_iter().chain([EXTEND]);
        let writes = writes.map(|[_, write]| write).chain(others);
        for write in writes {
            let refused = play.refused(&with(write, token)).await;
            refused.tells("ON006", &["\"k\""], write);
            assert_eq!(
                play.code(&with(write, token - 1)).await,
                "ON001",
                "any other token: {write}"
            );
        }
        let other = if finish == "key_abort" {
            "key_complete"
        } else {
            "key_abort"
        };
        assert_eq!(play.code(&the_finish.replace(finish, other)).await, "ON006");
        assert_eq!(play.code(&the_finish).await, "ON006");
        assert_eq!(play.stored().await, stored);
    }
}

#[tokio::test]
async fn a_released_or_parked_lease_is_lost_to_every_write_but_the_one_that_ended_it() {
    let park = "select once.key_park('s', 'k', $, 'p')";
    for (ended, ends) in [
        (
            "key_release",
            [
                "select once.key_release('s', 'k', $, 'e', '1 h')",
                "select once.key_release('s', 'k', $, 'f', '2 h')",
                "select once.key_release('s', 'k', $)",
            ],
        ),
        (
            "key_park",
            [park, "select once.key_park('s', 'k', $, 'q')", park],
        ),
    ] {
        let play = Playground::open().await;
        let token = begin(&play).await;
        play.show(&with(ends[0], token)).await;
        let stored = play.stored().await;
        for [_, write] in rows(WRITES).into_iter().chain([EXTEND]) {
            if !write.contains(ended) {
                assert_eq!(
                    play.code(&with(write, token)).await,
                    "ON001",
                    "{ended}: {write}"
                );
            }
        }
        // Its arguments are not compared: the first ones stay.
        for end in ends {
            play.show(&with(end, token)).await;
        }
        assert_eq!(play.stored().await, stored);
    }
}

#[tokio::test]
async fn a_derived_key_rotated_by_one_holder_is_not_rotated_again_by_the_next() {
    let play = Playground::open().await;
    let token = begin(&play).await;
    let rotate =
        |token: i64, from: i32| format!("select once.key_rotate('s', 'k', {token}, 'pay', {from})");
    assert_eq!(play.show(&rotate(token, 1)).await, "2");
    play.clock("1 h").await;
    let next = play.token("k", ", '1'").await;
    assert_eq!(
        play.show(&rotate(next, 1)).await,
        "2",
        "from the same version a no-op"
    );
    assert_eq!(play.show(&rotate(next, 2)).await, "3");
    assert_eq!(play.code(&rotate(next, 1)).await, "22023");
}

#[tokio::test]
async fn options_and_sweeps_and_grants_repeated_converge() {
    let play = Playground::open().await;
    play.show("create role repeats_worker").await;
    for call in [
        r#"select once.scope_set('s', '{"lease": "5 s", "max_attempts": null}')"#,
        "select once.grant_role('repeats_worker', 'use')",
        "select once.revoke_role('repeats_worker', 'use')",
        "select once.revoke_role('repeats_worker', 'use')",
        "select * from once.sweep()",
    ] {
        let first = play.show(call).await;
        let stored = play.stored().await;
        assert_eq!(play.show(call).await, first, "{call}");
        assert_eq!(play.stored().await, stored, "{call}");
    }
}
