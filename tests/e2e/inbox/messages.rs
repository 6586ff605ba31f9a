//! inbox_accept and inbox_record: two handlers of one message, and what becomes of the one that waits.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};
use crate::{accept, record, stored};

const NEW: &str = "t|~";
const DUPLICATE: &str = "f|~";

#[tokio::test]
async fn a_duplicate_waits_for_the_handler_and_gets_its_verdict() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("begin").await;
    assert_eq!(play.show(&accept("m")).await, NEW);
    let waiting = Waiting::begin(&play, other, &accept("m")).await;
    play.show(&record("m", "{\"ok\":  true}")).await;
    play.show("commit").await;
    let (other, answer) = waiting.end().await;
    assert_eq!(answer.unwrap(), "f|{\"ok\":  true}");
    assert_eq!(other.show(&accept("m")).await, "f|{\"ok\":  true}");
}

#[tokio::test]
async fn a_duplicate_gets_the_message_if_the_handler_rolls_back() {
    let play = Playground::open().await;
    for how in ["rollback", "rollback to s", "select 1 / 0"] {
        let other = play.another().await;
        play.show("begin; savepoint s").await;
        assert_eq!(play.show(&accept(how)).await, NEW);
        let waiting = Waiting::begin(&play, other, &accept(how)).await;
        drop(play.attempt(how).await);
        let (other, answer) = waiting.end().await;
        assert_eq!(answer.unwrap(), NEW, "{how}");
        play.show("rollback").await;
        assert_eq!(other.show(&accept(how)).await, DUPLICATE);
    }
}

#[tokio::test]
async fn a_duplicate_that_waits_for_a_released_savepoint_waits_for_the_whole_transaction() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("begin; savepoint s").await;
    play.show(&accept("m")).await;
    let waiting = Waiting::begin(&play, other, &accept("m")).await;
    play.show("release s").await;
    play.show(&record("m", "1")).await;
    play.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), "f|1");
}

#[tokio::test]
async fn lock_timeout_bounds_the_wait_and_other_messages_do_not_wait() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("begin").await;
    play.show(&accept("m")).await;
    other.show("set lock_timeout = '50ms'").await;
    assert_eq!(other.code(&accept("m")).await, "55P03");
    assert_eq!(other.code(&record("m", "1")).await, "ON001");
    assert_eq!(other.show(&accept("n")).await, NEW);
    assert_eq!(
        other
            .show("select outcome from once.key_claim('s', 'm')")
            .await,
        "claimed",
        "keys of the same name are apart"
    );
    play.show("commit").await;
    assert_eq!(other.show(&accept("m")).await, DUPLICATE);
}

#[tokio::test]
async fn an_expired_message_is_new_for_one_of_those_who_ask_at_once() {
    let play = Playground::open().await;
    let other = play.another().await;
    let third = play.another().await;
    play.show("select once.inbox_accept('s', 'm', '1 microsecond')")
        .await;
    play.show("begin").await;
    assert_eq!(play.show(&accept("m")).await, NEW);
    let waiting = Waiting::begin(&play, other, &accept("m")).await;
    play.show("commit").await;
    assert_eq!(waiting.end().await.1.unwrap(), DUPLICATE);

    play.show("select once.inbox_accept('s', 'n', '1 microsecond'); begin")
        .await;
    assert_eq!(play.show(&accept("n")).await, NEW);
    let waiting = Waiting::begin(&play, third, &accept("n")).await;
    play.show("rollback").await;
    assert_eq!(waiting.end().await.1.unwrap(), NEW);
}

#[tokio::test]
async fn of_many_at_once_one_accepts() {
    let play = Playground::open().await;
    let all = sessions(&play, 8).await;
    for round in 0..20 {
        let message = format!("m{round}");
        let answers = at_once(&all, |_| accept(&message)).await;
        let accepted = answers.iter().filter(|a| a.as_ref().unwrap() == NEW);
        assert_eq!(accepted.count(), 1, "round {round}: {answers:?}");
        // And over a row whose time is over.
        play.show(&format!(
            "select once.inbox_accept('s', 'x{message}', '1 microsecond')"
        ))
        .await;
        let answers = at_once(&all, |_| accept(&format!("x{message}"))).await;
        let accepted = answers.iter().filter(|a| a.as_ref().unwrap() == NEW);
        assert_eq!(accepted.count(), 1, "round {round}: {answers:?}");
    }
    assert_eq!(play.show("select count(*) from once.inbox").await, "40");
}

