//! A dump restored into a fresh cluster: tokens, steps, options and rights go on where they were.

use pg_once_tests::Cluster;

use crate::playground::Playground;
use crate::{copy, on, with_shop};

/// Keys in every state, options, an owner and rights; the tokens of `held` and `expired`.
async fn a_working_day(play: &Playground) -> (i64, i64) {
    play.show("create role shop_owner; create role worker login in role shop_owner; create role boss login")
        .await;
    play.show("select once.grant_role('worker', 'use'), once.grant_role('boss', 'operate')")
        .await;
    play.show(r#"select once.scope_set('s', '{"keep_request": true, "max_attempts": 9, "gone_for": "3 days"}')"#)
        .await;
    play.show(r#"select once.scope_set('owned', '{"owner": "shop_owner", "lease": "5 min"}')"#)
        .await;
    play.show("select once.key_claim('owned', 'k')").await;
    let request = ", '{\"n\": 1.00, \"t\": \"\u{1F980}\\n\"}'";
    let held = play
        .token("held", &format!("{request}, holder => 'h'"))
        .await;
    play.show(&format!(
        "select once.key_advance('s', 'held', {held}, 'paid', '{{\"b\":  1,\"a\":2}}')"
    ))
    .await;
    play.show(&format!("select once.key_step('s', 'held', {held}, 'pay')"))
        .await;
    play.show(&format!(
        "select once.key_step_done('s', 'held', {held}, 'pay', '{{\"id\":   1}}')"
    ))
    .await;
    play.show(&format!(
        "select once.key_rotate('s', 'held', {held}, 'ship', 1)"
    ))
    .await;
    let expired = play
        .token("expired", &format!("{request}, lease => '1 microsecond'"))
        .await;
    play.show(&format!(
        "select once.key_step('s', 'expired', {expired}, 'pay')"
    ))
    .await;
    let parked = play.token("parked", request).await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'timed out')"
    ))
    .await;
    let released = play.token("released", request).await;
    play.show(&format!(
        "select once.key_release('s', 'released', {released}, 'no')"
    ))
    .await;
    let done = play.token("done", request).await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 201, E'{{\"a\":  1.0e3,\\n \"a\": 2}}', '{{\"X\":  \"y\"}}')"
    ))
    .await;
    let gone = play
        .token("gone", &format!("{request}, ttl => '1 microsecond'"))
        .await;
    play.show(&format!(
        "select once.key_complete('s', 'gone', {gone}, 200)"
    ))
    .await;
    play.show("select once.sweep(task => 'key_tombstone')")
        .await;
    // A mark of the sweeps, which does not go along.
    play.show(
        "select count(once.key_complete('s', 'b' || g, (once.key_claim('s', 'b' || g, lease => '1 us')).token, 200))
           from generate_series(1, 300) as g",
    )
    .await;
    for _ in 0..3 {
        play.show("select once.sweep(task => 'key_abandon'); select key from once.key_take_abandoned('s', 1, '1 microsecond')")
            .await;
    }
    (held, expired)
}

const STATES: &str = "
    select string_agg(concat_ws('|', k.key, g.status, g.attempt, g.holder, g.recovery_point, g.state::text,
                                g.steps::text, g.response_code, g.response_body::text,
                                g.response_headers::text, g.request, g.last_error, g.created_at,
                                g.finished_at, g.gone_at), E'\\n' order by k.key)
      from once.key as k, lateral once.key_get(k.scope, k.key) as g where k.scope = 's'";

