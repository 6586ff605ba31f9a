//! machine_guard, machine_define and machine_drop beside transactions that have the tables: they wait as long as
//! lock_timeout says, or a second more than deadlock_timeout, and say which table they waited for.

use std::time::{Duration, Instant};

use crate::guarded;
use crate::playground::Playground;
use crate::statements::partitioned;
use crate::waiting::Waiting;
use crate::world::{JOB, define, jobs};

const GUARD: &str = "select once.machine_guard('job', true)";
const UNGUARD: &str = "select once.machine_guard('job', false)";
const DROP: &str = "select once.machine_drop('job')";

/// Guarded or not, with job 1 and its item 1.
async fn world(is_guarded: bool) -> Playground {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.show("insert into item (id, job_id) values (1, 1)")
        .await;
    if !is_guarded {
        play.show(UNGUARD).await;
    }
    play
}

/// Asserts that the call is told which table it could not lock, and what to do about it.
async fn not_locked(session: &Playground, call: &str, table: &str) {
    let refusal = session.refused(call).await;
    assert_eq!(refusal.code, "55P03", "{call}: {refusal:?}");
    for told in [r#"machine "job""#, table] {
        assert!(refusal.message.contains(told), "{call}: {refusal:?}");
    }
    assert!(refusal.hint.contains("lock_timeout"), "{call}: {refusal:?}");
}

