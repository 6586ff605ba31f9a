//! What people and sweeps do to a key, against claims and holders.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};

const EXPIRED: &str = ", lease => '1 microsecond'";
const FORGET: &str = "select once.key_forget('s', 'k')";

async fn finished(play: &Playground, key: &str, more: &str) {
    let token = play.token(key, more).await;
    play.show(&format!(
        "select once.key_complete('s', '{key}', {token}, 200)"
    ))
    .await;
}

#[tokio::test]
async fn a_claim_does_not_wait_for_an_open_forget_and_begins_anew_after_it() {
    let play = Playground::open().await;
    let person = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    play.token("k", EXPIRED).await;
    person.show("begin").await;
    assert_eq!(person.show(FORGET).await, "t");
    assert_eq!(play.claim("k", "").await, "in_progress");
    person.show("commit").await;
    play.ask("select outcome, attempt from once.key_claim('s', 'k')")
        .is("claimed|1")
        .await;
}

#[tokio::test]
async fn a_forget_waits_for_an_open_takeover_and_is_then_refused() {
    let play = Playground::open().await;
    let person = play.another().await;
    play.token("k", EXPIRED).await;
    play.show("begin").await;
    play.token("k", "").await;
    let watcher = play.another().await;
    let waiting = Waiting::begin(&watcher, person, FORGET).await;
    play.show("commit").await;
    let (_, answer) = waiting.end().await;
    assert_eq!(code(&answer), "55006");
}

#[tokio::test]
async fn a_forget_that_waited_for_a_completion_deletes_the_answer() {
    let play = Playground::open().await;
    let person = play.another().await;
    let token = play.token("k", EXPIRED).await;
    play.show("begin").await;
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    let watcher = play.another().await;
    let waiting = Waiting::begin(&watcher, person, FORGET).await;
    play.show("commit").await;
    let (_, answer) = waiting.end().await;
    assert_eq!(answer.unwrap(), "t");
    assert_eq!(play.claim("k", "").await, "claimed");
}

#[tokio::test]
async fn a_row_that_a_person_has_locked_stops_no_answer_and_no_claim() {
    let play = Playground::open().await;
    let (person, holder) = (play.another().await, play.another().await);
    play.show("set lock_timeout = '1ms'").await;
    finished(&play, "done", "").await;
    let token = play.token("held", "").await;
    play.token("lost", EXPIRED).await;
    play.show("select once.sweep(task => 'key_abandon')").await;
    person.show("begin; select from once.key for update").await;
    assert_eq!(play.claim("done", "").await, "replayed");
    assert_eq!(play.claim("held", "").await, "in_progress");
    assert_eq!(play.claim("lost", "").await, "in_progress");
    assert_eq!(play.claim("new", "").await, "claimed");
    play.ask("select key from once.key_take_abandoned('s')")
        .is("")
        .await;
    let complete = format!("select once.key_complete('s', 'held', {token}, 200)");
    let waiting = Waiting::begin(&play, holder, &complete).await;
    person.show("commit").await;
    let (_, answer) = waiting.end().await;
    answer.unwrap();
    assert_eq!(play.claim("held", "").await, "replayed");
    assert_eq!(play.claim("lost", "").await, "resumed");
}

#[tokio::test]
async fn a_claim_meets_an_open_reap_and_an_open_claim_is_skipped_by_the_reap() {
    let play = Playground::open().await;
    let sweeper = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    finished(&play, "k", ", ttl => '1 microsecond'").await;
    sweeper.show("begin").await;
    sweeper
        .ask("select done from once.sweep(task => 'key_reap')")
        .is("1")
        .await;
    assert_eq!(play.claim("k", "").await, "in_progress");
    sweeper.show("rollback; begin").await;
    play.show("begin").await;
    assert_eq!(play.claim("k", "").await, "claimed");
    sweeper
        .ask("select task, done, failed from once.sweep() where task ~ '^key'")
        .is("key_abandon|0|0\nkey_reap|0|0\nkey_tombstone|0|0")
        .await;
    play.show("commit").await;
    sweeper
        .ask("select task, done, failed from once.sweep() where task ~ '^key'")
        .is("key_abandon|0|0\nkey_reap|0|0\nkey_tombstone|0|0")
        .await;
    sweeper.show("commit").await;
    assert_eq!(play.claim("k", "").await, "in_progress");
}

#[tokio::test]
async fn claims_completions_and_sweeps_of_expiring_keys_never_fail() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0", "max_attempts": null}')"#)
        .await;
    let sessions = sessions(&play, 8).await;
    // A body of its own for each iteration: the subtransaction fences the completion.
    let worker = "
        do $$ declare c record; begin
            for i in 1 .. 400 loop
                select * into c from once.key_claim('s', 'k' || i % 5, ttl => '1 microsecond');
                if c.token is not null then
                    perform once.key_step('s', 'k' || i % 5, c.token, 'pay');
                    perform once.key_complete('s', 'k' || i % 5, c.token, 200);
                elsif c.outcome <> 'in_progress' then raise 'outcome %', c.outcome;
                end if;
                commit;
            end loop;
        end $$";
    let sweeper = "
        do $$ begin for i in 1 .. 200 loop perform once.sweep(3); commit; end loop; end $$";
    let answers = at_once(&sessions, |i| {
        if i < 6 { worker } else { sweeper }.to_owned()
    })
    .await;
    for answer in answers {
        assert!(answer.is_ok(), "{answer:?}");
    }
    play.show("select once.sweep()").await;
    play.show("select once.sweep()").await;
    play.ask("select (select count(*) from once.key), (select count(*) from once.key_step)")
        .is("0|0")
        .await;
}

#[tokio::test]
async fn options_set_at_once_are_all_set() {
    let play = Playground::open().await;
    let sessions = sessions(&play, 8).await;
    let options = [
        r#""lease": "5 s""#,
        r#""ttl": "1 h""#,
        r#""gone_for": "0""#,
        r#""on_expiry": "park""#,
        r#""max_attempts": 3"#,
        r#""max_lease_life": "1 min""#,
        r#""keep_request": true"#,
        r#""recovery_points": ["paid"]"#,
    ];
    for round in 0..20 {
        let answers = at_once(&sessions, |i| {
            format!("select once.scope_set('s{round}', '{{{}}}')", options[i])
        })
        .await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        play.ask(&format!(
            "select o->>'lease', o->>'ttl', o->>'gone_for', o->>'on_expiry', o->>'max_attempts',
                        o->>'max_lease_life', o->>'keep_request', o->>'recovery_points'
                   from once.scope_get('s{round}') as o"
        ))
        .is(r#"00:00:05|01:00:00|00:00:00|park|3|00:01:00|true|["paid"]"#)
        .await;
    }
}
