//! A dump restored into another cluster, whose transaction ids are far below or far above: nothing is lost,
//! order is kept, and whoever holds a batch still holds it.

use std::os::unix::fs::PermissionsExt;

use pg_once_tests::{Cluster, StopMode};

use crate::playground::Playground;
use crate::{ahead, session};

/// Past ten million, and the first id of its page: the server begins the page of states anew there.
const FAR: &str = "10027008";

/// Moves a cluster's transaction ids far ahead.
fn far_ahead(cluster: &mut Cluster) {
    cluster.stop(StopMode::Fast).unwrap();
    let data = cluster.data_directory();
    cluster
        .run("pg_resetwal", &["-x", FAR, "-D", data.to_str().unwrap()])
        .unwrap();
    cluster.start().unwrap();
}

async fn emit(play: &Playground, names: &str, more: &str) {
    for name in names.split(' ') {
        play.show(&format!("select once.outbox_emit('t', '\"{name}\"'{more})"))
            .await;
    }
}

/// `token|name:attempt name:attempt ...` of one take; empty: nothing is due.
async fn take(play: &Playground, subscriber: &str, max: u32) -> String {
    play.show(&format!(
        "select token, string_agg((payload #>> '{{}}') || ':' || attempt, ' ' order by n)
           from once.outbox_take('t', '{subscriber}', {max}, '1 h')
                with ordinality t (token, id, attempt, delivery_key, order_key, payload, headers, at, n)
          group by token"
    ))
    .await
}

/// Takes exactly these.
async fn expect(play: &Playground, subscriber: &str, max: u32, shown: &str) -> String {
    let taken = take(play, subscriber, max).await;
    let (token, names) = taken.split_once('|').unwrap_or(("", ""));
    assert_eq!(names, shown);
    token.to_owned()
}

async fn ack(play: &Playground, subscriber: &str, token: &str, ids: &str) -> String {
    play.show(&format!(
        "select once.outbox_ack('t', '{subscriber}', {token}{ids})"
    ))
    .await
}

/// All that is due, acked: names of one order_key in the order they came, by key.
async fn drain(play: &Playground, subscriber: &str) -> Vec<String> {
    let mut keys = std::collections::BTreeMap::<String, Vec<String>>::new();
    loop {
        let rows = play
            .show(&format!(
                "select token, coalesce(order_key, ''), payload #>> '{{}}' from once.outbox_take('t', '{subscriber}', 5)"
            ))
            .await;
        let Some(token) = rows.lines().next().and_then(|r| r.split('|').next()) else {
            let shown = |(key, names): (String, Vec<String>)| format!("{key}: {}", names.join(" "));
            return keys.into_iter().map(shown).collect();
        };
        for row in rows.lines() {
            let cells: Vec<&str> = row.split('|').collect();
            let names = keys.entry(cells[1].to_owned()).or_default();
            names.push(cells[2].to_owned());
            if cells[1].is_empty() {
                names.sort_unstable();
            }
        }
        ack(play, subscriber, token, "").await;
    }
}

/// Tokens of the batches that are out.
struct Held {
    whole: String,
    half: String,
    keyed: String,
}

/// Events in every state, for a subscriber at work and one that has got nothing yet.
async fn a_working_day(play: &Playground) -> Held {
    play.show("select once.topic_set('t', '{}')").await;
    for subscriber in ["default", "idle"] {
        play.show(&format!(
            "select once.subscriber_set('t', '{subscriber}', '{{\"backoff_base\": \"10 min\", \"backoff_cap\": \"10 min\"}}')"
        ))
        .await;
    }
    emit(play, "acked1 acked2", "").await;
    let token = expect(play, "default", 10, "acked1:1 acked2:1").await;
    ack(play, "default", &token, "").await;
    emit(play, "dead1 dead2", "").await;
    let token = expect(play, "default", 10, "dead1:1 dead2:1").await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, kind => 'never', error => 'no')"
    ))
    .await;
    emit(play, "failed", "").await;
    let token = expect(play, "default", 10, "failed:1").await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, error => 'not now')"
    ))
    .await;
    emit(play, "whole1 whole2", "").await;
    let whole = expect(play, "default", 10, "whole1:1 whole2:1").await;
    emit(play, "half1 half2 half3", "").await;
    let half = expect(play, "default", 10, "half1:1 half2:1 half3:1").await;
    let second = "array[(select event_id from once.event_0 where payload #>> '{}' = 'half2')]";
    assert_eq!(
        ack(play, "default", &half, &format!(", {second}")).await,
        "1"
    );
    emit(play, "k1 k2", ", 'key'").await;
    let keyed = expect(play, "default", 10, "k1:1 k2:1").await;
    emit(play, "k3 k4", ", 'key'").await;
    emit(play, "o1 o2", ", 'other'").await;
    emit(play, "delayed", ", delay => '2 h'").await;
    emit(play, "pending1 pending2", "").await;
    Held { whole, half, keyed }
}

