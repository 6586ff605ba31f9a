//! What a guard asks of a move's condition, and which triggers are a machine's guard whatever happens to their table.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::world::define;

/// A machine over bills, with a condition for the move from new to open.
const BILL: &str = r#"{"machine": "bill", "table": "bill", "id": "id", "status": "status",
    "status_types": ["new", "open", "done"], "terminal": ["done"],
    "transitions": [{"from": ["new"], "to": "open", "when": "WHEN"}, {"from": ["open"], "to": "done"}]}"#;

/// The caller's own operators and functions come first in the caller's search_path; the guard does not ask them.
#[tokio::test]
async fn a_four_eyes_rule_is_not_fooled_by_the_search_path_of_who_writes() {
    let play = Playground::open().await;
    play.show(
        "create table bill (id int primary key, status text not null default 'new', created_by text, approved_by text);
         insert into bill (id, created_by) values (1, 'ann'), (2, 'ann');
         create schema mine; create function mine.no(text, text) returns boolean language sql immutable as 'select false';
         create operator mine.= (function = mine.no, leftarg = text, rightarg = text)",
    )
    .await;
    let rule = "approved_by is not null and approved_by is distinct from created_by";
    define(&play, &BILL.replace("WHEN", rule)).await;
    play.show(
        "select once.machine_guard('bill', true); set search_path = mine, pg_catalog, public",
    )
    .await;
    play.show("update bill set approved_by = 'ann' where id = 1; update bill set approved_by = 'bob' where id = 2")
        .await;
    play.ask("select approved_by is distinct from created_by from bill where id = 1")
        .is("t")
        .await;
    for call in [
        "update bill set status = 'open' where id = 1",
        "select once.transition('bill', '1', 'open')",
    ] {
        assert_eq!(play.code(call).await, "ON002", "{call}");
    }
    play.show("update bill set status = 'open' where id = 2")
        .await;
}

/// A statement looks a name up again when it has waited for the lock of the table.
#[tokio::test]
async fn a_table_that_takes_the_name_while_a_guard_waits_gets_none_and_loses_none() {
    let play = Playground::open().await;
    play.show("create schema one; create schema two; create schema three")
        .await;
    for schema in ["one", "two"] {
        play.show(&format!(
            "create table {schema}.bill (id int primary key, status text not null)"
        ))
        .await;
        let definition = BILL.replace("WHEN", "id > 0");
        let definition =
            definition.replace(r#""machine": "bill""#, &format!(r#""machine": "{schema}""#));
        define(
            &play,
            &definition.replace(
                r#""table": "bill""#,
                &format!(r#""table": "{schema}.bill""#),
            ),
        )
        .await;
    }
    play.show("select once.machine_guard('two', true)").await;
    let guards = "select tgrelid, tgname from pg_trigger where tgfoid::regproc::text like 'once.%' order by 1, 2";
    for enabled in [true, false] {
        let before = play.show(guards).await;
        let swapping = play.another().await;
        swapping
            .show("begin; lock table one.bill in access exclusive mode")
            .await;
        let call = format!("select once.machine_guard('one', {enabled})");
        let waiting = Waiting::begin(&play, play.another().await, &call).await;
        swapping
            .show("alter schema one rename to three_; alter schema two rename to one; commit")
            .await;
        let (session, answer) = waiting.end().await;
        assert_eq!(crate::waiting::code(&answer), "40001", "{enabled}");
        assert_eq!(play.show(guards).await, before);
        session.show(&call).await;
        play.show("alter schema one rename to two; alter schema three_ rename to one")
            .await;
    }
}
