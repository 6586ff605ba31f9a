//! The order service as people write it by hand: look the key up, charge, save the order.
//!
//! It is the demo's measuring stick, so it is honest: it does look first, it does use a
//! transaction-free single INSERT that cannot half-happen, and it answers a repeated key with the
//! order that is there. What it lacks is what this demo is about: between looking and saving,
//! anything can happen. Where it has several servers, a customer's is `hash % servers`.

// The same way to die as the service that it is compared with.
#[path = "../shared/caller.rs"]
mod caller;
#[path = "../../../client/examples/order_service/crash.rs"]
mod crash;
#[path = "../shared/modulo.rs"]
mod modulo;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use deadpool_postgres::{Config, Pool, PoolConfig, Runtime};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::NoTls;

use caller::Caller;

/// The hand-written order service that the demo compares with pg_once.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database with the table `orders`; each of several.
    #[arg(long, required = true)]
    database_url: Vec<String>,
    /// A file that says how many of the databases are in use; read again for each request. Else all are.
    #[arg(long)]
    servers: Option<PathBuf>,
    /// The bank, such as http://127.0.0.1:9000
    #[arg(long)]
    bank_url: String,
    /// How long the bank may take, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    bank_timeout_ms: u64,
}

#[derive(Clone)]
struct Shop {
    pools: Arc<[Pool]>,
    servers: Option<PathBuf>,
    bank: Caller,
}

#[derive(Deserialize)]
struct OrderRequest {
    customer: String,
    item: String,
    amount_cents: i64,
}

#[derive(Serialize)]
struct Order {
    order_id: String,
    charge_id: String,
    customer: String,
    amount_cents: i64,
}

const FIND: &str = "select order_id, charge_id, customer, amount_cents from orders where idempotency_key = $1 limit 1";
const SAVE: &str = "insert into orders (order_id, idempotency_key, customer, item, amount_cents, charge_id) \
                    values ($1, $2, $3, $4, $5, $6)";

async fn create_order(
    State(shop): State<Shop>,
    headers: HeaderMap,
    Json(request): Json<OrderRequest>,
) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(user) = header("x-forwarded-user") else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let Some(key) = header("idempotency-key") else {
        return (StatusCode::BAD_REQUEST, "Idempotency-Key is missing").into_response();
    };
    match shop.create(&format!("{user}/{key}"), request).await {
        Ok((true, order)) => (
            [("idempotent-replayed", "true")],
            (StatusCode::CREATED, Json(order)),
        )
            .into_response(),
        Ok((false, order)) => (StatusCode::CREATED, Json(order)).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")).into_response(),
    }
}

impl Shop {
    /// True: the order was there before.
    async fn create(&self, key: &str, request: OrderRequest) -> Result<(bool, Order)> {
        let pool = self.home(&request.customer)?;
        if let Some(order) = find(pool, key).await? {
            return Ok((true, order));
        }
        crash::point("after_lookup");
        let charge_id = self.charge(key, &request).await?;
        crash::point("after_charge");
        let order = Order {
            order_id: uuid::Uuid::new_v4().to_string(),
            charge_id,
            customer: request.customer,
            amount_cents: request.amount_cents,
        };
        let connection = pool.get().await?;
        connection
            .execute(
                SAVE,
                &[
                    &order.order_id,
                    &key,
                    &order.customer,
                    &request.item,
                    &order.amount_cents,
                    &order.charge_id,
                ],
            )
            .await?;
        crash::point("after_save");
        Ok((false, order))
    }

    /// The customer's server, as this process's configuration has it now.
    fn home(&self, customer: &str) -> Result<&Pool> {
        let servers = match &self.servers {
            Some(file) => std::fs::read_to_string(file)?.trim().parse()?,
            None => self.pools.len(),
        };
        let home = self.pools.get(modulo::server_of(customer, servers));
        home.context("the configuration names too many servers")
    }

    /// One request to the bank, without an Idempotency-Key.
    async fn charge(&self, key: &str, request: &OrderRequest) -> Result<String> {
        let body = json!({ "amount_cents": request.amount_cents, "customer": request.customer, "reference": key });
        let body = self.bank.post("/charges", None, body.to_string()).await?;
        let charge_id = body.get("charge_id").and_then(serde_json::Value::as_str);
        charge_id
            .map(str::to_owned)
            .ok_or_else(|| anyhow!("the bank names no charge_id"))
    }
}

fn pool(url: String) -> Result<Pool> {
    let mut config = Config::new();
    config.url = Some(url);
    config.pool = Some(PoolConfig::new(16));
    Ok(config.create_pool(Some(Runtime::Tokio1), NoTls)?)
}

async fn find(pool: &Pool, key: &str) -> Result<Option<Order>> {
    let row = pool.get().await?.query_opt(FIND, &[&key]).await?;
    Ok(row.map(|row| Order {
        order_id: row.get(0),
        charge_id: row.get(1),
        customer: row.get(2),
        amount_cents: row.get(3),
    }))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let pools: Result<Arc<[Pool]>> = args.database_url.into_iter().map(pool).collect();
    let shop = Shop {
        pools: pools?,
        servers: args.servers,
        bank: Caller::new(&args.bank_url, Duration::from_millis(args.bank_timeout_ms)),
    };
    let app = Router::new()
        .route("/orders", post(create_order))
        .route("/health", get(|| async { "ok" }))
        .with_state(shop);
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
