//! transition_many: each id once, locked in id order, a reason for each row.

use crate::waiting::Waiting;
use crate::world::{job, jobs, token, world};

fn many(ids: &str, to: &str, more: &str) -> String {
    format!(
        "select id, moved, status, version, reason
           from once.transition_many('job', '{ids}', '{to}'{more}) order by id::numeric"
    )
}

#[tokio::test]
async fn every_row_gets_its_own_answer() {
    let play = world().await;
    jobs(&play, 1, 3, "new").await;
    jobs(&play, 4, 5, "ready").await;
    jobs(&play, 6, 6, "done").await;
    play.show("update job set n = -1 where id = 2").await;
    play.show("select once.cancel_request('job', '3')").await;
    let flagged = job(&play, 3).await;
    token(&play, 4, "run", "").await;
    let shown = play.show(&many("{7,6,5,4,3,2,1}", "ready", "")).await;
    let expected = format!(
        "1|t|ready|1|~\n2|f|new|0|guard\n3|f|{flagged}|cancelling\n4|f|running|1|claimed\n\
         5|f|ready|0|status\n6|f|done|0|status\n7|f|~|~|not_found"
    );
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn an_id_named_twice_in_whatever_spelling_is_one_row() {
    let play = world().await;
    jobs(&play, 7, 8, "new").await;
    play.ask(&many("{7,07,\" 7\",7,8,+8,9,09}", "ready", ""))
        .is("7|t|ready|1|~\n8|t|ready|1|~\n9|f|~|~|not_found")
        .await;
}

#[tokio::test]
async fn no_ids_is_no_rows() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(play.show(&many("{}", "ready", "")).await, "");
    assert_eq!(job(&play, 1).await, "new|0");
}

#[tokio::test]
async fn from_status_and_requester_count_as_in_transition() {
    let play = world().await;
    jobs(&play, 1, 1, "failed").await;
    jobs(&play, 2, 2, "done").await;
    let boss = ", requester => 'boss'";
    play.ask(&many("{1,2}", "archived", ""))
        .is("1|f|failed|0|status\n2|t|archived|1|~")
        .await;
    play.ask(&many("{1,2}", "archived", boss))
        .is("1|t|archived|1|~\n2|f|archived|1|status")
        .await;
    jobs(&play, 3, 3, "failed").await;
    jobs(&play, 4, 4, "ready").await;
    play.ask(&many("{3,4}", "new", ", from_status => '{failed}'"))
        .is("3|t|new|1|~\n4|f|ready|0|status")
        .await;
}

#[tokio::test]
async fn a_bad_argument_or_an_undeclared_move_moves_nothing() {
    let play = world().await;
    jobs(&play, 1, 2, "new").await;
    for (ids, to, more, code) in [
        ("{1,abc}", "ready", "", "22023"),
        ("{1,NULL}", "ready", "", "22023"),
        ("{1,99999999999999999999}", "ready", "", "22023"),
        ("{1,2}", "running", "", "ON002"),
        ("{1,2}", "cancelled", "", "ON002"),
        ("{1,2}", "ready", ", from_status => '{done}'", "ON002"),
        ("{1,2}", "ready", ", from_status => '{new,x}'", "22023"),
        ("{}", "nonsense", "", "ON002"),
    ] {
        let refusal = play.refused(&many(ids, to, more)).await;
        refusal.tells(code, &[], &format!("{ids} {to} {more}"));
    }
    play.ask("select count(*) from job where status = 'new' and version = 0")
        .is("2")
        .await;
}

#[tokio::test]
async fn ten_thousand_ids_are_moved_and_one_more_is_too_many() {
    let play = world().await;
    jobs(&play, 1, 10_001, "new").await;
    let call = |count: u32| {
        format!(
            "select count(*), count(*) filter (where moved) from once.transition_many('job',
                (select array_agg(g::text order by g desc) from generate_series(1, {count}) as g), 'ready')"
        )
    };
    let refusal = play.refused(&call(10_001)).await;
    assert_eq!(refusal.code, "22023", "{refusal:?}");
    assert!(refusal.message.contains("\"ids\""), "{refusal:?}");
    assert_eq!(play.show(&call(10_000)).await, "10000|10000");
    play.ask("select count(*) from job where status = 'ready' and version = 1")
        .is("10000")
        .await;
}

#[tokio::test]
async fn rows_are_locked_in_the_order_of_the_id_column_and_not_of_its_text() {
    let play = world().await;
    jobs(&play, 9, 10, "new").await;
    let (other, session) = (play.another().await, play.another().await);
    other
        .show("begin; update job set note = 'x' where id = 10")
        .await;
    // 9 comes before 10, so it is locked already while 10 is waited for.
    let waiting = Waiting::begin(&play, session, &many("{10,9}", "ready", "")).await;
    let locked = "select from job where id = 9 for no key update nowait";
    assert_eq!(play.code(locked).await, "55P03");
    other.show("commit").await;
    let shown = waiting.end().await.1.unwrap();
    assert_eq!(shown, "9|t|ready|1|~\n10|t|ready|1|~");

    // And the other way round: while 9 is waited for, nothing is locked behind it.
    let session = play.another().await;
    other
        .show("begin; update job set note = 'x' where id = 9")
        .await;
    let waiting = Waiting::begin(&play, session, &many("{10,9}", "new", "")).await;
    play.show("select from job where id = 10 for no key update nowait")
        .await;
    other.show("commit").await;
    let shown = waiting.end().await.1.unwrap();
    assert_eq!(shown, "9|t|new|2|~\n10|t|new|2|~");
}

#[tokio::test]
async fn a_row_lost_while_waiting_is_answered_with_its_reason() {
    let play = world().await;
    jobs(&play, 1, 4, "new").await;
    let (other, session) = (play.another().await, play.another().await);
    other
        .show(
            "begin; delete from job where id = 1; select once.transition('job', '2', 'ready');
             update job set n = -1 where id = 3",
        )
        .await;
    let waiting = Waiting::begin(&play, session, &many("{1,2,3,4}", "ready", "")).await;
    other.show("commit").await;
    assert_eq!(
        waiting.end().await.1.unwrap(),
        "1|f|~|~|not_found\n2|f|ready|1|status\n3|f|new|0|guard\n4|t|ready|1|~"
    );
}
