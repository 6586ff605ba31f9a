//! Each option, each bad value, what null does, and which names there can be.

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};
use crate::{assert_counted, stored, subscriber_set, topic, topic_set};

const TOPIC: &str =
    r#"{"lanes": 16, "owner": null, "dedupe_for": "24:00:00", "subscribers": ["default"]}"#;
const SUBSCRIBER: &str = r#"{"lease": "00:01:00", "paused": false, "dead_for": null, "backoff_cap": "01:00:00", "backoff_base": "00:00:01", "max_attempts": 10, "max_lease_life": "24:00:00"}"#;

async fn shown(play: &Playground) -> String {
    play.show("select once.topic_get('t')").await
}

async fn subscriber_shown(play: &Playground, subscriber: &str) -> String {
    play.show(&format!("select once.subscriber_get('t', '{subscriber}')"))
        .await
}

#[tokio::test]
async fn a_topic_without_options_has_the_defaults_and_one_subscriber() {
    let play = Playground::open().await;
    assert_eq!(play.show("select once.topic_set('t')").await, TOPIC);
    assert_eq!(shown(&play).await, TOPIC);
    assert_eq!(subscriber_shown(&play, "default").await, SUBSCRIBER);
    let second = play.show("select once.subscriber_set('t', 'second')").await;
    assert_eq!(second, SUBSCRIBER);
    assert_eq!(subscriber_shown(&play, "second").await, SUBSCRIBER);
    assert_eq!(
        shown(&play).await,
        TOPIC.replace(r#"["default"]"#, r#"["default", "second"]"#)
    );
    assert_counted(&play).await;
}

#[tokio::test]
async fn setting_changes_only_what_is_named_and_null_resets_one() {
    let play = Playground::open().await;
    play.show("create role values_owner").await;
    let all =
        r#"{"lanes": 3, "dedupe_for": "1 h", "owner": "values_owner", "subscribers": ["b", "a"]}"#;
    topic(&play, "t", all).await;
    let expected = r#"{"lanes": 3, "owner": "values_owner", "dedupe_for": "01:00:00", "subscribers": ["a", "b"]}"#;
    assert_eq!(shown(&play).await, expected);
    topic(&play, "t", "{}").await;
    assert_eq!(shown(&play).await, expected, "nothing is named");
    let answer = play
        .show(&topic_set("t", r#"{"dedupe_for": "2 days"}"#))
        .await;
    let changed = expected.replace("01:00:00", "48:00:00");
    assert_eq!(answer, changed, "all options in force");
    assert_eq!(shown(&play).await, changed);
    topic(
        &play,
        "t",
        r#"{"lanes": null, "dedupe_for": null, "owner": null}"#,
    )
    .await;
    assert_eq!(
        shown(&play).await,
        TOPIC.replace(r#"["default"]"#, r#"["a", "b"]"#)
    );

    let all = r#"{"max_attempts": 2, "backoff_base": "10 ms", "backoff_cap": "1 min", "lease": "5 s", "max_lease_life": "1 h", "dead_for": "2 days", "paused": true}"#;
    play.show(&subscriber_set("a", all)).await;
    let expected = r#"{"lease": "00:00:05", "paused": true, "dead_for": "48:00:00", "backoff_cap": "00:01:00", "backoff_base": "00:00:00.01", "max_attempts": 2, "max_lease_life": "01:00:00"}"#;
    assert_eq!(subscriber_shown(&play, "a").await, expected);
    play.show(&subscriber_set("a", "{}")).await;
    assert_eq!(subscriber_shown(&play, "a").await, expected);
    let changed = expected.replace(": 2,", ": 2147483647,");
    let answer = play
        .show(&subscriber_set("a", r#"{"max_attempts": 2147483647}"#))
        .await;
    assert_eq!(answer, changed, "all options in force");
    assert_eq!(subscriber_shown(&play, "a").await, changed);
    let nulls = r#"{"max_attempts": null, "backoff_base": null, "backoff_cap": null, "lease": null, "max_lease_life": null, "dead_for": null, "paused": null}"#;
    play.show(&subscriber_set("a", nulls)).await;
    assert_eq!(subscriber_shown(&play, "a").await, SUBSCRIBER);
    assert_eq!(
        subscriber_shown(&play, "b").await,
        SUBSCRIBER,
        "another one of the topic"
    );
}

#[tokio::test]
async fn subscribers_are_named_when_the_topic_is_made_and_never_after() {
    let play = Playground::open().await;
    topic(&play, "t", r#"{"subscribers": ["mail", "post", "büro ✓"]}"#).await;
    let before = stored(&play).await;
    assert_counted(&play).await;
    for same in [
        r#"{"subscribers": ["mail", "post", "büro ✓"]}"#,
        r#"{"subscribers": ["büro ✓", "post", "mail"]}"#,
    ] {
        topic(&play, "t", same).await;
    }
    assert_eq!(stored(&play).await, before, "a lost answer, repeated");
    for other in [
        r#"{"subscribers": ["mail"]}"#,
        r#"{"subscribers": ["mail", "post", "buro"]}"#,
        r#"{"subscribers": []}"#,
        r#"{"subscribers": null}"#,
        r#"{"subscribers": ["default"], "lanes": 3}"#,
    ] {
        let refusal = play.refused(&topic_set("t", other)).await;
        assert_eq!(refusal.code, "22023", "{other}: {refusal:?}");
        assert!(
            refusal.message.contains("subscribers") && refusal.hint.contains("subscriber_set"),
            "{refusal:?}"
        );
    }
    assert_eq!(stored(&play).await, before);

    topic(&play, "none", r#"{"subscribers": []}"#).await;
    let refusal = play.refused("select once.outbox_emit('none', '1')").await;
    assert_eq!(refusal.code, "22023", "nobody would get it: {refusal:?}");
    play.show("select once.subscriber_set('none', 'late')")
        .await;
    play.show("select once.outbox_emit('none', '1')").await;
    topic(&play, "reset", r#"{"subscribers": null}"#).await;
    play.ask("select once.topic_get('reset') ->> 'subscribers'")
        .is(r#"["default"]"#)
        .await;
    assert_counted(&play).await;
}

#[tokio::test]
async fn every_bad_option_is_refused_by_name_and_changes_nothing() {
    let play = Playground::open().await;
    topic(&play, "t", r#"{"lanes": 2}"#).await;
    let before = stored(&play).await;
    let durations = [
        r#""0""#,
        r#""-1 s""#,
        r#""soon""#,
        r#""""#,
        "30",
        "0",
        "true",
        r#"["1 s"]"#,
        r#"{"seconds": 1}"#,
        r#""1100 years""#,
        r#""infinity""#,
    ];
    let counts = [
        "0",
        "-1",
        "1.5",
        "2147483648",
        "1e131071",
        r#""3""#,
        "true",
        "[3]",
    ];
    let mut topics: Vec<(String, &str)> = Vec::new();
    let mut subscribers: Vec<(String, &str)> = Vec::new();
    for bad in durations {
        topics.push((format!(r#"{{"dedupe_for": {bad}}}"#), "dedupe_for"));
        for option in [
            "backoff_base",
            "backoff_cap",
            "lease",
            "max_lease_life",
            "dead_for",
        ] {
            subscribers.push((format!(r#"{{"{option}": {bad}}}"#), option));
        }
    }
    for bad in counts {
        topics.push((format!(r#"{{"lanes": {bad}}}"#), "lanes"));
        subscribers.push((format!(r#"{{"max_attempts": {bad}}}"#), "max_attempts"));
    }
    for (options, named) in [
        (r#"{"lanes": 1001}"#, "lanes"),
        (r#"{"Lanes": 3}"#, "Lanes"),
        (r#"{"lanes": 3, "lease": "1 s"}"#, "lease"),
        (r#"{"lanes": 3, "lanes": 3}"#, "\"lanes\" twice"),
        (r#"{"owner": "nobody of that name"}"#, "owner"),
        (r#"{"owner": ""}"#, "owner"),
        (r#"{"owner": 10}"#, "owner"),
        (r#"{"subscribers": "default"}"#, "subscribers"),
        (r#"{"subscribers": ["a", ""]}"#, "subscribers"),
        (r#"{"subscribers": ["a", 1]}"#, "subscribers"),
        (r#"{"subscribers": ["a", null]}"#, "subscribers"),
        (r#"{"subscribers": ["a", "a"]}"#, "subscribers"),
    ] {
        topics.push((options.to_owned(), named));
    }
    let long = format!(r#"{{"subscribers": ["{}"]}}"#, "ü".repeat(101));
    topics.push((long, "subscribers"));
    subscribers.push((r#"{"owner": null}"#.to_owned(), "owner"));
    for whole in ["[]", r#"["lease"]"#, r#""lease""#, "5", "true", "null"] {
        topics.push((whole.to_owned(), "options"));
        subscribers.push((whole.to_owned(), "options"));
    }
    let calls = topics
        .iter()
        .flat_map(|(o, named)| [(topic_set("t", o), *named), (topic_set("new", o), *named)])
        .chain(
            subscribers
                .iter()
                .flat_map(|(o, named)| ["default", "new"].map(|s| (subscriber_set(s, o), *named))),
        );
    for (sql, named) in calls {
        let refusal = play.refused(&sql).await;
        refusal.tells("22023", &["\"options\"", named], &sql);
    }
    for sql in [
        "select once.topic_set('t', null)",
        "select once.subscriber_set('t', 'default', null)",
    ] {
        assert_eq!(play.code(sql).await, "22023", "{sql}");
    }
    assert_eq!(stored(&play).await, before);
}

#[tokio::test]
async fn names_are_of_1_to_100_characters_whatever_these_are() {
    let play = Playground::open().await;
    for name in [
        "😀".repeat(100),
        "a''b".to_owned(),
        " ".to_owned(),
        "a\nb".to_owned(),
    ] {
        topic(&play, &name, "{}").await;
        play.show(&format!("select once.subscriber_set('{name}', '{name}')"))
            .await;
        let both = play
            .show(&format!(
                "select once.topic_get('{name}')::jsonb -> 'subscribers' ? '{name}'"
            ))
            .await;
        assert_eq!(both, "t", "{name}");
        play.show(&format!("select once.subscriber_get('{name}', '{name}')"))
            .await;
        play.show(&format!("select once.subscriber_drop('{name}', '{name}')"))
            .await;
    }
    topic(&play, "t", "{}").await;
    let before = stored(&play).await;
    let long = format!("'{}'", "x".repeat(101));
    for bad in ["''", "null", &long] {
        for (call, argument) in [
            (format!("topic_set({bad}, '{{}}')"), "topic"),
            (format!("topic_get({bad})"), "topic"),
            (format!("topic_drop({bad})"), "topic"),
            (format!("subscriber_set({bad}, 'default')"), "topic"),
            (format!("subscriber_set('t', {bad})"), "subscriber"),
            (format!("subscriber_get({bad}, 'default')"), "topic"),
            (format!("subscriber_get('t', {bad})"), "subscriber"),
            (format!("subscriber_drop({bad}, 'default')"), "topic"),
            (format!("subscriber_drop('t', {bad})"), "subscriber"),
        ] {
            let refusal = play.refused(&format!("select once.{call}")).await;
            let named = format!("\"{argument}\"");
            refusal.tells("22023", &[&named], &format!("{call:.60}"));
        }
    }
    for (call, named) in [
        ("topic_get('none')", "none"),
        ("topic_drop('none')", "none"),
        ("subscriber_set('none', 'default')", "none"),
        ("subscriber_get('none', 'default')", "none"),
        ("subscriber_drop('none', 'default')", "none"),
        ("subscriber_get('t', 'no one')", "no one"),
        ("subscriber_drop('t', 'no one')", "no one"),
        ("subscriber_drop('t', 'Default')", "Default"),
    ] {
        let refusal = play.refused(&format!("select once.{call}")).await;
        refusal.tells("42704", &[named], call);
    }
    assert_eq!(stored(&play).await, before);
}

#[tokio::test]
async fn topics_and_subscribers_are_made_where_a_logical_copy_left_the_sequence_behind() {
    let play = Playground::open().await;
    for name in ["a", "b", "c"] {
        topic(&play, name, "{}").await;
    }
    let sessions = sessions(&play, 4).await;
    for (round, last) in [1, 3, 5, 6].into_iter().enumerate() {
        play.show(&format!("select setval('once.outbox_id', {last})"))
            .await;
        for answer in at_once(&sessions, |i| topic_set(&format!("t{round} {i}"), "{}")).await {
            answer.unwrap();
        }
        play.show(&format!(
            "select setval('once.outbox_id', {last}); select once.subscriber_set('a', 's{round}')"
        ))
        .await;
    }
    assert_counted(&play).await;
}