#[tokio::test]
async fn messages_accepted_in_opposite_orders_end_in_a_deadlock_error_and_nothing_else() {
    let play = Playground::open().await;
    let other = play.another().await;
    let watcher = play.another().await;
    play.show("begin").await;
    play.show(&accept("a")).await;
    other.show("begin").await;
    other.show(&accept("b")).await;
    let waiting = Waiting::begin(&watcher, other, &accept("a")).await;
    let mine = play.attempt(&accept("b")).await;
    play.show("rollback").await;
    let (_, theirs) = waiting.end().await;
    let codes = [code(&mine), code(&theirs)];
    assert!(
        codes == ["40P01", ""] || codes == ["", "40P01"],
        "{mine:?} {theirs:?}"
    );
}

#[tokio::test]
async fn a_verdict_is_recorded_once_whoever_records_it() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("begin").await;
    play.show(&accept("m")).await;
    play.show(&record("m", "1")).await;
    let mut before = stored(&play).await;
    play.show(&record("m", "1")).await;
    assert_eq!(stored(&play).await, before);
    play.show("commit").await;
    before = stored(&play).await;
    // The answer to the commit got lost, and the handler's writes are made again.
    play.show("create table handled (n int)").await;
    for session in [&play, &other] {
        for verdict in ["1", "2"] {
            let again = format!(
                "begin; insert into handled values (1); {}",
                record("m", verdict)
            );
            let refusal = session.refused(&again).await;
            session.show("commit").await;
            refusal.tells("ON006", &["\"m\""], "a second verdict");
        }
    }
    assert_eq!(play.show("select count(*) from handled").await, "0");
    assert_eq!(stored(&play).await, before);
    assert_eq!(other.show(&accept("m")).await, "f|1");
}

/// A defect once: whoever came later could tell duplicates what the handler never said.
#[tokio::test]
async fn only_the_transaction_that_accepted_a_message_records_its_verdict() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show(&accept("m")).await;
    let before = stored(&play).await;
    for session in [&play, &other] {
        for level in crate::LEVELS {
            session
                .show(&format!("begin isolation level {level}"))
                .await;
            let refusal = session.refused(&record("m", "1")).await;
            session.show("rollback").await;
            refusal.tells("ON001", &["another transaction"], "its verdict");
        }
    }
    assert_eq!(stored(&play).await, before);
    assert_eq!(other.show(&accept("m")).await, DUPLICATE);
    // A savepoint is part of its transaction.
    play.show("begin; savepoint a").await;
    assert_eq!(play.show(&accept("n")).await, NEW);
    play.show("release a; savepoint b").await;
    play.show(&record("n", "1")).await;
    play.show("rollback to b").await;
    play.show(&record("n", "2")).await;
    play.show("commit").await;
    assert_eq!(other.show(&accept("n")).await, "f|2");
}

#[tokio::test]
async fn past_its_ttl_only_the_transaction_that_accepted_it_records_a_verdict() {
    let play = Playground::open().await;
    let short = "select once.inbox_accept('s', 'm', '1 microsecond')";
    play.show("begin").await;
    play.show(short).await;
    play.show(&record("m", "1")).await;
    play.show("commit").await;
    for sweep in [false, true] {
        if sweep {
            play.show("select once.sweep(task => 'inbox_reap')").await;
        }
        let refusal = play.refused(&record("m", "2")).await;
        refusal.tells("ON001", &[], "a late verdict");
    }
    assert_eq!(play.show(&accept("m")).await, NEW);
}

#[tokio::test]
async fn a_handlers_writes_and_its_message_share_their_fate() {
    let play = Playground::open().await;
    play.show("create table handled (n int)").await;
    let handle = "with a as (select * from once.inbox_accept('s', 'm'))
                  insert into handled select 1 from a where accepted";
    play.show(&format!("begin; {handle}; rollback")).await;
    play.show(handle).await;
    play.show(handle).await;
    assert_eq!(play.show("select count(*) from handled").await, "1");
}

#[tokio::test]
async fn a_duplicate_writes_nothing() {
    let play = Playground::open().await;
    play.show(&accept("m")).await;
    play.show("begin").await;
    play.show(&accept("m")).await;
    assert!(
        pg_once_tests::race::xid_unassigned(&play.client)
            .await
            .unwrap(),
        "a duplicate needs no transaction id"
    );
    play.show("commit").await;
}
