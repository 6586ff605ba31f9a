//! Two databases of one server, each a shard: what belongs to a routing value is in its own database only.

use pg_once::http::Answer;
use pg_once::{Claim, ClaimOptions, Error, Kind, Response, Scope, Shards};

use crate::support::{Pool, code, config, connect_to, directly, pool_to};

/// Two databases with the extension, and a pool for each.
async fn two_databases() -> Vec<(String, Pool)> {
    let admin = connect_to(directly("it makes databases")).await;
    let mut made = vec![];
    for number in 0..2 {
        let name = format!("shard_{}_{number}", uuid::Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name}");
        admin.batch_execute(&create).await.unwrap();
        let pool = pool_to(config().dbname(&name).clone());
        let client = pool.get().await.unwrap();
        let extension = "CREATE EXTENSION pg_once";
        client.batch_execute(extension).await.unwrap();
        made.push((name, pool));
    }
    made
}

async fn drop_databases(made: Vec<(String, Pool)>) {
    let admin = connect_to(directly("it drops databases")).await;
    for (name, pool) in made {
        pool.close();
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        admin.batch_execute(&drop).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_runs_in_the_shard_of_its_tenant_and_is_refused_in_any_other() {
    let made = two_databases().await;
    let pools = made.iter().map(|(_, pool)| pool.clone());
    let shards = Shards::new(pools.clone()).unwrap();
    shards.set().await.unwrap();
    shards.set().await.unwrap();

    let mut seen = [0, 0];
    for tenant in (0..20).map(|n| format!("tenant-{n}")) {
        let key = Scope::new("orders.create").key(&format!("{tenant}/k-1"));
        let claim = key.claim(shards.of(&tenant), &ClaimOptions::new()).await;
        let Claim::Claimed(lease) = claim.unwrap() else {
            panic!("a fresh key is claimed")
        };
        let answer = Response::new(201);
        lease.complete(shards.of_key(&key), &answer).await.unwrap();

        for (number, pool) in shards.each() {
            let claim = key.claim(pool, &ClaimOptions::new()).await;
            if number == shards.number_of(&tenant) {
                assert_eq!(claim.unwrap(), Claim::Replayed(answer.clone()));
                seen[number] += 1;
                continue;
            }
            let error = claim.unwrap_err();
            let said = (error.code(), error.kind(), error.is_retryable());
            assert_eq!(said, (Some("ON007"), Kind::WrongShard, false));
            assert_eq!(Answer::of_error(&error).status, 503);
        }
    }
    assert!(seen.iter().all(|keys| *keys > 0), "{seen:?}");

    // Pools in another order lead to other shards, and that is seen before a call goes astray.
    let swapped = Shards::new(pools.rev()).unwrap();
    assert_eq!(code(swapped.set().await), "55006");
    drop_databases(made).await;
}

#[test]
fn there_is_one_shard_at_least() {
    let none = Shards::new(Vec::<Pool>::new());
    let error = none.unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
    assert_eq!(error.kind(), Kind::InvalidArgument);
}