#[tokio::test]
async fn a_table_that_somebody_has_is_named_when_lock_timeout_is_over() {
    for (is_guarded, call) in [(false, GUARD), (true, UNGUARD), (true, DROP)] {
        let play = world(is_guarded).await;
        let (holder, session) = (play.another().await, play.another().await);
        session.show("set lock_timeout = '20ms'; begin").await;
        for table in ["job", "item"] {
            holder
                .show(&format!("begin; lock table {table} in share mode"))
                .await;
            session.show("savepoint s").await;
            not_locked(&session, call, &format!(r#""public"."{table}""#)).await;
            session.show("rollback to s").await;
            assert_eq!(session.show("show lock_timeout").await, "20ms");
            // It has given back what it had locked.
            holder
                .show("lock table job, item in access exclusive mode; commit")
                .await;
        }
        session.show(call).await;
        session.show("commit").await;
    }
}

#[tokio::test]
async fn an_open_claim_is_named_when_lock_timeout_is_over() {
    for (is_guarded, call) in [(false, GUARD), (true, UNGUARD), (true, DROP)] {
        let play = world(is_guarded).await;
        let (holder, session) = (play.another().await, play.another().await);
        holder
            .show("begin; select once.action_claim('job', '1', 'run')")
            .await;
        session.show("set lock_timeout = '20ms'").await;
        not_locked(&session, call, "open claims").await;
        holder.show("rollback").await;
        session.show(call).await;
    }
}

#[tokio::test]
async fn a_table_that_another_session_defines_is_named_when_lock_timeout_is_over() {
    let play = world(false).await;
    let (holder, session) = (play.another().await, play.another().await);
    let other = JOB.replacen("\"job\"", "\"other\"", 1);
    let other = format!("select once.machine_define($def${other}$def$)");
    holder.show("begin").await;
    define(&holder, JOB).await;
    for (timeout, least) in [("20ms", 0), ("0", 1_900)] {
        session
            .show(&format!("set lock_timeout = '{timeout}'"))
            .await;
        let begin = Instant::now();
        let refusal = session.refused(&other).await;
        assert!(begin.elapsed() > Duration::from_millis(least));
        assert_eq!(refusal.code, "55P03", "{refusal:?}");
        let told = "table public.job is being defined by another session";
        assert_eq!(refusal.message, told);
        assert!(refusal.hint.contains("lock_timeout"), "{refusal:?}");
    }
    holder.show("rollback").await;
}

#[tokio::test]
async fn without_a_lock_timeout_it_waits_a_second_past_deadlock_timeout() {
    for (is_guarded, call) in [(true, UNGUARD), (false, GUARD), (true, DROP)] {
        let play = world(is_guarded).await;
        let (holder, session) = (play.another().await, play.another().await);
        holder
            .show("begin; lock table item in row exclusive mode")
            .await;
        session.show("set lock_timeout = 0").await;
        let begin = Instant::now();
        not_locked(&session, call, r#""public"."item""#).await;
        let waited = begin.elapsed();
        assert!(waited > Duration::from_millis(1_900), "{call}: {waited:?}");
        assert_eq!(session.show("show lock_timeout").await, "0");
        holder.show("commit").await;
        session.show(call).await;
        assert_eq!(session.show("show lock_timeout").await, "0");
    }
}

#[tokio::test]
async fn a_partition_that_somebody_has_is_named() {
    let play = partitioned().await;
    let (holder, session) = (play.another().await, play.another().await);
    session.show("set lock_timeout = '20ms'").await;
    for call in [UNGUARD, GUARD, DROP] {
        holder
            .show("begin; lock table item_low in row exclusive mode")
            .await;
        not_locked(&session, call, r#""public"."item_low""#).await;
        holder.show("commit").await;
        session.show(call).await;
    }
}

#[tokio::test]
async fn a_definition_that_moves_the_guard_waits_for_the_tables_too() {
    let play = world(true).await;
    play.show("create table more (like item including all)")
        .await;
    let changed = JOB.replace(r#""items": "item""#, r#""items": "more""#);
    let call = format!("select once.machine_define($d${changed}$d$)");
    let (holder, session) = (play.another().await, play.another().await);
    session.show("set lock_timeout = '20ms'").await;
    for table in ["item", "more"] {
        holder
            .show(&format!("begin; lock table {table} in row exclusive mode"))
            .await;
        not_locked(&session, &call, &format!(r#""public"."{table}""#)).await;
        holder.show("commit").await;
    }
    define(&session, &changed).await;
    let guarded =
        "select count(*) from pg_trigger where tgrelid = 'more'::regclass and not tgisinternal";
    assert_eq!(play.show(guarded).await, "1");
}

#[tokio::test]
async fn a_deadlock_is_told_as_the_server_tells_it() {
    let play = world(true).await;
    let (writer, session) = (play.another().await, play.another().await);
    writer
        .show("begin; set local deadlock_timeout = '1min'; update job set note = 'x'")
        .await;
    session
        .show(
            "begin; set local deadlock_timeout = '10ms'; set local lock_timeout = '10s';
             lock table item in row exclusive mode",
        )
        .await;
    let waiting = Waiting::begin(&play, writer, "lock table item in share mode").await;
    let refusal = session.refused(UNGUARD).await;
    assert_eq!(refusal.code, "40P01", "{refusal:?}");
    assert!(refusal.detail.contains("Process"), "{refusal:?}");
    session.show("rollback").await;
    let (writer, answer) = waiting.end().await;
    answer.unwrap();
    writer.show("commit").await;
    session.show(UNGUARD).await;
}

#[tokio::test]
async fn a_table_that_is_dropped_or_renamed_while_it_waits_is_told() {
    for (change, is_guarded, call) in [
        ("drop table item", false, GUARD),
        ("drop table item", true, UNGUARD),
        ("alter table item rename to part", false, GUARD),
    ] {
        let play = world(is_guarded).await;
        let owner = play.another().await;
        owner.show(&format!("begin; {change}")).await;
        let waiting = Waiting::begin(&play, play.another().await, call).await;
        owner.show("commit").await;
        let (session, answer) = waiting.end().await;
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code, "40001", "{change}: {refusal:?}");
        assert!(
            refusal
                .message
                .contains("or dropped while this call waited"),
            "{refusal:?}"
        );
        if change.contains("rename") {
            session.show(call).await;
            let guarded = "select count(*) from pg_trigger where tgrelid = 'part'::regclass and not tgisinternal";
            assert_eq!(play.show(guarded).await, "1", "{is_guarded}");
        }
    }
}

#[tokio::test]
async fn a_table_that_inherits_from_a_guarded_one_leaves_the_guard_whole() {
    let play = world(true).await;
    play.show("create table kid () inherits (job)").await;
    let writer = play.another().await;
    writer.show("begin; update job set note = 'x'").await;
    play.show("set lock_timeout = '1ms'").await;
    play.show(GUARD).await;
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
