//! The shape of an event: `topic` and `payload`, perhaps `order_key`, each once, and nothing else.

use crate::open;

const BAD: &[(&str, &str)] = &[
    ("null", "object"),
    ("1", "object"),
    ("true", "object"),
    ("[]", "object"),
    (r#""t""#, "object"),
    (r#"[{"topic": "t", "payload": 1}]"#, "object"),
    (" ", "-"),
    ("{}", "topic"),
    (r#"{"topic": "t"}"#, "payload"),
    (r#"{"payload": 1}"#, "topic"),
    (r#"{"payload": 1, "order_key": "k"}"#, "topic"),
    (r#"{"topic": null, "payload": 1}"#, "topic"),
    (r#"{"topic": 1, "payload": 1}"#, "topic"),
    (r#"{"topic": ["t"], "payload": 1}"#, "topic"),
    (r#"{"topic": {"t": 1}, "payload": 1}"#, "topic"),
    (r#"{"topic": "", "payload": 1}"#, "topic"),
    (r#"{"topic": "\u0000", "payload": 1}"#, "topic"),
    (r#"{"topic": "t\u0000", "payload": 1}"#, "topic"),
    (r#"{"topic": "\ud83d", "payload": 1}"#, "topic"),
    (r#"{"topic": "\ude00\ud83d", "payload": 1}"#, "topic"),
    (
        r#"{"topic": "t", "payload": 1, "order_key": ""}"#,
        "order_key",
    ),
    (
        r#"{"topic": "t", "payload": 1, "order_key": 1}"#,
        "order_key",
    ),
    (
        r#"{"topic": "t", "payload": 1, "order_key": ["k"]}"#,
        "order_key",
    ),
    (
        r#"{"topic": "t", "payload": 1, "order_key": "\u0000"}"#,
        "order_key",
    ),
    (
        r#"{"topic": "t", "payload": 1, "orderKey": "k"}"#,
        "orderKey",
    ),
    (r#"{"topic": "t", "payload": 1, "headers": {}}"#, "headers"),
    (r#"{"topic": "t", "payload": 1, "": 1}"#, "unknown"),
    (r#"{"topic": "t", "payload": 1, "Topic": "t"}"#, "Topic"),
    (r#"{"topic": "t", "payload": 1, " topic": "t"}"#, "unknown"),
    (r#"{"topic": "t", "payload": 1, "\u0000": 1}"#, "unknown"),
    (r#"{"topic": "t", "topic": "t", "payload": 1}"#, "topic"),
    (
        r#"{"topic": "t", "\u0074opic": "t", "payload": 1}"#,
        "topic",
    ),
    (r#"{"topic": "t", "payload": 1, "payload": 1}"#, "payload"),
    (
        r#"{"topic": "t", "payload": null, "payload": 1}"#,
        "payload",
    ),
    (
        r#"{"topic": "t", "payload": 1, "order_key": null, "order_key": "k"}"#,
        "order_key",
    ),
    (
        r#"{"topic": "t", "payload": 1, "order_key": null, "order_key": null}"#,
        "order_key",
    ),
];

#[tokio::test]
async fn every_other_shape_is_refused_by_the_arguments_name_and_writes_nothing() {
    let play = open().await;
    let token = play.token("k", "").await;
    let stored = play.stored().await;
    let long_topic = format!(r#"{{"topic": "{}", "payload": 1}}"#, "x".repeat(101));
    let long_key = format!(
        r#"{{"topic": "t", "payload": 1, "order_key": "{}"}}"#,
        "ü".repeat(256)
    );
    let more = [
        (long_topic.as_str(), "topic"),
        (long_key.as_str(), "order_key"),
    ];
    for (event, named) in BAD.iter().chain(&more) {
        for (argument, call) in [
            ("on_abort", "key_step('s', 'k', T, 'pay', on_abort => 'E')"),
            (
                "on_complete",
                "key_step_done('s', 'k', T, 'pay', on_complete => 'E')",
            ),
            (
                "on_abort",
                "key_step_done('s', 'k', T, 'pay', on_abort => 'E')",
            ),
        ] {
            let call = call.replace('T', &token.to_string()).replace('E', event);
            let refusal = play.refused(&format!("select once.{call}")).await;
            if *named == "-" {
                assert_eq!(refusal.code, "22P02", "no JSON at all: {refusal:?}");
                continue;
            }
            assert_eq!(refusal.code, "22023", "{call}: {refusal:?}");
            assert!(
                refusal.message.contains(&format!("\"{argument}\""))
                    && refusal.message.contains(named)
                    && !refusal.hint.is_empty(),
                "{call}: {refusal:?}"
            );
        }
    }
    assert_eq!(play.stored().await, stored);
}

#[tokio::test]
async fn a_bad_shape_is_refused_where_nothing_would_be_stored_either() {
    let play = open().await;
    let token = play.token("k", "").await;
    play.show(&crate::done(token, "pay", "", "")).await;
    for call in [
        "key_step('s', 'k', T, 'pay', '{}')",
        "key_step_done('s', 'k', T, 'pay', '1', '{}')",
        "key_step('s', 'missing', T, 'pay', '{}')",
    ] {
        let call = call.replace('T', &token.to_string());
        assert_eq!(
            play.code(&format!("select once.{call}")).await,
            "22023",
            "{call}"
        );
    }
}

#[tokio::test]
async fn good_shapes_in_every_order_and_spelling_are_taken() {
    let play = open().await;
    let name = "ü".repeat(100);
    play.show(&format!("select once.topic_set('{name}', '{{}}')"))
        .await;
    for (i, (event, topic, key, payload)) in [
        (r#"{"topic":"t","payload":1}"#, "t", "~", "1"),
        (r#"{"payload":1,"topic":"t"}"#, "t", "~", "1"),
        (
            r#" { "order_key" : null , "payload" : {} , "topic" : "t" } "#,
            "t",
            "~",
            "{}",
        ),
        (
            r#"{"\u0074opic": "\u0074", "p\u0061yload": [ ]}"#,
            "t",
            "~",
            "[ ]",
        ),
        (
            r#"{"topic": "t", "payload": 1, "order_key": "a\"b\\\u00fc\ud83d\ude00\n"}"#,
            "t",
            "a\"b\\ü😀\n",
            "1",
        ),
        (
            r#"{"topic": "t", "payload": "}", "order_key": "{\",]"}"#,
            "t",
            "{\",]",
            "\"}\"",
        ),
        (
            r#"{"topic": "t", "payload": {"topic": "u", "payload": [{"order_key": "}"}]}}"#,
            "t",
            "~",
            r#"{"topic": "u", "payload": [{"order_key": "}"}]}"#,
        ),
        (
            &format!(r#"{{"topic": "{name}", "payload": false}}"#),
            name.as_str(),
            "~",
            "false",
        ),
        (
            &format!(
                r#"{{"topic": "t", "payload": null, "order_key": "{}"}}"#,
                "ü".repeat(255)
            ),
            "t",
            &"ü".repeat(255),
            "null",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let key = key.to_owned();
        let k = format!("k{i}");
        let token = play.token(&k, "").await;
        play.show(&format!(
            "select once.key_step('s', '{k}', {token}, 'pay', '{event}')"
        ))
        .await;
        play.show(&format!("select once.key_abort('s', '{k}', {token}, 500)"))
            .await;
        let last =
            "select topic, order_key, payload from once.event_0 join once.topic using (topic_id)
                     order by event_id desc limit 1";
        assert_eq!(
            play.show(last).await,
            format!("{topic}|{key}|{payload}"),
            "{event}"
        );
    }
}

#[tokio::test]
async fn in_a_database_of_another_encoding_names_are_read_in_it() {
    let cluster = crate::playground::cluster();
    let admin = cluster.connect("postgres").await.unwrap();
    admin
        .batch_execute("create database step_latin template template0 encoding 'LATIN1' locale 'C'")
        .await
        .unwrap();
    let play = crate::playground::Playground::on(cluster, "step_latin").await;
    play.show("create extension pg_once").await;
    play.show("select once.topic_set('grün', '{}')").await;
    let token = play.token("k", "").await;
    for (topic, code) in [
        ("gr\\u00fcn", ""),
        ("grün", ""),
        ("gr\\ud83d\\ude00n", "22023"),
    ] {
        let sql = format!(
            r#"select once.key_step('s', 'k', {token}, '{}', '{{"topic": "{topic}", "payload": "é", "order_key": "\u00e9"}}')"#,
            topic.len()
        );
        let answer = play.attempt(&sql).await;
        let got = answer.as_ref().err().map_or("", |r| r.code.as_str());
        assert_eq!(got, code, "{topic}: {answer:?}");
    }
    play.show(&crate::abort(token)).await;
    let emitted = "select distinct payload::text, order_key from once.event_0";
    assert_eq!(play.show(emitted).await, "\"é\"|é");
}
