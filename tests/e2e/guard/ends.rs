//! What ends a call that waits for tables, and what it does not wait for.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::race::backend_pid;

use crate::together::{GUARD, seen, waiting_with_one, world};
use crate::waiting::code;

/// A machine that stands still for a moment brings both timeouts to their end at once, and the server tells of one.
#[tokio::test]
async fn a_statement_timeout_ends_it_also_together_with_its_own_wait() {
    let play = world(false).await;
    let writer = play.another().await;
    writer
        .show("begin; lock table item in row exclusive mode")
        .await;
    let session = seen(&play).await;
    // It waits for the items with the job's table locked for 700 ms, and then without an end.
    session
        .show("set deadlock_timeout = '700ms'; set statement_timeout = '900ms'")
        .await;
    let pid = backend_pid(&session.client).await.unwrap();
    let guard = waiting_with_one(&play, session, GUARD, "ShareRowExclusiveLock").await;
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    let (session, answer) = guard.end().await;
    assert_eq!(code(&answer), "57014", "{answer:?}");
    let refusal = answer.unwrap_err();
    assert!(refusal.message.contains("statement timeout"), "{refusal:?}");
    writer.show("commit").await;
    session.show("reset statement_timeout").await;
    session.show(GUARD).await;
}

#[tokio::test]
async fn a_guard_that_is_whole_keeps_no_claim_and_waits_for_none() {
    let play = world(true).await;
    let claim = "select outcome from once.action_claim('job', '1', 'run', 'worker')";
    let worker = play.another().await;
    worker.show("begin").await;
    assert_eq!(worker.show(claim).await, "claimed");
    play.show("set lock_timeout = '1ms'; begin").await;
    play.show(GUARD).await;
    // The call's transaction is open.
    worker.show("rollback").await;
    assert_eq!(worker.show(claim).await, "claimed");
    play.show("commit").await;
}
