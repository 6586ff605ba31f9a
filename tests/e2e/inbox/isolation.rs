//! Every isolation level: a lost race is an outcome or 40001 with a HINT, never 23505.

use crate::playground::{Playground, Refusal};
use crate::waiting::Waiting;
use crate::{ABOVE, LEVELS, accept, barrier, record};

/// Begins a transaction whose snapshot, where it has one for all statements, is taken now.
async fn begin(play: &Playground, level: &str) {
    play.show(&format!(
        "begin isolation level {level}; select count(*) from pg_class"
    ))
    .await;
}

fn assert_retryable(refusal: &Refusal, what: &str) {
    refusal.tells("40001", &["scope \"s\""], what);
}

#[tokio::test]
async fn a_message_is_handled_at_every_level() {
    let play = Playground::open().await;
    for level in LEVELS {
        begin(&play, level).await;
        assert_eq!(play.show(&accept(level)).await, "t|~");
        play.show(&record(level, "1")).await;
        assert_eq!(play.show(&accept(level)).await, "f|1");
        assert_eq!(play.show(&barrier(level, "action")).await, "run");
        assert_eq!(play.show(&barrier(level, "compensation")).await, "run");
        play.show("commit").await;
        begin(&play, level).await;
        assert_eq!(play.show(&accept(level)).await, "f|1");
        play.ask(&barrier(level, "compensation"))
            .is("duplicate")
            .await;
        play.show("commit").await;
    }
}

#[tokio::test]
async fn what_was_committed_after_the_snapshot_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        let calls = [
            (accept(level), accept(level)),
            (barrier(level, "action"), barrier(level, "action")),
            (barrier("c", "compensation"), barrier("c", "action")),
        ];
        for (first, second) in calls {
            begin(&play, level).await;
            other.show(&first).await;
            let refusal = play.refused(&second).await;
            play.show("rollback").await;
            assert_retryable(&refusal, &second);
            other.show("delete from once.inbox").await;
        }
    }
}

#[tokio::test]
async fn who_waits_above_read_committed_gets_a_race_or_the_message() {
    let play = Playground::open().await;
    for level in ABOVE {
        for (end, accepted) in [("commit", false), ("rollback", true)] {
            let other = play.another().await;
            let message = format!("{level} {end}");
            begin(&other, level).await;
            play.show("begin").await;
            play.show(&accept(&message)).await;
            let waiting = Waiting::begin(&play, other, &accept(&message)).await;
            play.show(end).await;
            match waiting.end().await.1 {
                Ok(answer) => assert!(accepted && answer == "t|~", "{message}: {answer}"),
                Err(refusal) => {
                    assert!(!accepted, "{message}: {refusal:?}");
                    assert_retryable(&refusal, &message);
                }
            }
        }
    }
}

#[tokio::test]
async fn an_expired_message_that_somebody_renewed_after_the_snapshot_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        let short = format!("select once.inbox_accept('s', '{level}', '1 microsecond')");
        play.show(&short).await;
        begin(&play, level).await;
        assert_eq!(other.show(&accept(level)).await, "t|~");
        let refusal = play.refused(&accept(level)).await;
        play.show("rollback").await;
        assert_retryable(&refusal, level);
    }
}

#[tokio::test]
async fn a_compensation_that_somebody_wrote_after_the_snapshot_is_a_race() {
    let play = Playground::open().await;
    let other = play.another().await;
    for level in ABOVE {
        play.show(&barrier(level, "action")).await;
        let call = barrier(level, "compensation");
        begin(&play, level).await;
        other.show(&call).await;
        let refusal = play.refused(&call).await;
        play.show("rollback").await;
        assert_retryable(&refusal, &call);
    }
}
