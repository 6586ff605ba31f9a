//! Through PgBouncer in transaction mode: each transaction may run in another server session.
//!
//! The clients send unnamed statements, as a client behind such a pooler has to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pg_once_tests::{Cluster, PgBouncer, PoolMode, playground};
use playground::Playground;
use tokio_postgres::types::Type;

/// None where PgBouncer is missing and nobody promised it.
async fn pooled(servers: u32) -> Option<(Cluster, PgBouncer)> {
    let cluster = Cluster::launch().unwrap();
    let client = cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    client
        .batch_execute("create table orders (id text not null, attempt int not null)")
        .await
        .unwrap();
    match cluster.pgbouncer(PoolMode::Transaction, servers, &[]) {
        Ok(pooler) => Some((cluster, pooler)),
        Err(error) if std::env::var_os("CI").is_none() && error.to_string().contains("apt-get") => {
            eprintln!("NOT TESTED: {error}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

async fn through(pooler: &PgBouncer) -> Playground {
    Playground::of(pooler.connect("shop").await.unwrap(), "shop")
}

#[tokio::test]
async fn the_phases_of_a_request_may_run_in_different_server_sessions() {
    let Some((_cluster, pooler)) = pooled(2).await else {
        return;
    };
    let (client, other) = (through(&pooler).await, through(&pooler).await);
    let pid = "select pg_backend_pid()";
    let token = client.token("k", ", '{\"a\": 1}', holder => 'h'").await;
    let mut sessions = Vec::new();
    for (i, call) in [
        "key_step('s', 'k', TOKEN, 'pay')",
        "key_step_done('s', 'k', TOKEN, 'pay', '1')",
        "key_advance('s', 'k', TOKEN, 'paid', '{\"charge\": 1}')",
        "key_extend('s', 'k', TOKEN)",
        "key_complete('s', 'k', TOKEN, 201, '\"made\"')",
    ]
    .iter()
    .enumerate()
    {
        // The other client keeps one of the two server sessions; which is free changes.
        other.show("begin").await;
        sessions.push(other.show(pid).await);
        let sql = format!("select once.{}", call.replace("TOKEN", &token.to_string()));
        client.show(&format!("begin; {sql}")).await;
        let mine = client.show(pid).await;
        assert_ne!(sessions[i], mine);
        sessions[i] = mine;
        client.show("commit").await;
        if i % 2 == 0 {
            other.show("commit").await;
            other.show("begin; select 1").await;
        }
        other.show("commit").await;
    }
    assert_eq!(other.claim("k", ", '{\"a\": 1}'").await, "replayed");
    assert_eq!(other.show("show once.fake_now").await, "");
}

#[tokio::test]
async fn many_clients_over_four_server_sessions_make_each_order_once() {
    let Some((cluster, pooler)) = pooled(4).await else {
        return;
    };
    let mut tasks = Vec::new();
    for _ in 0..24 {
        let client = through(&pooler).await;
        tasks.push(tokio::spawn(async move {
            for key in 0..15 {
                while !request(&client, &format!("k{key}")).await {}
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let shown = cluster
        .psql("shop", "select count(*), count(distinct id) from orders")
        .unwrap();
    assert_eq!(shown, "15|15");
    let servers = cluster
        .psql("shop", "select count(*) from pg_stat_activity where datname = 'shop' and backend_type = 'client backend' and application_name <> 'psql'")
        .unwrap();
    assert!(servers.parse::<u32>().unwrap() <= 4, "{servers}");
}

/// One request in two transactions; true once its answer is there.
async fn request(play: &Playground, key: &str) -> bool {
    let claim = play
        .client
        .query_typed(
            "select outcome, token, attempt from once.key_claim('s', $1, $2::text::json)",
            &[(&key, Type::TEXT), (&"{\"a\": 1}", Type::TEXT)],
        )
        .await
        .unwrap();
    let outcome: &str = claim[0].get(0);
    match outcome {
        "replayed" => return true,
        "in_progress" => return false,
        _ => {}
    }
    let (token, attempt): (i64, i32) = (claim[0].get(1), claim[0].get(2));
    play.show(&format!(
        "begin;
         insert into orders values ('{key}', {attempt});
         select once.key_complete('s', '{key}', {token}, 201, '\"made\"');
         commit"
    ))
    .await;
    false
}

#[tokio::test]
async fn a_client_that_vanishes_in_its_transaction_leaves_the_key_free() {
    let Some((cluster, pooler)) = pooled(1).await else {
        return;
    };
    let client = through(&pooler).await;
    client.show("begin").await;
    client.token("k", "").await;
    drop(client);
    // The pooler closes the server session of a client that left in its transaction.
    let other = through(&pooler).await;
    let token = pg_once_tests::race::poll_async("the key to be free", async || {
        Ok((other.claim("k", "").await == "claimed").then_some(()))
    });
    token.await.unwrap();
    assert_eq!(
        cluster
            .psql("shop", "select count(*) from once.key")
            .unwrap(),
        "1"
    );
}
