//! A database that is one shard of many refuses what belongs to another.

use crate::playground::Playground;

/// Of 16 shards; docs/reference/shard.md lists them.
const VECTORS: [(&str, &str); 4] = [("acme", "1"), ("globex", "4"), ("", "12"), ("käse", "2")];

/// Each call that may reach the wrong shard, with a tenant that belongs to another one.
const MISROUTED: [&str; 19] = [
    "key_claim('s', 'acme/k-1', '{}')",
    "key_claim('s', 'acme')",
    "key_get('s', 'acme/k-1')",
    "key_advance('s', 'acme/k-1', 1, 'charged')",
    "key_complete('s', 'acme/k-1', 1, 201)",
    "key_abort('s', 'acme/k-1', 1, 422)",
    "key_release('s', 'acme/k-1', 1)",
    "key_park('s', 'acme/k-1', 1, 'a timeout')",
    "key_resolve('s', 'acme/k-1', 1, 'retry')",
    "key_extend('s', 'acme/k-1', 1)",
    "key_step('s', 'acme/k-1', 1, 'charge')",
    "key_step_done('s', 'acme/k-1', 1, 'charge')",
    "key_rotate('s', 'acme/k-1', 1, 'charge', 1)",
    "key_expire('s', 'acme/k-1')",
    "key_forget('s', 'acme/k-1')",
    "inbox_accept('s', 'acme/m-1')",
    "inbox_record('s', 'acme/m-1', '{}')",
    "inbox_barrier('s', 'acme/saga', 'pay', 'action')",
    "inbox_barrier('s', 'acme/saga', 'pay', 'compensation')",
];

fn of(routing: &str) -> String {
    format!("select once.shard_of('{routing}', 16)")
}

#[tokio::test]
async fn a_shard_is_six_bytes_of_the_sha_256_of_the_routing_value() {
    let play = Playground::open().await;
    for (routing, shard) in VECTORS {
        assert_eq!(play.show(&of(routing)).await, shard, "{routing}");
    }
    assert_eq!(play.code("select once.shard_of('a', 0)").await, "22023");
    assert_eq!(play.show("select once.shard_of(null, 16)").await, "~");
    // In a CHECK of somebody who has no right on the schema.
    play.ensure_role("shards_nobody login").await;
    play.show(
        "create table tenants (tenant text check (once.shard_of(tenant, 1) = 0));
         grant insert on tenants to shards_nobody",
    )
    .await;
    let nobody = play.another_as("shards_nobody").await;
    nobody.show("insert into tenants values ('acme')").await;
}

#[tokio::test]
async fn what_belongs_to_another_shard_is_refused_and_runs_nowhere() {
    let play = Playground::open().await;
    assert_eq!(play.show("select once.shard_get()").await, "~");
    let token = play.token("foreign/1", "").await;
    let other = play.another().await;
    other
        .show("select * from once.key_claim('s', 'warm')")
        .await;
    // The shard that acme does not belong to, nor `foreign`.
    let shard = "select min(n) from generate_series(0, 15) n
                  where n not in (once.shard_of('acme', 16), once.shard_of('foreign', 16))";
    let shard = play.show(shard).await;
    let set = format!("select once.shard_set({shard}, 16)");
    let told = play.show(&set).await;
    assert_eq!(
        told,
        format!(
            "{{\"shard\" : {shard}, \"shards\" : 16, \"by\" : \"key\", \"separator\" : \"/\"}}"
        )
    );
    assert_eq!(play.show(&set).await, told, "the same again");
    play.ask("select once.shard_set(15 - least(14, 0), 17)")
        .fails("55006")
        .await;
    let before = play.stored().await;
    // The other session had seen no shard before.
    for session in [&play, &other] {
        for call in MISROUTED {
            let refused = session.refused(&format!("select once.{call}")).await;
            let detail = format!("This is shard {shard} of 16, \"acme\" belongs to 1.");
            assert_eq!(refused.detail, detail, "{call}");
            refused.tells("ON007", &["\"acme\" belongs to another shard"], call);
        }
    }
    assert_eq!(play.stored().await, before);
    assert_eq!(play.show("select count(*) from once.inbox").await, "0");
    // A derived key is a function of the names alone.
    play.show("select once.key_derive('s', 'acme/k-1', 'charge')")
        .await;
    // What is here goes on, and doctor counts it.
    let doctor = "select level, problem from once.doctor() where problem like '%another shard'";
    let found = play.show(doctor).await;
    assert!(
        found.starts_with("warning|") && found.ends_with("of 2 keys belong to another shard"),
        "{found}"
    );
    play.show(&format!(
        "select once.key_complete('s', 'foreign/1', {token}, 200)"
    ))
    .await;
    // Its own are served.
    let home = format!(
        "select 't' || n from generate_series(1, 1000) n where once.shard_of('t' || n, 16) = {shard} limit 1"
    );
    let home = play.show(&home).await;
    let claim = format!("select outcome from once.key_claim('s', '{home}/k')");
    assert_eq!(play.show(&claim).await, "claimed");
    for (arguments, name) in [
        ("16, 16", "shard"),
        ("-1, 16", "shard"),
        ("0, 0", "shards"),
        ("0, 16, 'tenant'", "by"),
        ("0, 16, 'key', ''", "separator"),
    ] {
        let refused = play
            .refused(&format!("select once.shard_set({arguments})"))
            .await;
        assert_eq!(refused.code, "22023");
        assert!(
            refused.message.contains(&format!("\"{name}\"")),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn the_scope_may_carry_the_routing_value_and_a_rollback_leaves_no_shard() {
    let play = Playground::open().await;
    let shard = play.show(&of("acme")).await;
    play.show(&format!(
        "begin; select once.shard_set({shard}, 16, 'scope', ':'); rollback"
    ))
    .await;
    play.show("select * from once.key_claim('globex:orders', 'k')")
        .await;
    play.show(&format!("select once.shard_set({shard}, 16, 'scope', ':')"))
        .await;
    play.show("select * from once.key_claim('acme:orders', 'whatever/1')")
        .await;
    let foreign = "select min('t' || n) from generate_series(1, 100) n where once.shard_of('t' || n, 16) <> once.shard_of('acme', 16)";
    let foreign = play.show(foreign).await;
    play.ask(&format!(
        "select * from once.key_claim('{foreign}:orders', 'k')"
    ))
    .fails("ON007")
    .await;
}
