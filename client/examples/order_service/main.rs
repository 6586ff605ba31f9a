//! An HTTP order service that takes each `POST /orders` exactly once.
//!
//! `orders.rs` is the part to read: the phases of an order. This file owns the two ways in. One is the
//! client's: the user and the `Idempotency-Key` header, the request as the key's fingerprint, and the answer as
//! the IETF draft has it (401, 400, 409, 422, 410; a replay is marked). The other is the completer's: what a dead process
//! left behind, and no client comes back for, is brought to its end by the same function.

mod bank;
mod crash;
mod orders;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use clap::{ArgAction, Parser};
use deadpool_postgres::{Manager, Pool};
use pg_once::http::{Answer, IDEMPOTENCY_KEY, PREFER, User, key_of_header, wait_of_header};
use pg_once::{Abandoned, Error, Json, Outcome, Scope};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::EnvFilter;

use bank::Bank;
use orders::{By, Order, Shop};

/// Who is authenticated. The proxy in front of this service sets it, whatever a client sends under that name.
const USER: &str = "X-Forwarded-User";

/// Takes orders over HTTP, charges them at a bank, and does each of them exactly once.
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
    /// Whether the bank makes one charge of many requests with one Idempotency-Key. If not, it is
    /// looked at before it is asked again.
    #[arg(long, env = "ORDERS_BANK_DEDUPES", default_value_t = true, action = ArgAction::Set)]
    bank_dedupes: bool,
    /// Whether the bank can be asked for the charges of a reference. If it neither dedupes nor can
    /// be asked, an order whose charge was not answered is parked.
    #[arg(long, env = "ORDERS_BANK_CAN_BE_ASKED", default_value_t = true, action = ArgAction::Set)]
    bank_can_be_asked: bool,
    /// The lease of a key, in milliseconds: how soon another process goes on after this one died.
    #[arg(long, env = "ORDERS_LEASE_MS", default_value_t = 5000)]
    lease_ms: u64,
    /// How long, in milliseconds, a duplicate may wait for the first one's answer when it says so
    /// (Prefer: wait=5). Else it is answered 409 at once.
    #[arg(long, env = "ORDERS_LONGEST_WAIT_MS", default_value_t = 10_000)]
    longest_wait_ms: u64,
    /// The scope of the keys.
    #[arg(long, env = "ORDERS_SCOPE", default_value = "orders.create")]
    scope: String,
    /// How long the completer waits, in milliseconds, before it asks for abandoned orders again when there
    /// are none. It runs where the scope keeps its requests:
    /// select once.scope_set('orders.create', '{"keep_request": true}')
    #[arg(long, env = "ORDERS_COMPLETE_EVERY_MS", default_value_t = 5000)]
    complete_every_ms: u64,
    /// Connections to the database.
    #[arg(long, env = "ORDERS_CONNECTIONS", default_value_t = 16)]
    connections: usize,
}

#[derive(Clone)]
struct Service {
    shop: Shop,
    scope: Scope,
    lease: Duration,
    longest_wait: Duration,
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
    let service = Service {
        shop,
        scope: Scope::new(&args.scope),
        lease,
        longest_wait: Duration::from_millis(args.longest_wait_ms),
    };
    let (stop, stopped) = watch::channel(false);
    let completer = service
        .complete_abandoned(Duration::from_millis(args.complete_every_ms), stopped)
        .await?;
    let app = Router::new()
        .route("/orders", post(create_order))
        .route("/health", get(|| async { "ok" }))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(service);
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
    // It finishes what it is at, or gives it back.
    completer.await??;
    Ok(())
}

async fn create_order(
    State(service): State<Service>,
    headers: HeaderMap,
    body: String,
) -> Result<Response, StatusCode> {
    let key = match key_of(&headers) {
        Ok(key) => key,
        Err(answer) => return response(answer),
    };
    // The body as it came is the request that the key stands for; the order is what is read of it.
    let request = Json::from_text(body);
    let order: Order = request.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    let wait = headers.get(PREFER).and_then(|value| value.to_str().ok());
    let wait = wait_of_header(wait, service.longest_wait);
    // A task of its own: a client that hangs up must not stop an order half-way. What it would
    // leave behind is right, but the retry would have to wait for the lease to run out.
    let run = tokio::spawn(async move { service.run(&key, request, order, wait).await });
    let answer = match run.await {
        Ok(Ok(outcome)) => Answer::of(&outcome),
        // JSON that jsonb cannot hold: a string with \u0000. Refused before anything was done.
        Ok(Err(error)) if error.code() == Some("22P05") => return Err(StatusCode::BAD_REQUEST),
        Ok(Err(error)) => {
            tracing::error!(%error, "an order failed");
            Answer::of_error(&error)
        }
        Err(_) => return Err(StatusCode::INTERNAL_SERVER_ERROR),
    };
    response(answer)
}

fn key_of(headers: &HeaderMap) -> Result<String, Answer> {
    let user = headers.get(USER);
    let user = user.and_then(|name| str::from_utf8(name.as_bytes()).ok());
    let sent = headers.get(IDEMPOTENCY_KEY);
    let sent = sent.map(|value| value.to_str().unwrap_or_default());
    key_of_header(&User::authenticated(user)?, sent)
}

impl Service {
    /// Brings the orders to their end whose client did not come back, beside the requests. Without the
    /// requests there is nothing to make them from.
    async fn complete_abandoned(
        &self,
        every: Duration,
        mut stop: watch::Receiver<bool>,
    ) -> anyhow::Result<JoinHandle<Result<(), Error>>> {
        let options: serde_json::Value = self.scope.get(&self.shop.pool).await?.parse()?;
        if options["keep_request"] != true {
            tracing::warn!(
                scope = self.scope.as_str(),
                "requests are not kept: no completer"
            );
            return Ok(tokio::spawn(std::future::ready(Ok(()))));
        }
        let completer = self.scope.completer(&self.shop.pool);
        let completer = completer.lease(self.lease).poll_every(every);
        let shop = self.shop.clone();
        Ok(tokio::spawn(async move {
            let stopped = async {
                // An error says that the service is gone.
                let _ = stop.wait_for(|stop| *stop).await;
            };
            let completed = completer
                .run(stopped, move |abandoned: Abandoned| {
                    shop.clone().make_abandoned(abandoned)
                })
                .await?;
            tracing::info!(?completed, "the completer has ended");
            Ok(())
        }))
    }

    async fn run(
        self,
        key: &str,
        request: Json,
        order: Order,
        wait: Duration,
    ) -> Result<Outcome, Error> {
        self.scope
            .key(key)
            .run(&self.shop.pool)
            .request(request)
            .lease(self.lease)
            .wait(wait)
            .run(|lease| self.shop.clone().make(lease, order.clone(), By::Request))
            .await
    }
}

/// The answer as axum sends it: a stored body byte for byte, or a problem document.
fn response(answer: Answer) -> Result<Response, StatusCode> {
    let problem = answer
        .problem
        .map(|title| json!({"title": title}).to_string());
    let kind = if problem.is_some() {
        "application/problem+json"
    } else {
        "application/json"
    };
    let body = problem
        .or(answer.body.map(Json::into_string))
        .unwrap_or_default();
    let mut response = Response::builder()
        .status(answer.status)
        .header(CONTENT_TYPE, kind);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response
        .body(Body::from(body))
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
