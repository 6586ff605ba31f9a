//! Many transitions of one row at once, at every isolation level.

use crate::playground::Playground;
use crate::waiting::{Waiting, at_once, code, sessions};
use crate::world::{jobs, moves, transition, world};

const ABOVE: [&str; 2] = ["repeatable read", "serializable"];

#[tokio::test]
async fn twelve_sessions_make_the_same_transition_and_one_moves() {
    let play = world().await;
    let sessions = sessions(&play, 12).await;
    jobs(&play, 1, 50, "new").await;
    for id in 1..=50 {
        let answers = at_once(&sessions, |_| transition(&id.to_string(), "ready", "")).await;
        let mut moved = 0;
        for answer in answers {
            match answer.unwrap().as_str() {
                "t|ready|1|~" => moved += 1,
                other => assert_eq!(other, "f|ready|1|status"),
            }
        }
        assert_eq!(moved, 1);
    }
}

/// What a transition that waits for `other_does` answers once that has ended.
async fn after_waiting(play: &Playground, id: i64, other_does: &str, end: &str) -> String {
    let other = play.another().await;
    let session = play.another().await;
    other.show(&format!("begin; {other_does}")).await;
    let waiting = Waiting::begin(play, session, &transition(&id.to_string(), "ready", "")).await;
    other.show(end).await;
    waiting.end().await.1.unwrap()
}

#[tokio::test]
async fn a_transition_waits_for_a_locked_row_and_then_answers() {
    let play = world().await;
    jobs(&play, 1, 7, "new").await;
    let unrelated = |id: i64| format!("update job set note = 'x' where id = {id}");
    let same = |id: i64| transition(&id.to_string(), "ready", "");
    let negative = |id: i64| format!("update job set n = -1 where id = {id}");
    let delete = |id: i64| format!("delete from job where id = {id}");
    let claim = |id: i64| {
        format!(
            "update job set status = 'ready' where id = {id}; select once.action_claim('job', '{id}', 'run')"
        )
    };
    for (id, other_does, end, answer) in [
        (1, unrelated(1), "commit", "t|ready|1|~"),
        (2, same(2), "commit", "f|ready|1|status"),
        (3, same(3), "rollback", "t|ready|1|~"),
        (4, negative(4), "commit", "f|new|0|guard"),
        (5, delete(5), "commit", "f|~|~|not_found"),
        (7, claim(7), "commit", "f|running|1|claimed"),
    ] {
        let shown = after_waiting(&play, id, &other_does, end).await;
        assert_eq!(shown, answer, "{other_does}, {end}");
    }
    let flagged = "select once.cancel_request('job', '6')";
    let shown = after_waiting(&play, 6, flagged, "commit").await;
    assert!(shown.ends_with("|cancelling"), "{shown}");
}

#[tokio::test]
async fn a_lock_timeout_bounds_the_wait() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    let other = play.another().await;
    other
        .show("begin; select from job where id = 1 for update")
        .await;
    play.show("set lock_timeout = '50ms'").await;
    assert_eq!(play.code(&transition("1", "ready", "")).await, "55P03");
    other.show("rollback").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
}

#[tokio::test]
async fn an_old_snapshot_gets_an_answer_or_a_race_to_retry_and_never_another_error() {
    let play = world().await;
    let other = play.another().await;
    let changes = [
        "select once.transition('job', 'ID', 'ready')",
        "update job set note = 'x' where id = ID",
        "update job set n = -1 where id = ID",
        "delete from job where id = ID",
        "select once.cancel_request('job', 'ID')",
        "update job set status = 'ready' where id = ID; select once.action_claim('job', 'ID', 'run')",
    ];
    let mut id = 0;
    for level in ABOVE {
        for change in changes {
            id += 1;
            jobs(&play, id, id, "new").await;
            play.show(&format!(
                "begin isolation level {level}; select count(*) from job"
            ))
            .await;
            other.show(&change.replace("ID", &id.to_string())).await;
            let answer = play
                .attempt(&transition(&id.to_string(), "ready", ""))
                .await;
            match answer {
                // What the snapshot shows can be told, but a move over what it does not show cannot.
                Ok(shown) => assert!(shown.starts_with("f|"), "{level}, {change}: {shown}"),
                Err(refusal) => {
                    refusal.tells("40001", &[], &format!("{level}, {change}"));
                }
            }
            play.show("rollback").await;
        }
    }
}

#[tokio::test]
async fn a_waiting_transition_under_an_old_snapshot_is_a_race_when_the_row_changed() {
    let play = world().await;
    let mut id = 0;
    for level in ABOVE {
        for (end, expected) in [("commit", "40001"), ("rollback", "")] {
            id += 1;
            jobs(&play, id, id, "new").await;
            let (other, session) = (play.another().await, play.another().await);
            other
                .show(&format!(
                    "begin; {}",
                    transition(&id.to_string(), "ready", "")
                ))
                .await;
            session
                .show(&format!(
                    "begin isolation level {level}; select count(*) from job"
                ))
                .await;
            let sql = transition(&id.to_string(), "ready", "");
            let waiting = Waiting::begin(&play, session, &sql).await;
            other.show(end).await;
            let (session, answer) = waiting.end().await;
            assert_eq!(code(&answer), expected, "{level} {end}: {answer:?}");
            if let Err(refusal) = answer {
                assert!(!refusal.hint.is_empty(), "{refusal:?}");
            }
            session.show("rollback").await;
        }
    }
}

#[tokio::test]
async fn moves_up_and_down_from_many_sessions_count_each_version_once() {
    let play = world().await;
    let sessions = sessions(&play, 6).await;
    jobs(&play, 1, 3, "ready").await;
    play.show("create table made (n bigint)").await;
    let loops = |i: usize| {
        format!(
            "do $$ declare m boolean; made bigint := 0; begin
                for i in 1 .. 300 loop
                    select moved into m from once.transition('job', (1 + (i + {i}) % 3)::text,
                        case when (i + {i}) % 2 = 0 then 'new' else 'ready' end);
                    if m then made := made + 1; end if;
                    commit;
                end loop;
                insert into made values (made);
             end $$"
        )
    };
    for answer in at_once(&sessions, loops).await {
        answer.unwrap();
    }
    play.ask("select sum(version) = (select sum(n) from made), sum(version) > 0 from job")
        .is("t|t")
        .await;
}
