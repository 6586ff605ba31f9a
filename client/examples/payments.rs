//! An HTTP service of payments. It sends itself a payment twice, then another amount with the same key: one payment is
//! made. The lines that idempotency adds are marked `// once`. docs/how-to/idempotency-key.md shows this program.
//!
//! `cargo run -p pg-once --features axum --example payments -- postgres://localhost/mydb`, in a database where
//! `CREATE EXTENSION pg_once` was done.

use axum::extract::{Request, State};
use axum::middleware::map_request;
use axum::routing::post;
use axum::{Json, Router};
use deadpool_postgres::Pool;
use pg_once::{Done, Failure, Lease, Response, Scope, axum::Idempotency, http::*}; // once

#[derive(serde::Deserialize)]
struct Payment {
    cents: i64,
}

fn app(pool: Pool) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .layer(Idempotency::new(pool.clone(), Scope::new("payments"))) // once
        .layer(map_request(authenticate))
        .with_state(pool)
}

/// Takes the user from a header. The proxy in front of this service must set it, and overwrite a client's own header.
async fn authenticate(mut request: Request) -> Result<Request, Answer> {
    let name = request.headers().get("X-Forwarded-User");
    let user = User::authenticated(name.and_then(|name| name.to_str().ok()))?;
    request.extensions_mut().insert(user); // once
    Ok(request)
}

/// The payment and the answer commit together, or neither does.
async fn pay(
    State(pool): State<Pool>,
    lease: Lease, // once
    Json(payment): Json<Payment>,
) -> Result<Done, Failure> {
    let mut connection = pool.get().await?;
    let transaction = connection.transaction().await?;
    let insert = "INSERT INTO payment_made (cents) VALUES ($1) RETURNING id";
    let made = transaction.query_one(insert, &[&payment.cents]).await?;
    let answer = Response::new(201).with_body(&made.try_get::<_, i64>(0)?)?;
    lease.complete(&transaction, &answer).await?; // once
    transaction.commit().await?;
    Ok(Done::Stored(answer))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("PG_ONCE_URL").ok());
    let config = url.unwrap_or_default().parse()?;
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).build()?;
    let table = "CREATE TABLE IF NOT EXISTS payment_made \
                 (id bigint GENERATED ALWAYS AS IDENTITY, cents bigint)";
    pool.get().await?.batch_execute(table).await?;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/payments", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app(pool)).await });
    let key = uuid::Uuid::now_v7().to_string();
    for cents in [700, 700, 999] {
        let request = reqwest::Client::new()
            .post(&url)
            .header("X-Forwarded-User", "ada")
            .header(IDEMPOTENCY_KEY, &key)
            .json(&serde_json::json!({"cents": cents}));
        let answer = request.send().await?;
        println!("{cents}: {} {}", answer.status(), answer.text().await?);
    }
    Ok(())
}
