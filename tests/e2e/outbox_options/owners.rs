//! Topics with an owner: closed to all but its members and superusers, by whatever way they come.
//!
//! Roles belong to the whole cluster, so each test's roles have names of their own.

use crate::playground::Playground;
use crate::{stored, topic, topic_set};

const CALLS: [&str; 17] = [
    "topic_get('owned')",
    "topic_set('owned', '{}')",
    r#"topic_set('owned', '{"dedupe_for": "1 s"}')"#,
    r#"topic_set('owned', '{"owner": null}')"#,
    "subscriber_get('owned', 'default')",
    "subscriber_set('owned', 'default')",
    "subscriber_set('owned', 'new')",
    "topic_drop('owned')",
    "subscriber_drop('owned', 'default')",
    "outbox_emit('owned', '1')",
    "outbox_take('owned')",
    "outbox_ack('owned', 'default', 1)",
    "outbox_nack('owned', 'default', 1)",
    "outbox_extend('owned', 'default', 1)",
    "outbox_deliveries('owned', 'default', 1)",
    "outbox_dead('owned', 'default')",
    "outbox_redrive('owned', 'default')",
];

/// A topic with an owner, and roles: member, outsider (all may call every function).
async fn owned(play: &Playground, prefix: &str) {
    play.show(&format!(
        "create role {prefix}_owner; create role {prefix}_member login in role {prefix}_owner;
         create role {prefix}_outsider login; create role {prefix}_all;
         grant {prefix}_all to {prefix}_owner, {prefix}_outsider;
         select once.grant_role('{prefix}_all', 'operate')"
    ))
    .await;
    topic(play, "owned", &format!(r#"{{"owner": "{prefix}_owner"}}"#)).await;
}

async fn refused_everywhere(play: &Playground, session: &Playground) {
    let before = stored(play).await;
    for call in CALLS {
        let refusal = session.refused(&format!("select * from once.{call}")).await;
        refusal.tells("42501", &["topic \"owned\""], call);
    }
    assert_eq!(stored(play).await, before);
}

async fn allowed_everywhere(session: &Playground) {
    for call in CALLS {
        session.show("begin").await;
        let answer = session.attempt(&format!("select * from once.{call}")).await;
        session.show("rollback").await;
        if let Err(refusal) = answer {
            let expected = ["ON001", "55006"].contains(&refusal.code.as_str());
            assert!(expected, "{call}: {refusal:?}");
        }
    }
}

#[tokio::test]
async fn setting_and_changing_an_owner_need_membership_in_both() {
    let play = Playground::open().await;
    play.show(
        "create role tch_a; create role tch_b; create role tch_all; grant tch_all to tch_a, tch_b;
         create role tch_only_a login in role tch_a; create role tch_only_b login in role tch_b;
         create role tch_both login in role tch_a, tch_b; create role tch_none login in role tch_all;
         select once.grant_role('tch_all', 'operate'); select once.topic_set('t', '{}')",
    )
    .await;
    let owner = |name: &str| match name {
        "null" => topic_set("t", r#"{"owner": null}"#),
        name => topic_set("t", &format!(r#"{{"owner": "{name}"}}"#)),
    };
    let (only_a, only_b) = (
        play.another_as("tch_only_a").await,
        play.another_as("tch_only_b").await,
    );
    let (both, none) = (
        play.another_as("tch_both").await,
        play.another_as("tch_none").await,
    );
    let new = r#"select once.topic_set('new', '{"owner": "tch_a"}')"#;
    assert_eq!(none.code(new).await, "42501", "a new one, too");
    assert_eq!(none.code(&owner("tch_a")).await, "42501");
    assert_eq!(only_b.code(&owner("tch_a")).await, "42501");
    only_a.show(&owner("tch_a")).await;
    assert_eq!(
        only_a.code(&owner("tch_b")).await,
        "42501",
        "not in the new"
    );
    assert_eq!(
        only_b.code(&owner("tch_b")).await,
        "42501",
        "not in the present"
    );
    assert_eq!(none.code(&owner("null")).await, "42501");
    both.show(&owner("tch_b")).await;
    assert_eq!(only_a.code(&owner("tch_a")).await, "42501");
    only_b.show(&owner("null")).await;
    let shown = none.show("select once.topic_get('t') ->> 'owner'").await;
    assert_eq!(shown, "~");
    assert_eq!(none.code("select once.topic_get('new')").await, "42704");
}

#[tokio::test]
async fn an_owner_that_is_gone_closes_the_topic_to_all_but_superusers_who_may_set_another() {
    let play = Playground::open().await;
    owned(&play, "tgone").await;
    play.show(
        "revoke tgone_all from tgone_owner; drop role tgone_owner; grant tgone_all to tgone_member",
    )
    .await;
    let member = play.another_as("tgone_member").await;
    refused_everywhere(&play, &member).await;
    allowed_everywhere(&play).await;
    let shown = play
        .show("select once.topic_get('owned') ->> 'owner'")
        .await;
    assert_eq!(shown, "tgone_owner", "the name it had");
    play.show("create role tgone_new; grant tgone_new to tgone_member")
        .await;
    topic(&play, "owned", r#"{"owner": "tgone_new"}"#).await;
    allowed_everywhere(&member).await;
}
