//! What a move leaves behind: its row of history, and its event.

use crate::playground::{Playground, cluster};
use crate::world::{JOB, TABLES, define, jobs, role, token};

const HISTORY: &str =
    "select from_status, to_status, how, requester, holder from once.machine_history('job', '1')";

/// The machine of all tests here, with further members in front.
async fn opened(members: &str) -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    let definition = JOB.replacen('{', &format!("{{{members},"), 1);
    define(&play, &definition).await;
    play
}

#[tokio::test]
async fn every_move_is_recorded_once_by_whatever_hand() {
    for guarded in [false, true] {
        let play = opened("\"history\": \"7 days\"").await;
        play.show(&format!("select once.machine_guard('job', {guarded})"))
            .await;
        jobs(&play, 1, 1, "new").await;
        assert_eq!(play.show(HISTORY).await, "", "an INSERT is no move");
        // With a condition, without one (the direct path), and many at once.
        play.show("select once.transition('job', '1', 'ready')")
            .await;
        play.show("select once.transition('job', '1', 'new')").await;
        play.show("select once.transition_many('job', '{1,2}', 'ready')")
            .await;
        let taken = token(&play, 1, "run", ", 'worker', holder => 'w-1'").await;
        play.show(&format!("select once.action_release('job', '1', {taken})"))
            .await;
        token(&play, 1, "run", ", lease => '1 us'").await;
        let sweeper = format!("after_sweeper_{guarded}");
        role(&play, &sweeper, "operate").await;
        let sweep = "select done from once.sweep(task => 'action_release')";
        assert_eq!(play.another_as(&sweeper).await.show(sweep).await, "1");
        let role = "select role from once.machine_history('job', '1') where how = 'sweep'";
        assert_eq!(play.show(role).await, sweeper, "not the table's owner");
        let taken = token(&play, 1, "run", ", 'worker'").await;
        play.show(&format!("select once.action_finish('job', '1', {taken})"))
            .await;
        play.show(
            "update job set n = 5 where id = 1; update job set status = 'archived' where id = 1",
        )
        .await;
        let by_hand = if guarded {
            "done|archived|by_hand|~|~\n"
        } else {
            ""
        };
        assert_eq!(
            play.show(HISTORY).await,
            format!(
                "{by_hand}running|done|finish|worker|~\n\
                 ready|running|claim|worker|~\n\
                 running|ready|sweep|~|~\n\
                 ready|running|claim|~|~\n\
                 running|ready|release|worker|w-1\n\
                 ready|running|claim|worker|w-1\n\
                 new|ready|transition|~|~\n\
                 ready|new|transition|~|~\n\
                 new|ready|transition|~|~"
            ),
            "guarded: {guarded}"
        );
        // A teardown.
        jobs(&play, 2, 2, "ready").await;
        for call in [
            "once.cancel_request('job', '2')",
            "once.cancel_refund('job', '2')",
            "once.cancel_confirm('job', '2', 1)",
            "once.cancel_finish('job', '2')",
        ] {
            play.show(&format!("select * from {call}")).await;
        }
        let last = "select from_status, to_status, how, role from once.machine_history('job', 2)";
        assert_eq!(play.show(last).await, "ready|cancelled|cancel|postgres");
        // Nobody's move that did not commit.
        play.show("begin; select once.transition('job', '3', 'ready'); rollback")
            .await;
        let count = "select count(*) from once.machine_history('job', '3')";
        assert_eq!(play.show(count).await, "0");
    }
}

#[tokio::test]
async fn moves_are_kept_for_as_long_as_the_definition_says() {
    let play = opened("\"history\": \"7 days\"").await;
    role(&play, "after_observer", "observe").await;
    jobs(&play, 1, 3, "new").await;
    play.clock("0").await;
    play.show("select once.transition_many('job', '{1,2}', 'ready')")
        .await;
    play.clock("4 days").await;
    play.show("select once.transition('job', '3', 'ready')")
        .await;
    let kept = "select count(*) from once.machine_move";
    let reap = "select done, failed, more from once.sweep(1, 'history_reap')";
    assert_eq!(play.show(reap).await, "0|0|f");
    play.clock("8 days").await;
    let due =
        "select due, oldest < '25 hours' from once.janitor_status() where task = 'history_reap'";
    assert_eq!(play.show(due).await, "2|t");
    assert_eq!(play.show(reap).await, "1|0|t");
    assert_eq!(play.show(reap).await, "1|0|t");
    assert_eq!(play.show(reap).await, "0|0|f");
    assert_eq!(play.show(kept).await, "1");
    let observer = play.another_as("after_observer").await;
    let told = "select from_status, to_status from once.machine_history('job', '3')";
    assert_eq!(observer.show(told).await, "new|ready");
    // Without the option its rows go with the next sweep, and none is written.
    define(&play, JOB).await;
    assert_eq!(play.show(reap).await, "1|0|t");
    play.show("select once.transition('job', '3', 'new')").await;
    assert_eq!(play.show(kept).await, "0");
}

