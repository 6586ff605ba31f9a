//! The shape of an event: `topic` and `payload`, perhaps `order_key`, each once, and nothing else.

use crate::open;
use pg_once_tests::script::rows;

/// Events, and what each is refused for: an argument, a member, or (`-`) not being JSON at all.
const BAD: &str = r#"
null | object
1 | object
true | object
[] | object
"t" | object
[{"topic": "t", "payload": 1}] | object
{} | topic
{"topic": "t"} | payload
{"payload": 1} | topic
{"payload": 1, "order_key": "k"} | topic
{"topic": null, "payload": 1} | topic
{"topic": 1, "payload": 1} | topic
{"topic": ["t"], "payload": 1} | topic
{"topic": {"t": 1}, "payload": 1} | topic
{"topic": "", "payload": 1} | topic
{"topic": "\u0000", "payload": 1} | topic
{"topic": "t\u0000", "payload": 1} | topic
{"topic": "\ud83d", "payload": 1} | topic
{"topic": "\ude00\ud83d", "payload": 1} | topic
{"topic": "t", "payload": 1, "order_key": ""} | order_key
{"topic": "t", "payload": 1, "order_key": 1} | order_key
{"topic": "t", "payload": 1, "order_key": ["k"]} | order_key
{"topic": "t", "payload": 1, "order_key": "\u0000"} | order_key
{"topic": "t", "payload": 1, "orderKey": "k"} | orderKey
{"topic": "t", "payload": 1, "headers": {}} | headers
{"topic": "t", "payload": 1, "": 1} | unknown
{"topic": "t", "payload": 1, "Topic": "t"} | Topic
{"topic": "t", "payload": 1, " topic": "t"} | unknown
{"topic": "t", "payload": 1, "\u0000": 1} | unknown
{"topic": "t", "topic": "t", "payload": 1} | topic
{"topic": "t", "\u0074opic": "t", "payload": 1} | topic
{"topic": "t", "payload": 1, "payload": 1} | payload
{"topic": "t", "payload": null, "payload": 1} | payload
{"topic": "t", "payload": 1, "order_key": null, "order_key": "k"} | order_key
{"topic": "t", "payload": 1, "order_key": null, "order_key": null} | order_key"#;

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
    let more = [[" ", "-"], [&long_topic, "topic"], [&long_key, "order_key"]];
    for [event, named] in rows(BAD).into_iter().chain(more) {
        for [call, argument] in rows(
            "key_step('s', 'k', T, 'pay', on_abort => 'E') | on_abort
             key_step_done('s', 'k', T, 'pay', on_complete => 'E') | on_complete
             key_step_done('s', 'k', T, 'pay', on_abort => 'E') | on_abort",
        ) {
            let call = call.replace('T', &token.to_string()).replace('E', event);
            let refusal = play.refused(&format!("select once.{call}")).await;
            if named == "-" {
                assert_eq!(refusal.code, "22P02", "no JSON at all: {refusal:?}");
                continue;
            }
            refusal.tells("22023", &[&format!("\"{argument}\""), named], &call);
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
    let table = r##"
        {"topic":"t","payload":1} | t | ~ | 1
        {"payload":1,"topic":"t"} | t | ~ | 1
        SPACE{ "order_key" : null , "payload" : {} , "topic" : "t" }SPACE | t | ~ | {}
        {"\u0074opic": "\u0074", "p\u0061yload": [ ]} | t | ~ | [ ]
        {"topic": "t", "payload": 1, "order_key": "a\"b\\\u00fc\ud83d\ude00\n"} | t | a"b\ü😀NEWLINE | 1
        {"topic": "t", "payload": "}", "order_key": "{\",]"} | t | {",] | "}"
        {"topic": "t", "payload": {"topic": "u", "payload": [{"order_key": "}"}]}} | t | ~ | {"topic": "u", "payload": [{"order_key": "}"}]}
        {"topic": "NAME", "payload": false} | NAME | ~ | false
        {"topic": "t", "payload": null, "order_key": "LONG"} | t | LONG | null"##
        .replace("NAME", &name)
        .replace("LONG", &"ü".repeat(255));
    for (i, [event, topic, key, payload]) in rows(&table).into_iter().enumerate() {
        let (event, key) = (event.replace("SPACE", " "), key.replace("NEWLINE", "\n"));
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
