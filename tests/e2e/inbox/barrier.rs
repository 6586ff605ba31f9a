//! inbox_barrier: an action and its compensation, in any order and at the same time.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, sessions};
use crate::{barrier, stored};

#[tokio::test]
async fn every_order_of_calls_leads_to_at_most_one_run_of_each() {
    let play = Playground::open().await;
    for (step, calls) in [
        ("a", "action run"),
        ("aa", "action run, action duplicate"),
        ("ac", "action run, compensation run, compensation duplicate"),
        (
            "aca",
            "action run, compensation run, action refused, compensation duplicate",
        ),
        ("c", "compensation skipped, compensation skipped"),
        (
            "ca",
            "compensation skipped, action refused, action refused, compensation skipped",
        ),
    ] {
        for call in calls.split(", ") {
            let (operation, outcome) = call.split_once(' ').unwrap();
            assert_eq!(
                play.show(&barrier(step, operation)).await,
                outcome,
                "{step}: {call}"
            );
        }
    }
}

#[tokio::test]
async fn steps_sagas_scopes_and_messages_are_apart() {
    let play = Playground::open().await;
    for call in [
        "inbox_barrier('s', 'g', 'a', 'action')",
        "inbox_barrier('s', 'g', 'b', 'action')",
        "inbox_barrier('s', 'h', 'a', 'action')",
        "inbox_barrier('t', 'g', 'a', 'action')",
        "inbox_barrier('s', 'ga', 'b', 'action')",
    ] {
        assert_eq!(
            play.show(&format!("select once.{call}")).await,
            "run",
            "{call}"
        );
    }
    play.ask("select accepted from once.inbox_accept('s', 'g')")
        .is("t")
        .await;
}

#[tokio::test]
async fn the_second_of_an_action_and_a_compensation_waits_for_the_first() {
    let play = Playground::open().await;
    // The first call with its answer, how it ends, and the second with its answer.
    for case in [
        "action run commit compensation run",
        "action run rollback compensation skipped",
        "compensation skipped commit action refused",
        "compensation skipped rollback action run",
        "again run commit compensation duplicate",
        "again run rollback compensation run",
    ] {
        let words: Vec<&str> = case.split(' ').collect();
        let (other, mut first) = (play.another().await, words[0]);
        if first == "again" {
            play.show(&barrier(case, "action")).await;
            first = "compensation";
        }
        play.show("begin").await;
        assert_eq!(play.show(&barrier(case, first)).await, words[1]);
        let waiting = Waiting::begin(&play, other, &barrier(case, words[3])).await;
        play.show(words[2]).await;
        assert_eq!(waiting.end().await.1.unwrap(), words[4], "{case}");
        if words[0] == "action" {
            assert_eq!(play.show(&barrier(case, "action")).await, "refused");
        }
    }
}

#[tokio::test]
async fn of_many_at_once_each_operation_runs_at_most_once_and_never_a_compensation_alone() {
    let play = Playground::open().await;
    let all = sessions(&play, 8).await;
    for round in 0..25 {
        let step = format!("s{round}");
        let answers = at_once(&all, |i| {
            barrier(&step, if i % 2 == 0 { "action" } else { "compensation" })
        })
        .await;
        let count = |parity: usize, outcome: &str| {
            answers
                .iter()
                .enumerate()
                .filter(|(i, a)| i % 2 == parity && a.as_ref().unwrap() == outcome)
                .count()
        };
        let (acted, compensated) = (count(0, "run"), count(1, "run"));
        let skipped = count(1, "skipped");
        assert!(acted <= 1 && compensated <= acted, "{answers:?}");
        assert_eq!(skipped > 0, acted == 0, "{answers:?}");
    }
    let step = stored(&play).await;
    assert!(!step.is_empty());
}

#[tokio::test]
async fn both_in_one_transaction_see_each_other() {
    let play = Playground::open().await;
    play.show("begin").await;
    assert_eq!(play.show(&barrier("x", "action")).await, "run");
    assert_eq!(play.show(&barrier("x", "compensation")).await, "run");
    play.show("commit").await;
    assert_eq!(play.show(&barrier("x", "compensation")).await, "duplicate");
}
