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
async fn a_compensation_waits_for_an_action_at_work() {
    let play = Playground::open().await;
    for (end, outcome, after) in [
        ("commit", "run", "refused"),
        ("rollback", "skipped", "refused"),
        ("rollback to s", "skipped", "refused"),
    ] {
        let other = play.another().await;
        play.show("begin; savepoint s").await;
        assert_eq!(play.show(&barrier(end, "action")).await, "run");
        let waiting = Waiting::begin(&play, other, &barrier(end, "compensation")).await;
        play.show(end).await;
        assert_eq!(waiting.end().await.1.unwrap(), outcome, "{end}");
        play.show("commit").await;
        assert_eq!(play.show(&barrier(end, "action")).await, after, "{end}");
    }
}

#[tokio::test]
async fn an_action_waits_for_a_compensation_that_came_first() {
    let play = Playground::open().await;
    for (end, outcome) in [("commit", "refused"), ("rollback", "run")] {
        let other = play.another().await;
        play.show("begin").await;
        assert_eq!(play.show(&barrier(end, "compensation")).await, "skipped");
        let waiting = Waiting::begin(&play, other, &barrier(end, "action")).await;
        play.show(end).await;
        assert_eq!(waiting.end().await.1.unwrap(), outcome, "{end}");
    }
}

#[tokio::test]
async fn of_two_compensations_the_second_waits_and_runs_only_if_the_first_did_not() {
    let play = Playground::open().await;
    for (end, outcome) in [("commit", "duplicate"), ("rollback", "run")] {
        let other = play.another().await;
        play.show(&barrier(end, "action")).await;
        play.show("begin").await;
        assert_eq!(play.show(&barrier(end, "compensation")).await, "run");
        let waiting = Waiting::begin(&play, other, &barrier(end, "compensation")).await;
        play.show(end).await;
        assert_eq!(waiting.end().await.1.unwrap(), outcome, "{end}");
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
