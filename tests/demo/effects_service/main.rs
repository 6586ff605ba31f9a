//! The services of the demo whose effects leave the database: receipts by webhook, and fundings that
//! move money in an account outside. Each once written by hand, once with pg_once: `--how`.
//!
//! This file owns what all have in common: the way in and the roles. In each folder `naive.rs` and the
//! files beside it are the parts to read side by side.

#[path = "../shared/caller.rs"]
mod caller;
// The same way to die as the order service.
#[path = "../../../client/examples/order_service/crash.rs"]
mod crash;
mod fundings;
mod receipts;
#[path = "../shared/sweep.rs"]
mod sweep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::{Parser, ValueEnum};
use deadpool_postgres::{Hook, Manager, Pool};
use pg_once::http::{Answer, User, key_of_header};
use pg_once::{Deliver, Subscriber};
use tokio_postgres::NoTls;

use caller::Caller;

/// Between two rounds of the janitor.
const NAP: Duration = Duration::from_millis(700);

/// The longest wait of an idle worker before it looks again.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// The services of the pg_once demo whose effects leave the database.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database with the service's tables.
    #[arg(long)]
    database_url: String,
    /// The receiver of the webhooks, or the account, such as http://127.0.0.1:9000
    #[arg(long)]
    outside_url: String,
    /// How long a call there may take, in milliseconds.
    #[arg(long, default_value_t = 500)]
    outside_timeout_ms: u64,
    #[arg(long)]
    how: How,
    #[arg(long)]
    role: Role,
    /// The lease of a batch and of a key, in milliseconds.
    #[arg(long, default_value_t = 5000)]
    lease_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    PgOnce,
    /// By hand. Receipts: the order is committed, then its receipt is sent.
    Naive,
    /// By hand. Receipts: the receipt is sent, then its order is committed.
    SendFirst,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Receipts: takes orders.
    Shop,
    /// Receipts: sends what the shop has emitted.
    Relay,
    /// Fundings: takes wishes.
    Endpoint,
    /// Fundings: moves the money.
    Worker,
    /// Fundings: compensates.
    Undo,
    /// Sweeps, and ends the fundings whose event died with its last worker.
    Janitor,
}

impl Role {
    /// The name of the point between two calls to the database.
    const fn between_calls(self) -> &'static str {
        match self {
            Self::Undo => "between_undo_calls",
            _ => "between_calls",
        }
    }
}

/// What every role works with.
#[derive(Clone)]
struct Service {
    pool: Pool,
    outside: Caller,
    lease: Duration,
    how: How,
}

impl Service {
    /// Delivers a subscriber's events, for ever.
    async fn work_off(&self, subscriber: &Subscriber, handler: impl Deliver) {
        let worker = subscriber
            .worker(&self.pool)
            .lease(self.lease)
            .poll_every(POLL_EVERY);
        if let Err(error) = worker.run(std::future::pending(), handler).await {
            // A worker that cannot go on is not one: somebody has to notice.
            eprintln!("{subscriber:?}: {error}");
            std::process::exit(1);
        }
    }
}

/// How a request ended; whether it had ended before.
enum Ended {
    Now(String),
    Before(String),
    /// With pg_once, when there is nothing to do.
    Answered(Answer),
}

impl IntoResponse for Ended {
    fn into_response(self) -> Response {
        let json = [(CONTENT_TYPE, "application/json")];
        match self {
            Self::Now(body) => (StatusCode::CREATED, json, body).into_response(),
            Self::Before(body) => {
                let replayed = [("idempotent-replayed", "true")];
                (StatusCode::CREATED, json, replayed, body).into_response()
            }
            Self::Answered(answer) => {
                let mut response = Response::builder().status(answer.status);
                for (name, value) in answer.headers {
                    response = response.header(name, value);
                }
                let body = answer
                    .body
                    .map_or_else(String::new, |body| body.into_string());
                response
                    .body(Body::from(body))
                    .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
            }
        }
    }
}

async fn receive(
    State((service, role)): State<(Arc<Service>, Role)>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let key = match key_of(&headers) {
        Ok(key) => key,
        Err(answer) => return Ended::Answered(answer).into_response(),
    };
    // A task of its own: a client that hangs up must not stop a request half-way.
    let work = tokio::spawn(async move {
        match (role, service.how) {
            (Role::Shop, How::PgOnce) => receipts::shop::order(&service, &key, body).await,
            (Role::Shop, _) => receipts::naive::order(&service, &key, &body).await,
            _ => fundings::accept(&service, &key, &body).await,
        }
    });
    match work.await {
        Ok(Ok(ended)) => ended.into_response(),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn key_of(headers: &HeaderMap) -> Result<String, Answer> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let user = User::authenticated(header("x-forwarded-user"))?;
    key_of_header(&user, header("idempotency-key"))
}

/// What a process does beside answering.
async fn work(service: Arc<Service>, role: Role) {
    match (role, service.how) {
        (Role::Shop | Role::Endpoint, _) => {}
        (Role::Relay, _) => receipts::relay::run(&service).await,
        (Role::Worker, How::PgOnce) => fundings::worker::run(&service).await,
        (Role::Worker, _) => fundings::naive::run(&service).await,
        (Role::Undo, _) => fundings::undo::run(&service).await,
        (Role::Janitor, _) => {
            let sweeping = sweep::keep_sweeping(service.pool.clone(), NAP);
            tokio::join!(sweeping, fundings::undertaker::run(&service));
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let manager = Manager::new(args.database_url.parse()?, NoTls);
    let timeout = Duration::from_millis(args.outside_timeout_ms);
    // Each use of a connection follows another call: a place to die between any two of them.
    let between_calls = Hook::sync_fn(move |_, _| {
        crash::point(args.role.between_calls());
        Ok(())
    });
    let pool = Pool::builder(manager)
        .max_size(8)
        .pre_recycle(between_calls);
    let pool = pool.build()?;
    let service = Arc::new(Service {
        pool,
        outside: Caller::new(&args.outside_url, timeout),
        lease: Duration::from_millis(args.lease_ms),
        how: args.how,
    });
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {}", listener.local_addr()?);
    tokio::spawn(work(Arc::clone(&service), args.role));
    let app = Router::new()
        .route("/orders", post(receive))
        .route("/fundings", post(receive))
        .route("/health", get(|| async { "ok" }))
        .with_state((service, args.role));
    axum::serve(listener, app).await?;
    Ok(())
}
