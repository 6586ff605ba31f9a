//! One session over the life of the extension: kept oids and plans follow it.

use crate::playground::Playground;

const CALLS: [&str; 8] = [
    "select outcome from once.key_claim('s', 'k', '1', holder => 'h')",
    "select outcome from once.key_claim('s', 'l', lease => '1 microsecond')",
    "select status from once.key_get('s', 'k')",
    "select task from once.sweep(task => 'key_abandon')",
    "select key from once.key_take_abandoned('s')",
    "select once.scope_set('s', '{\"ttl\": \"1 h\"}') ->> 'ttl'",
    "select once.scope_get('s') ->> 'ttl'",
    "select sum(done) from once.sweep()",
];

const ANSWERS: [&str; 8] = [
    "claimed",
    "claimed",
    "running",
    "key_abandon",
    "l",
    "01:00:00",
    "01:00:00",
    "0",
];

async fn all(play: &Playground, how: &str) {
    for (i, (call, answer)) in CALLS.iter().zip(ANSWERS).enumerate() {
        let sql = match how {
            "execute" => format!("execute p{i}"),
            _ => (*call).to_owned(),
        };
        assert_eq!(play.show(&sql).await, answer, "{call} ({how})");
    }
}

#[tokio::test]
async fn prepared_statements_outlive_drop_and_create_extension() {
    let play = Playground::directly("prepared statements are a session's").await;
    for (i, call) in CALLS.iter().enumerate() {
        play.show(&format!("prepare p{i} as {call}")).await;
    }
    all(&play, "execute").await;
    for _ in 0..3 {
        play.show("drop extension pg_once; create extension pg_once")
            .await;
        all(&play, "execute").await;
        play.show("drop extension pg_once; create extension pg_once")
            .await;
        all(&play, "plain").await;
    }
}

#[tokio::test]
async fn a_table_rewritten_by_a_person_stays_usable() {
    let play = Playground::open().await;
    let other = play.another().await;
    let token = play.token("k", "").await;
    for sql in [
        "vacuum full once.key",
        "reindex table once.key",
        "cluster once.key using key_pkey",
        "create index on once.key (created_at)",
    ] {
        other.show(sql).await;
    }
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    assert_eq!(play.claim("k", "").await, "replayed");
    assert_eq!(play.claim("new", "").await, "claimed");
    let found =
        "set enable_seqscan = off; select count(*) from once.key where created_at > '2000-01-01'";
    assert_eq!(other.show(found).await, "2");
    play.show("truncate once.key").await;
    assert_eq!(play.claim("k", "").await, "claimed");
}