const TAKEN: &str = "select order_key, payload from once.outbox_take('moved')";

#[tokio::test]
async fn a_transition_and_a_finish_emit_their_event_in_the_moves_own_transaction() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    let definition = JOB
        .replace("\"to\": \"new\"}", "\"to\": \"new\", \"emit\": \"moved\"}")
        .replace(
            "\"to\": \"ready\", \"when\": \"n >= 0\"}",
            "\"to\": \"ready\", \"when\": \"n >= 0\", \"emit\": \"moved\"}",
        )
        .replace(
            "\"lease\": \"30 seconds\"}",
            "\"lease\": \"30 seconds\", \"emit\": \"moved\"}",
        );
    let refused = play
        .refused(&format!(
            "select once.machine_define($def${definition}$def$)"
        ))
        .await;
    assert_eq!(refused.code, "ON003");
    assert!(
        refused
            .detail
            .contains("transitions[0].emit: there is no topic \"moved\""),
        "{}",
        refused.detail
    );
    play.show("select once.topic_set('moved')").await;
    define(&play, &definition).await;
    assert_eq!(
        play.show("select once.machine_get('job') #>> '{transitions,1,emit}'")
            .await,
        "moved"
    );
    jobs(&play, 1, 2, "new").await;
    play.show("begin; select once.transition('job', '1', 'ready'); rollback")
        .await;
    assert_eq!(play.show(TAKEN).await, "", "it was rolled back");
    play.show("select once.transition('job', '1', 'ready')")
        .await;
    play.show("select once.transition('job', '1', 'ready')")
        .await;
    play.show("select once.transition('job', '1', 'new', requester => 'ada')")
        .await;
    play.show("select once.transition_many('job', '{1,2}', 'ready')")
        .await;
    let taken = token(&play, 1, "run", ", 'worker'").await;
    play.show(&format!("select once.action_finish('job', '1', {taken})"))
        .await;
    // Without emit, and by hand under the guard, which sees the move.
    play.show(
        "select once.transition('job', '1', 'archived'), once.machine_guard('job', true);
         update job set status = 'new' where id = 2",
    )
    .await;
    let mut events = String::new();
    while let (shown, false) = {
        let shown = play.show(TAKEN).await;
        (shown.clone(), shown.is_empty())
    } {
        events += &format!("{shown}\n");
    }
    let event = |id: u32, from: &str, to: &str, requester: &str| {
        format!(
            "job/{id}|{{\"from\":\"{from}\",\"id\":\"{id}\",\"machine\":\"job\",\"requester\":{requester},\"to\":\"{to}\"}}"
        )
    };
    let mut shown: Vec<&str> = events.lines().collect();
    shown.sort_unstable();
    let mut wanted = [
        event(1, "new", "ready", "null"),
        event(1, "ready", "new", "\"ada\""),
        event(1, "new", "ready", "null"),
        event(2, "new", "ready", "null"),
        event(1, "ready", "done", "\"worker\""),
    ];
    wanted.sort_unstable();
    assert_eq!(shown, wanted);
    // Its subscribers are gone: a warning, and the move is made.
    play.show("select once.subscriber_drop('moved', 'default'); update job set status = 'new' where id = 2")
        .await;
    let moved = "select moved from once.transition('job', '2', 'ready')";
    assert_eq!(play.show(moved).await, "t");
    let log = std::fs::read_to_string(cluster().directory().join("server.log")).unwrap();
    assert!(log.contains("WARNING:  the event of a move of machine \"job\" is not emitted"));
    let lost = "select problem from once.machine_check('job') where problem like '%emit%'";
    for (change, what) in [
        ("", "has no subscribers"),
        ("select once.topic_drop('moved')", "is not there"),
    ] {
        play.show(change).await;
        let told = format!("moves emit to topic \"moved\", which {what}: their events are lost");
        assert_eq!(play.show(lost).await, told);
    }
}

