//! Owns what the tests share: the way to the server, keys that nobody used, and somebody else.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use pg_once::{Backoff, Claim, ClaimOptions, Key, Lease, Scope};
use tokio_postgres::{Config, NoTls};

/// Quick enough for a test, patient enough for a busy machine.
pub const QUICK: Backoff = Backoff {
    base: Duration::from_millis(5),
    cap: Duration::from_millis(50),
    tries: 5,
    call_timeout: Duration::from_secs(20),
};

pub fn config() -> Config {
    let url = std::env::var("PG_ONCE_URL");
    let url =
        url.expect("PG_ONCE_URL names no database with pg_once in it; `make test` starts one");
    url.parse().expect("PG_ONCE_URL is a connection string")
}

pub fn pool() -> Pool {
    pool_to(config())
}

pub fn pool_to(config: Config) -> Pool {
    Pool::builder(Manager::new(config, NoTls)).build().unwrap()
}

pub async fn connect() -> tokio_postgres::Client {
    let (client, connection) = config().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub fn fresh_key() -> Key {
    Scope::new("client.tests").key(&uuid::Uuid::new_v4().to_string())
}

pub async fn claimed(key: &Key, pool: &Pool) -> Lease {
    match key.claim(pool, &ClaimOptions::new()).await.unwrap() {
        Claim::Claimed(lease) => lease,
        other => panic!("a fresh key is claimed, not {other:?}"),
    }
}

/// Somebody else, for whom a year has passed: every lease has run out, and they take the key over.
pub async fn take_over(key: &Key, options: &ClaimOptions) -> Lease {
    let later = connect().await;
    let a_year = "SELECT set_config('once.fake_now', (clock_timestamp() + '1 year')::text, false)";
    later.query_one(a_year, &[]).await.unwrap();
    match QUICK.retry(|| key.claim(&later, options)).await.unwrap() {
        Claim::Resumed(lease) => lease,
        other => panic!("an abandoned key is resumed, not {other:?}"),
    }
}
