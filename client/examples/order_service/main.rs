//! An HTTP order service that runs each `POST /orders` exactly once.
//!
//! `orders.rs` is the part to read: the phases of an order. This file owns the two callers of `Shop::make`: the handler
//! of a client's request, behind the layer `Idempotency`, and the completer. The completer finishes an order that a
//! dead process left and that no client retries.

mod bank;
mod crash;
mod orders;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Request, State};
use axum::middleware::map_request;
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{ArgAction, Parser};
use deadpool_postgres::{Manager, Pool};
use pg_once::axum::Idempotency;
use pg_once::http::{Answer, User};
use pg_once::{Abandoned, Completer, Done, Error, Failure, Lease, Scope};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use bank::Bank;
use orders::{By, Order, Shop};

/// The header with the authenticated user. The proxy in front of this service must overwrite a client's own header.
const USER: &str = "X-Forwarded-User";

/// Takes orders over HTTP, charges them at a bank, and makes each of them exactly once.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen. The address is printed on standard output.
    #[arg(long, env = "ORDERS_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A database with the extension pg_once.
    #[arg(long, env = "ORDERS_DATABASE_URL")]
    database_url: String,
    /// The bank, such as http://127.0.0.1:9000
    #[arg(long, env = "ORDERS_BANK_URL")]
    bank_url: String,
    /// How long the bank may take, in milliseconds.
    #[arg(long, env = "ORDERS_BANK_TIMEOUT_MS", default_value_t = 1000)]
    bank_timeout_ms: u64,
    /// Whether the bank makes only one charge for all requests with the same Idempotency-Key.
    /// If not, a retry first looks for a charge of an earlier attempt.
    #[arg(long, env = "ORDERS_BANK_DEDUPES", default_value_t = true, action = ArgAction::Set)]
    bank_dedupes: bool,
    /// Whether the bank can be asked for the charges of a reference. A bank that neither dedupes nor
    /// can be asked never tells whether an unanswered request has charged. The order of such a request is parked.
    #[arg(long, env = "ORDERS_BANK_CAN_BE_ASKED", default_value_t = true, action = ArgAction::Set)]
    bank_can_be_asked: bool,
    /// The lease of a key, in milliseconds: how soon another process goes on after this one died.
    #[arg(long, env = "ORDERS_LEASE_MS", default_value_t = 5000)]
    lease_ms: u64,
    /// A duplicate with the header Prefer: wait=5 waits up to 5 seconds for the first request's answer, but no
    /// longer than this many milliseconds. Without that header a duplicate is answered 409 at once.
    #[arg(long, env = "ORDERS_LONGEST_WAIT_MS", default_value_t = 10_000)]
    longest_wait_ms: u64,
    /// The scope of the keys.
    #[arg(long, env = "ORDERS_SCOPE", default_value = "orders.create")]
    scope: String,
    /// The longest time between two polls of the completer while it finds no abandoned order, in milliseconds.
    /// The completer runs only if the scope keeps its requests:
    /// select once.scope_set('orders.create', '{"keep_request": true}')
    #[arg(long, env = "ORDERS_COMPLETE_EVERY_MS", default_value_t = 5000)]
    complete_every_ms: u64,
    /// Connections to the database.
    #[arg(long, env = "ORDERS_CONNECTIONS", default_value_t = 16)]
    connections: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let args = Args::parse();

    let manager = Manager::new(args.database_url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(args.connections).build()?;
    let timeout = Duration::from_millis(args.bank_timeout_ms);
    let bank = Bank::new(
        &args.bank_url,
        timeout,
        args.bank_dedupes,
        args.bank_can_be_asked,
    )?;
    let shop = Shop { pool, bank };
    shop.prepare()
        .await
        .context("the table of orders cannot be made")?;

    let lease = Duration::from_millis(args.lease_ms);
    let scope = Scope::new(&args.scope);
    let once = Idempotency::new(shop.pool.clone(), scope.clone())
        .lease(lease)
        .longest_wait(Duration::from_millis(args.longest_wait_ms));
    let (stop, stopped) = watch::channel(false);
    let completer = scope.completer(&shop.pool).lease(lease);
    let completer = completer.poll_every(Duration::from_millis(args.complete_every_ms));
    let completer = match keeps_requests(&scope, &shop).await? {
        true => tokio::spawn(complete_abandoned(completer, shop.clone(), stopped)),
        false => tokio::spawn(std::future::ready(Ok(()))),
    };
    let app = Router::new()
        .route("/orders", post(create_order).layer(once))
        .layer(map_request(authenticate))
        .route("/health", get(|| async { "ok" }))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(shop);
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
            stop.send_replace(true);
        })
        .await?;
    // The completer finishes the orders it has begun, or releases them.
    completer.await??;
    Ok(())
}

async fn authenticate(mut request: Request) -> Result<Request, Answer> {
    let name = request.headers().get(USER);
    let name = name.and_then(|name| str::from_utf8(name.as_bytes()).ok());
    let user = User::authenticated(name)?;
    request.extensions_mut().insert(user);
    Ok(request)
}

async fn create_order(
    State(shop): State<Shop>,
    lease: Lease,
    Json(order): Json<Order>,
) -> Result<Done, Failure> {
    shop.make(lease, order, By::Request).await
}

/// Whether the scope keeps its requests, which the completer needs to finish abandoned orders.
async fn keeps_requests(scope: &Scope, shop: &Shop) -> anyhow::Result<bool> {
    let options: serde_json::Value = scope.get(&shop.pool).await?.parse()?;
    let keeps = options["keep_request"] == true;
    if !keeps {
        let scope = scope.as_str();
        tracing::warn!(scope, "requests are not kept: no completer");
    }
    Ok(keeps)
}

/// Completes the orders whose client did not retry, until the service stops.
async fn complete_abandoned(
    completer: Completer,
    shop: Shop,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let stopped = async {
        // An error means that the sender was dropped: the service has ended.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let make = move |abandoned: Abandoned| shop.clone().make_abandoned(abandoned);
    let run = completer.run(stopped, make).await;
    let completed = run.inspect_err(|error| tracing::error!(%error, "the completer has ended"))?;
    tracing::info!(?completed, "the completer has ended");
    Ok(())
}