#[tokio::test]
async fn a_topic_of_others_is_not_emitted_to() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    for name in ["after_owner", "after_definer"] {
        role(&play, name, "operate").await;
    }
    play.show(
        "select once.topic_set('closed', '{\"owner\": \"after_owner\"}');
         alter table job owner to after_definer; alter table item owner to after_definer;
         alter table wallet owner to after_definer",
    )
    .await;
    let definer = play.another_as("after_definer").await;
    let definition = JOB.replace("\"to\": \"new\"}", "\"to\": \"new\", \"emit\": \"closed\"}");
    let sql = format!("select once.machine_define($def${definition}$def$)");
    assert_eq!(definer.code(&sql).await, "42501");
    // 200 letters and more: the order_key is a hash.
    play.show(
        "select once.topic_set('open'); create table long (id text primary key, s text not null)",
    )
    .await;
    define(
        &play,
        r#"{"machine": "long", "table": "long", "id": "id", "status": "s", "status_types": ["a", "b"],
            "transitions": [{"from": ["a"], "to": "b", "emit": "open"}]}"#,
    )
    .await;
    play.show("insert into long values (repeat('é', 300), 'a'); select once.transition('long', repeat('é', 300), 'b')")
        .await;
    let key = "select length(order_key) from once.outbox_take('open')";
    assert_eq!(play.show(key).await, "64");
}

#[tokio::test]
async fn an_event_is_that_of_the_move_that_was_made() {
    let play = Playground::open().await;
    play.show(
        "create table two (id int primary key, s text not null, n int not null default 0);
         select once.topic_set('first'), once.topic_set('second')",
    )
    .await;
    let definition = |transitions: &str, plain: &str| {
        format!(
            r#"{{"machine": "two", "table": "two", "id": "id", "status": "s",
                "status_types": ["a", "b", "c", "working", "done"], "transitions": [{transitions}],
                "steps": [
                  {{"step_key": "work", "status": "a", "claim_state": {{"*": ["working", "a"]}},
                    "successful_state": {{"*": "done"}}, "emit": "first"}},
                  {{"step_key": "work", "status": "b", "lease": "2 h", "claim_state": {{"*": ["working", "a"]}},
                    "successful_state": {{"*": "done"}}, "emit": "second"}},
                  {{"step_key": "pass", "status": "a", "successful_state": {{{plain}}}, "emit": "first"}}]}}"#
        )
    };
    // Two declarations of one move that emit differently: which is meant cannot be known afterwards.
    for (transitions, plain) in [
        (
            r#"{"from": ["a", "c"], "to": "b", "when": "n > 0", "emit": "first"}, {"from": ["a"], "to": "b"}"#,
            r#""*": "done""#,
        ),
        (r#"{"from": ["a"], "to": "b"}"#, r#""ada": "b""#),
    ] {
        let refused = play
            .refused(&format!(
                "select once.machine_define($def${}$def$)",
                definition(transitions, plain)
            ))
            .await;
        assert_eq!(refused.code, "ON003");
        assert!(
            refused.detail.contains(
                "the move from \"a\" to \"b\" is also in transitions[0], which emits something else"
            ),
            "{}",
            refused.detail
        );
    }
    define(
        &play,
        &definition(
            r#"{"from": ["a"], "to": "b", "when": "n > 0", "emit": "second"},
               {"from": ["a"], "to": "b", "when": "n < 0", "emit": "second"}"#,
            r#""ada": "c""#,
        ),
    )
    .await;
    // One step that begins in either of two statuses, with one revert_to.
    for (id, status, lease) in [(1, "a", "t"), (2, "b", "f")] {
        play.show(&format!("insert into two values ({id}, '{status}')"))
            .await;
        let claim = format!("select token from once.action_claim('two', '{id}', 'work')");
        let taken = play.show(&claim).await;
        let extend =
            format!("select lease_left < '1 h' from once.action_extend('two', '{id}', {taken})");
        assert_eq!(play.show(&extend).await, lease);
        play.show(&format!(
            "select once.action_finish('two', '{id}', {taken})"
        ))
        .await;
    }
    let told =
        "select payload ->> 'id', payload ->> 'from', payload ->> 'to' from once.outbox_take";
    assert_eq!(play.show(&format!("{told}('first')")).await, "1|a|done");
    assert_eq!(play.show(&format!("{told}('second')")).await, "2|b|done");
}