#[tokio::test]
async fn a_dump_restored_into_a_fresh_cluster_goes_on_where_it_was() {
    let old = Cluster::launch().unwrap();
    let play = with_shop(&old).await;
    let (held, _) = a_working_day(&play).await;
    let before = play.show(STATES).await;
    let derived = play
        .show("select once.key_derive('s', 'held', 'ship')")
        .await;
    old.run("pg_dumpall", &["--roles-only", "-f", "roles.sql"])
        .unwrap();
    old.run("pg_dump", &["-d", "shop", "-Fc", "-f", "dump"])
        .unwrap();

    let new = Cluster::launch().unwrap();
    // Transaction ids of another age: nothing stored may depend on them.
    for name in ["roles.sql", "dump"] {
        copy(&old.directory().join(name), &new.directory().join(name));
    }
    drop(old);
    let roles = std::fs::read_to_string(new.directory().join("roles.sql")).unwrap();
    for line in roles.lines().filter(|line| !line.contains("ROLE postgres")) {
        if line.starts_with("CREATE ROLE")
            || line.starts_with("ALTER ROLE")
            || line.starts_with("GRANT")
        {
            new.psql("postgres", line).unwrap();
        }
    }
    new.psql("postgres", "create database shop").unwrap();
    new.run("pg_restore", &["-d", "shop", "--exit-on-error", "dump"])
        .unwrap();
    let play = on(&new, "shop").await;
    assert_eq!(play.show(STATES).await, before);
    assert_eq!(
        play.show("select once.key_derive('s', 'held', 'ship')")
            .await,
        derived
    );
    goes_on(&play, held).await;
    rights_are_kept(&new).await;

    // And once more from the restored one, as plain SQL.
    let states = play.show(STATES).await;
    let text = new
        .run("pg_dump", &["-d", "shop", "-f", "plain.sql"])
        .unwrap();
    assert_eq!(text.stderr, "");
    new.psql("postgres", "create database shop2").unwrap();
    new.run(
        "psql",
        &[
            "-X",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "shop2",
            "-f",
            "plain.sql",
        ],
    )
    .unwrap();
    assert_eq!(on(&new, "shop2").await.show(STATES).await, states);
}

async fn goes_on(play: &Playground, held: i64) {
    let request = ", '{\"t\": \"\u{1F980}\\n\", \"n\": 1}'";
    assert_eq!(play.claim("done", request).await, "replayed");
    assert_eq!(play.claim("done", ", '7'").await, "mismatched");
    assert_eq!(play.claim("gone", request).await, "gone");
    assert_eq!(play.claim("parked", request).await, "parked");
    assert_eq!(play.claim("held", request).await, "in_progress");
    let body = "select response_body from once.key_claim('s', 'done', '{\"t\": \"\u{1F980}\\n\", \"n\": 1}')";
    assert_eq!(play.show(body).await, "{\"a\":  1.0e3,\n \"a\": 2}");
    // The holder of before the dump still is it, and its step is still done.
    let step = format!("select done, result from once.key_step('s', 'held', {held}, 'pay')");
    assert_eq!(play.show(&step).await, "t|{\"id\":   1}");
    play.show(&format!(
        "select once.key_complete('s', 'held', {held}, 200)"
    ))
    .await;
    play.ask("select once.sweep(task => 'key_abandon'); select string_agg(key || ' ' || (request is not null), ', ' order by key) from once.key_take_abandoned('s')")
        .is("expired true, released true")
        .await;
    let step = "select attempted > 0 from once.key_step('s', 'expired', (select token from once.key where key = 'expired'), 'pay')";
    assert_eq!(play.show(step).await, "t");
    play.show("select once.key_resolve('s', 'parked', 1, 'retry')")
        .await;
    assert_eq!(play.claim("parked", request).await, "resumed");
    play.ask("select o ->> 'max_attempts', o ->> 'gone_for' from once.scope_get('s') as o")
        .is("9|72:00:00")
        .await;
    play.clock("10 years").await;
    play.show("select once.sweep()").await;
    play.show("reset once.fake_now").await;
}

async fn rights_are_kept(cluster: &Cluster) {
    let as_role = async |role: &str| Playground::on_as(cluster, role, "shop").await;
    let worker = as_role("worker").await;
    assert_eq!(worker.claim("of the worker", "").await, "claimed");
    let owned = "select outcome from once.key_claim('owned', 'k')";
    assert_eq!(worker.show(owned).await, "in_progress");
    assert_eq!(worker.code("select once.sweep()").await, "42501");
    assert_eq!(worker.code("select * from once.key").await, "42501");
    let boss = as_role("boss").await;
    boss.show("select once.sweep()").await;
    assert_eq!(boss.code(owned).await, "42501");
    let admin = as_role("postgres").await;
    admin.show("select once.revoke_role('worker', 'use')").await;
    assert_eq!(
        worker.code("select once.key_claim('s', 'x')").await,
        "42501"
    );
}
