//! The owner of a scope owns its messages and sagas, too. Roles belong to the whole cluster.

use crate::playground::Playground;
use crate::stored;

const CALLS: [&str; 5] = [
    "inbox_accept('owned', 'm')",
    "inbox_accept('owned', 'new')",
    "inbox_record('owned', 'new', '1')",
    "inbox_barrier('owned', 'g', 'pay', 'action')",
    "inbox_barrier('owned', 'g', 'pay', 'compensation')",
];

#[tokio::test]
async fn a_scope_with_an_owner_is_closed_to_all_but_its_members_and_superusers() {
    let play = Playground::open().await;
    play.show(
        "create role inbox_owner; create role inbox_member login in role inbox_owner;
         create role inbox_outsider login; create role inbox_all;
         grant inbox_all to inbox_owner, inbox_outsider;
         select once.grant_role('inbox_all', 'use');
         select once.scope_set('owned', '{\"owner\": \"inbox_owner\"}');
         select once.inbox_accept('owned', 'm')",
    )
    .await;
    let outsider = play.another_as("inbox_outsider").await;
    let before = stored(&play).await;
    for call in CALLS {
        let refusal = outsider
            .refused(&format!("select * from once.{call}"))
            .await;
        assert_eq!(refusal.code, "42501", "{call}: {refusal:?}");
        assert!(refusal.message.contains("\"owned\"") && !refusal.hint.is_empty());
    }
    assert_eq!(stored(&play).await, before);
    assert_eq!(
        outsider
            .show("select accepted from once.inbox_accept('s', 'm')")
            .await,
        "t",
        "another scope is open to it"
    );
    assert_eq!(
        outsider.code("select * from once.inbox").await,
        "42501",
        "the table is closed"
    );
    for session in [play.another_as("inbox_member").await, play.another().await] {
        session.show("begin").await;
        for call in CALLS {
            session.show(&format!("select * from once.{call}")).await;
        }
        session.show("rollback").await;
    }
    play.show("create role inbox_stranger login").await;
    let stranger = play.another_as("inbox_stranger").await;
    assert_eq!(
        stranger.code("select once.inbox_accept('s', 'x')").await,
        "42501"
    );
}
