//! transition: one declared move of one row, or the reason why not; an error only for what no
//! concurrent session can cause.

use crate::playground::Playground;
use crate::world::{job, jobs, moves, token, transition, world};

#[tokio::test]
async fn a_declared_move_is_made_and_its_repeat_answers_where_the_row_stands() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    assert_eq!(moves(&play, "1", "ready", "").await, "f|ready|1|status");
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
    assert_eq!(job(&play, 1).await, "new|2");
}

#[tokio::test]
async fn a_row_that_is_not_there_is_not_found() {
    let play = world().await;
    assert_eq!(moves(&play, "77", "ready", "").await, "f|~|~|not_found");
}

#[tokio::test]
async fn a_terminal_status_has_no_way_out() {
    let play = world().await;
    jobs(&play, 1, 1, "archived").await;
    for to in ["new", "ready", "failed", "archived"] {
        assert_eq!(moves(&play, "1", to, "").await, "f|archived|0|status");
    }
}

#[tokio::test]
async fn a_when_that_is_false_or_null_is_the_reason_guard() {
    let play = world().await;
    jobs(&play, 1, 2, "new").await;
    play.show("update job set n = -1 where id = 1").await;
    play.show("alter table job alter n drop not null; update job set n = null where id = 2")
        .await;
    assert_eq!(moves(&play, "1", "ready", "").await, "f|new|0|guard");
    assert_eq!(moves(&play, "2", "ready", "").await, "f|new|0|guard");
    play.show("update job set n = 0").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
}

#[tokio::test]
async fn a_when_reads_the_row_as_it_was_and_not_the_patch() {
    let play = world().await;
    jobs(&play, 1, 2, "new").await;
    play.show("update job set n = -1 where id = 1").await;
    let patch = r#", patch => '{"n": 5}'"#;
    assert_eq!(moves(&play, "1", "ready", patch).await, "f|new|0|guard");
    let patch = r#", patch => '{"n": -5}'"#;
    assert_eq!(moves(&play, "2", "ready", patch).await, "t|ready|1|~");
    assert_eq!(play.show("select n from job order by id").await, "-1\n-5");
}

#[tokio::test]
async fn another_version_is_the_reason_version() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(
        moves(&play, "1", "ready", ", version => 3").await,
        "f|new|0|version"
    );
    assert_eq!(
        moves(&play, "1", "ready", ", version => 0").await,
        "t|ready|1|~"
    );
    assert_eq!(
        moves(&play, "1", "new", ", version => 0").await,
        "f|ready|1|version"
    );
}

#[tokio::test]
async fn a_row_in_a_claim_state_is_claimed() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    token(&play, 1, "run", "").await;
    for to in ["new", "ready", "failed"] {
        assert_eq!(moves(&play, "1", to, "").await, "f|running|1|claimed");
    }
}

#[tokio::test]
async fn a_row_whose_flag_is_set_is_cancelling() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("select once.cancel_request('job', '1')").await;
    assert!(
        moves(&play, "1", "ready", "")
            .await
            .ends_with("|cancelling"),
        "{}",
        moves(&play, "1", "ready", "").await
    );
    assert!(job(&play, 1).await.starts_with("new|"));
}

#[tokio::test]
async fn a_move_that_nothing_declares_is_illegal_whatever_the_row_says() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    for (to, more) in [
        ("running", ""),
        ("retrying", ""),
        ("cancelled", ""),
        ("nonsense", ""),
        ("ready", ", from_status => '{done}'"),
        ("ready", ", from_status => '{failed,done}'"),
        // Only boss has this move.
        ("archived", ", from_status => '{failed}'"),
        (
            "archived",
            ", from_status => '{failed}', requester => 'worker'",
        ),
        // A step with a claim state declares no plain move.
        ("done", ""),
        ("done", ", requester => 'worker'"),
        ("ready", ", from_status => '{nonsense}'"),
    ] {
        for id in ["1", "77"] {
            let refusal = play.refused(&transition(id, to, more)).await;
            refusal.tells("ON002", &["job"], &format!("{to} {more}"));
            let declared =
                "moves are declared to \"archived\", \"done\", \"failed\", \"new\", \"ready\"";
            assert!(
                to != "nonsense" || refusal.hint.contains(declared),
                "{refusal:?}"
            );
        }
    }
    assert_eq!(job(&play, 1).await, "ready|0");
}

#[tokio::test]
async fn a_step_without_a_claim_state_declares_the_move_for_its_requester_alone() {
    let play = world().await;
    jobs(&play, 1, 2, "failed").await;
    assert_eq!(moves(&play, "1", "archived", "").await, "f|failed|0|status");
    assert_eq!(
        moves(&play, "1", "archived", ", requester => 'nobody'").await,
        "f|failed|0|status"
    );
    assert_eq!(
        moves(&play, "1", "archived", ", requester => 'boss'").await,
        "t|archived|1|~"
    );
    assert_eq!(
        moves(&play, "2", "archived", ", '{failed}', requester => 'boss'").await,
        "t|archived|1|~"
    );
}

#[tokio::test]
async fn from_status_narrows_the_declared_moves() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    jobs(&play, 2, 2, "failed").await;
    let from = ", from_status => '{failed}'";
    assert_eq!(moves(&play, "1", "new", from).await, "f|ready|0|status");
    assert_eq!(moves(&play, "2", "new", from).await, "t|new|1|~");
    // A status from which the move is not declared does not declare it.
    let from = ", from_status => '{ready,done}'";
    assert_eq!(moves(&play, "1", "new", from).await, "t|new|1|~");
    jobs(&play, 3, 3, "done").await;
    assert_eq!(moves(&play, "3", "new", from).await, "f|done|0|status");
}

#[tokio::test]
async fn a_move_rolls_back_with_the_callers_transaction_and_to_its_savepoint() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("begin; savepoint s").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    play.show("rollback to s").await;
    assert_eq!(moves(&play, "1", "ready", "").await, "t|ready|1|~");
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
    play.show("rollback").await;
    assert_eq!(job(&play, 1).await, "new|0");
}

#[tokio::test]
async fn a_machine_without_a_version_column_tells_no_version() {
    let play = Playground::open().await;
    play.show("create table plain (id int primary key, status text not null)")
        .await;
    crate::world::define(
        &play,
        r#"{"machine": "plain", "table": "plain", "id": "id", "status": "status",
            "status_types": ["a", "b"], "terminal": ["b"], "transitions": [{"from": ["a"], "to": "b"}]}"#,
    )
    .await;
    play.show("insert into plain values (1, 'a')").await;
    let call = "select moved, status, version, reason from once.transition('plain', '1', 'b')";
    assert_eq!(play.show(call).await, "t|b|~|~");
    // Where nothing counts versions, one cannot be asked for.
    let call = "select * from once.transition('plain', '1', 'b', version => 1)";
    assert_eq!(play.code(call).await, "22023");
}