async fn goes_on(play: &Playground, held: &Held) {
    // Before the first take, and again after it.
    emit(play, "new1", "").await;
    emit(play, "k5", ", 'key'").await;
    emit(play, "o3", ", 'other'").await;
    assert_eq!(
        drain(play, "default").await,
        [": new1 pending1 pending2", "other: o1 o2 o3"]
    );
    emit(play, "o4", ", 'other'").await;
    assert_eq!(drain(play, "default").await, ["other: o4"]);
    // Whoever holds a batch goes on with it.
    assert_eq!(ack(play, "default", &held.keyed, "").await, "2");
    assert_eq!(drain(play, "default").await, ["key: k3 k4 k5"]);
    play.show(&format!(
        "select once.outbox_extend('t', 'default', {})",
        held.whole
    ))
    .await;
    assert_eq!(ack(play, "default", &held.whole, "").await, "2");
    assert_eq!(ack(play, "default", &held.half, "").await, "2");
    for token in [&held.whole, &held.half] {
        let again = format!("select once.outbox_ack('t', 'default', {token})");
        assert_eq!(play.code(&again).await, "ON006");
    }
    ahead(play, "15 min").await;
    let token = expect(play, "default", 10, "failed:2").await;
    ack(play, "default", &token, "").await;
    play.ask(
        "select payload #>> '{}', attempts, kind, error from once.outbox_dead('t', 'default')",
    )
    .is("dead1|1|never|no\ndead2|1|never|no")
    .await;
    play.show("select once.outbox_redrive('t', 'default')")
        .await;
    assert_eq!(drain(play, "default").await, [": dead1 dead2"]);
    ahead(play, "3 h").await;
    assert_eq!(drain(play, "default").await, [": delayed"]);
    // A subscriber that had got nothing gets it all.
    assert_eq!(
        drain(play, "idle").await,
        [
            ": acked1 acked2 dead1 dead2 delayed failed half1 half2 half3 new1 pending1 pending2 whole1 whole2",
            "key: k1 k2 k3 k4 k5",
            "other: o1 o2 o3 o4"
        ]
    );
    for _ in 0..4 {
        play.ask("select failed from once.sweep(task => 'outbox_retire')")
            .is("0")
            .await;
    }
    emit(play, "last", "").await;
    for subscriber in ["default", "idle"] {
        assert_eq!(drain(play, subscriber).await, [": last"]);
    }
}

async fn move_between(old: &Cluster, new: &Cluster) {
    old.create_database_with_extension(crate::DATABASE)
        .await
        .unwrap();
    let play = session(old).await;
    let held = a_working_day(&play).await;
    // Not committed, so not in the dump.
    let open = session(old).await;
    open.show("begin").await;
    emit(&open, "undone", "").await;
    old.run("pg_dump", &["-d", crate::DATABASE, "-Fc", "-f", "dump"])
        .unwrap();
    let (from, to) = (old.directory().join("dump"), new.directory().join("dump"));
    std::fs::copy(from, &to).unwrap();
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o644)).unwrap();
    new.psql("postgres", "create database shop").unwrap();
    new.run(
        "pg_restore",
        &["-d", crate::DATABASE, "--exit-on-error", "dump"],
    )
    .unwrap();
    goes_on(&session(new).await, &held).await;
}

#[tokio::test]
async fn a_dump_from_past_transaction_id_ten_million_goes_on_in_a_fresh_cluster_and_back() {
    let mut far = Cluster::launch().unwrap();
    far_ahead(&mut far);
    let xid = far.psql("postgres", "select pg_current_xact_id()").unwrap();
    assert!(xid.parse::<u64>().unwrap() > 10_000_000, "{xid}");
    move_between(&far, &Cluster::launch().unwrap()).await;
    // And the other way: everything stored seems to lie in the past there.
    far.psql("postgres", "drop database shop with (force)")
        .unwrap();
    move_between(&Cluster::launch().unwrap(), &far).await;
}
