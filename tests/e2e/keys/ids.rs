//! A key's row is found by a hash. The time of a UUIDv7 or ULID comes first, so that new rows stand together.

use crate::playground::Playground;

/// Keys, and how the ids of their rows begin (nothing: with the hash).
const KEYS: [(&str, &str); 10] = [
    ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", "017f22e2"),
    ("ada/017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "017f22e2"),
    ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3a"),
    ("ada/7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "ffffffff"),
    ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", ""),
    ("01arz3ndektsv4rrffq69g5fav", ""),
    ("017f22e2-79b0-4cc3-98c4-dc0c0c07398f", ""),
    ("017f22e2-79b0-7cc3-98c4-dc0c0c07398g", ""),
    ("017f22e279b07cc398c4dc0c0c07398f", ""),
    ("order 4711", ""),
];

#[tokio::test]
async fn the_time_at_the_end_of_a_key_begins_its_id_and_a_hash_is_the_rest() {
    let play = Playground::open().await;
    for (key, time) in KEYS {
        let token = play.token(key, "").await;
        play.show(&format!(
            "select once.key_complete('s', '{key}', {token}, 201)"
        ))
        .await;
        assert_eq!(play.claim(key, "").await, "replayed", "{key}");
        let id = format!("select replace(id::text, '-', '') from once.key where key = '{key}'");
        let hash = format!(
            "select encode(substr(sha256('s'::bytea || '\\x00' || '{key}'), 1, 16), 'hex')"
        );
        let (id, hash) = (play.show(&id).await, play.show(&hash).await);
        assert_eq!(id, format!("{time}{}", &hash[time.len()..]), "{key}");
    }
}
