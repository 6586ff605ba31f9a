//! Subscribers of one topic know nothing of each other.

use std::collections::BTreeMap;

use crate::drain;
use crate::playground::Playground;

/// payload to delivery_key, of what is due; acked where told.
async fn keys(play: &Playground, subscriber: &str, ack: bool) -> BTreeMap<String, String> {
    let sql = format!(
        "select payload, delivery_key, token from once.outbox_take('t', '{subscriber}', 100)"
    );
    let rows = play.show(&sql).await;
    let (mut keys, mut token) = (BTreeMap::new(), "");
    for row in rows.lines() {
        let cells: Vec<&str> = row.split('|').collect();
        keys.insert(cells[0].to_owned(), cells[1].to_owned());
        token = cells[2];
    }
    if ack && !token.is_empty() {
        let ack = format!("select once.outbox_ack('t', '{subscriber}', {token})");
        play.show(&ack).await;
    }
    keys
}

#[tokio::test]
async fn each_has_its_own_cursor_and_its_own_delivery_keys() {
    for key in ["", ", 'k'"] {
        let play = Playground::open().await;
        play.show("select once.topic_set('t', '{\"subscribers\": [\"one\", \"two\"]}')")
            .await;
        for n in 0..5 {
            play.show(&format!("select once.outbox_emit('t', '{n}'{key})"))
                .await;
        }
        let one = keys(&play, "one", false).await;
        assert_eq!(keys(&play, "one", false).await.len(), 0);
        let two = keys(&play, "two", true).await;
        assert_eq!(one.len(), 5);
        assert!(one.keys().eq(two.keys()));
        let mut all: Vec<_> = one.values().chain(two.values()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10, "{all:?}");
        // One is behind, two goes on.
        play.show(&format!("select once.outbox_emit('t', '5'{key})"))
            .await;
        assert_eq!(drain(&play, "two").await, "5");
        assert_eq!(drain(&play, "two").await, "");
        if key.is_empty() {
            assert_eq!(drain(&play, "one").await, "5");
        } else {
            assert_eq!(drain(&play, "one").await, "", "its key is out");
        }
        // Its lease ran out: the same keys.
        play.show("select set_config('once.fake_now', (clock_timestamp() + interval '2 min')::text, false)")
            .await;
        let mut again = BTreeMap::new();
        loop {
            let more = keys(&play, "one", true).await;
            if more.is_empty() {
                break;
            }
            again.extend(more);
        }
        again.remove("5");
        assert_eq!(again, one);
        assert_eq!(drain(&play, "two").await, "");
    }
}

#[tokio::test]
async fn a_token_is_its_subscribers_only() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{\"subscribers\": [\"one\", \"two\"]}'), once.topic_set('u', '{\"subscribers\": [\"one\"]}')")
        .await;
    play.show("select once.outbox_emit('t', '1'), once.outbox_emit('u', '1')")
        .await;
    let token = play
        .show("select token from once.outbox_take('t', 'one')")
        .await;
    for place in ["'t', 'two'", "'u', 'one'"] {
        for call in ["ack", "nack", "extend"] {
            let sql = format!("select * from once.outbox_{call}({place}, {token})");
            assert_eq!(play.code(&sql).await, "ON001", "{sql}");
        }
    }
    assert_eq!(drain(&play, "two").await, "1");
}
