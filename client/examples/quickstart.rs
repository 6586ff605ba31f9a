//! Requests a payment twice, then with another amount: one payment is made. docs/how-to/rust.md shows this program.
//!
//! `cargo run -p pg-once --example quickstart -- postgres://localhost/mydb`, in a database where
//! `CREATE EXTENSION pg_once` was done.

use pg_once::{Done, Failure, Json, Lease, Response, Scope};
use serde_json::json;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("PG_ONCE_URL").ok());
    let config = url.unwrap_or_default().parse()?;
    let pool = deadpool_postgres::Pool::builder(deadpool_postgres::Manager::new(
        config,
        tokio_postgres::NoTls,
    ));
    let pool = pool.build()?;
    pool.get()
        .await?
        .batch_execute("CREATE TABLE IF NOT EXISTS payments (id uuid, amount int)")
        .await?;

    // A service takes the user from its login and the key from the Idempotency-Key header: see http::key_of_header.
    let key = format!("ada/{}", uuid::Uuid::now_v7());
    for amount in [100, 100, 999] {
        let outcome = Scope::new("payments.create")
            .key(&key)
            .run(&pool)
            .request(Json::of(&json!({"amount": amount}))?)
            .run(|lease| pay(&pool, lease, amount))
            .await?;
        println!("{amount}: {outcome:?}");
    }
    Ok(())
}

/// Runs once for a key. The payment and the answer commit together, or neither does.
async fn pay(pool: &deadpool_postgres::Pool, lease: Lease, amount: i32) -> Result<Done, Failure> {
    let id = uuid::Uuid::new_v4();
    let answer = Response::new(201).with_body(&json!({"payment": id.to_string()}))?;

    let mut connection = pool.get().await?;
    let transaction = connection.transaction().await?;
    transaction
        .execute("INSERT INTO payments VALUES ($1, $2)", &[&id, &amount])
        .await?;
    lease.complete(&transaction, &answer).await?;
    transaction.commit().await?;
    Ok(Done::Stored(answer))
}
