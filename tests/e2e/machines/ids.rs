//! The id argument: text in, the column's own type inside; what cannot be an id names the argument.

use crate::playground::Playground;
use crate::world::define;

/// A table `t` with an id of this type and a machine `t` over it.
async fn with_id(id: &str) -> Playground {
    let play = Playground::open().await;
    play.show(&format!(
        "create table t (id {id} primary key, status text not null default 'a', version bigint not null default 0)"
    ))
    .await;
    define(
        &play,
        r#"{"machine": "t", "table": "t", "id": "id", "status": "status", "version": "version",
            "status_types": ["a", "b", "w"], "transitions": [{"from": ["a"], "to": "b"}, {"from": ["b"], "to": "a"}],
            "steps": [{"step_key": "s", "status": "a", "claim_state": {"*": ["w", "a"]}, "successful_state": {"*": "b"}}]}"#,
    )
    .await;
    play
}

/// Calls with an id in each function that takes one.
fn calls(id: &str) -> Vec<String> {
    [
        "transition('t', $, 'b')",
        "transition_many('t', array[$], 'b')",
        "action_claim('t', $, 's')",
        "action_extend('t', $, 1)",
        "action_finish('t', $, 1)",
        "action_release('t', $, 1)",
    ]
    .iter()
    .map(|call| format!("select * from once.{}", call.replace('$', id)))
    .collect()
}

#[tokio::test]
async fn an_id_that_its_type_cannot_read_names_the_argument() {
    for (id, bad) in [
        (
            "int",
            vec!["abc", "", "1.5", "1 2", "2147483648", "1e3", "NaN"],
        ),
        ("bigint", vec!["abc", "9223372036854775808", "0x"]),
        (
            "uuid",
            vec!["abc", "", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1"],
        ),
    ] {
        let play = with_id(id).await;
        for bad in bad {
            for call in calls(&format!("'{bad}'")) {
                let refusal = play.refused(&call).await;
                assert_eq!(refusal.code, "22023", "{id}, {call}: {refusal:?}");
                assert!(refusal.message.contains("\"id"), "{call}: {refusal:?}");
            }
        }
    }
}

#[tokio::test]
async fn odd_texts_are_ids_like_any_other() {
    let play = with_id("text").await;
    for id in [
        " ",
        " 7",
        "07",
        "it's",
        "\"q\"",
        "back\\slash",
        "%s %n $1",
        "a\nb\tc",
        "ünï 🦀",
        "e\u{301}",
        "NULL",
        "{1,2}",
        "x; drop table t; --",
        &"long ".repeat(300),
    ] {
        let quoted = format!("'{}'", id.replace('\'', "''"));
        play.show(&format!("insert into t values ({quoted})")).await;
        let claim = format!("select outcome, token from once.action_claim('t', {quoted}, 's')");
        let shown = play.show(&claim).await;
        let (outcome, token) = shown.split_once('|').unwrap();
        assert_eq!(outcome, "claimed", "{id}");
        assert!(play.show(&claim).await.starts_with("in_progress"), "{id}");
        let finish = format!("select status from once.action_finish('t', {quoted}, {token})");
        assert_eq!(play.show(&finish).await, "b", "{id}");
        let many = format!("select id, moved from once.transition_many('t', array[{quoted}], 'a')");
        assert_eq!(play.show(&many).await, format!("{id}|t"));
    }
}

#[tokio::test]
async fn spellings_of_one_id_are_one_row_and_one_lease() {
    for (id, spellings) in [
        ("bigint", ["7", "07", " 7 ", "+7"]),
        ("int", ["7", "007", "7 ", "+7"]),
        (
            "uuid",
            [
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
                "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
                "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            ],
        ),
    ] {
        let play = with_id(id).await;
        play.show(&format!("insert into t values ('{}')", spellings[0]))
            .await;
        for (i, spelling) in spellings.iter().enumerate() {
            let other = spellings[(i + 1) % spellings.len()];
            let claim =
                format!("select outcome, token from once.action_claim('t', '{spelling}', 's')");
            let shown = play.show(&claim).await;
            let (outcome, token) = shown.split_once('|').unwrap();
            assert_eq!(outcome, "claimed", "{id} {spelling}");
            let busy = format!("select outcome from once.action_claim('t', '{other}', 's')");
            assert_eq!(play.show(&busy).await, "in_progress", "{id} {spelling}");
            let release =
                format!("select status from once.action_release('t', '{other}', {token})");
            assert_eq!(play.show(&release).await, "a", "{id} {spelling}");
        }
        let ids = spellings.map(|s| format!("'{s}'")).join(", ");
        let many = format!("select id, moved from once.transition_many('t', array[{ids}], 'b')");
        assert_eq!(play.show(&many).await, format!("{}|t", spellings[0]));
        play.ask("select count(*) from once.action_lease")
            .is("1")
            .await;
    }
}
