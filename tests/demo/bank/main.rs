//! The demo's bank: a separate process that moves money when asked over HTTP.
//!
//! Like a real payment provider it remembers `Idempotency-Key` (unless told not to), and like a
//! real network it sometimes answers too late or not at all. Invariant: trouble comes only after
//! the charge is in the ledger, never instead of it; that is the case a caller cannot tell apart.

mod ledger;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{ArgAction, Parser};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ledger::{ChargeRequest, Ledger, Posted};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tower::ServiceExt;

/// The bank of the pg_once demo: charges over HTTP, with a durable ledger.
#[derive(Parser, Clone)]
#[command(version)]
struct Args {
    /// Where to listen; port 0 takes a free one. The address is printed on standard output.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The ledger: a file of JSON lines, made if it is not there.
    #[arg(long)]
    ledger: PathBuf,
    /// Whether a repeated Idempotency-Key gets the first charge instead of a new one.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    dedupe: bool,
    /// Share of charges that are answered late.
    #[arg(long, default_value_t = 0.0)]
    slow: f64,
    /// How late, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    slow_ms: u64,
    /// Share of charges whose connection is closed without an answer.
    #[arg(long, default_value_t = 0.0)]
    cut: f64,
    /// Seed of the trouble.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone)]
struct Bank {
    ledger: Ledger,
    trouble: Arc<Trouble>,
}

/// Decides which answers go wrong, and counts them.
struct Trouble {
    rng: Mutex<StdRng>,
    args: Args,
    slow: AtomicU64,
    cut: AtomicU64,
    repeated: AtomicU64,
    looked_up: AtomicU64,
}

enum Fate {
    Answer,
    Late,
    Cut,
}

impl Trouble {
    fn fate(&self) -> Fate {
        let roll: f64 = self
            .rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random();
        if roll < self.args.cut {
            self.cut.fetch_add(1, Ordering::Relaxed);
            Fate::Cut
        } else if roll < self.args.cut + self.args.slow {
            self.slow.fetch_add(1, Ordering::Relaxed);
            Fate::Late
        } else {
            Fate::Answer
        }
    }
}

/// Marks an answer that must never reach the caller.
#[derive(Clone)]
struct CutConnection;

async fn charge(
    State(bank): State<Bank>,
    headers: HeaderMap,
    Json(request): Json<ChargeRequest>,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let mut answer =
        match bank.ledger.charge(request, key).await {
            Ok(Posted::New(charge)) => (
                StatusCode::CREATED,
                Json(
                    json!({ "charge_id": charge.charge_id, "reference": charge.request.reference,
                         "amount_cents": charge.request.amount_cents, "deduplicated": false }),
                ),
            )
                .into_response(),
            Ok(Posted::Again(charge)) => {
                bank.trouble.repeated.fetch_add(1, Ordering::Relaxed);
                (
                StatusCode::CREATED,
                [("idempotent-replayed", "true")],
                Json(json!({ "charge_id": charge.charge_id, "reference": charge.request.reference,
                             "amount_cents": charge.request.amount_cents, "deduplicated": true })),
            )
                .into_response()
            }
            Ok(Posted::OtherRequest) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
    match bank.trouble.fate() {
        Fate::Answer => {}
        Fate::Late => tokio::time::sleep(Duration::from_millis(bank.trouble.args.slow_ms)).await,
        Fate::Cut => {
            answer.extensions_mut().insert(CutConnection);
        }
    }
    answer
}

#[derive(Deserialize)]
struct ByReference {
    reference: String,
}

async fn charges(State(bank): State<Bank>, Query(by): Query<ByReference>) -> Response {
    bank.trouble.looked_up.fetch_add(1, Ordering::Relaxed);
    listed(bank.ledger.list(Some(by.reference)).await)
}

async fn whole_ledger(State(bank): State<Bank>) -> Response {
    listed(bank.ledger.list(None).await)
}

fn listed(charges: Result<Vec<ledger::Charge>>) -> Response {
    match charges {
        Ok(charges) => Json(charges).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn trouble(State(bank): State<Bank>) -> Response {
    let trouble = &bank.trouble;
    Json(json!({
        "slow": trouble.slow.load(Ordering::Relaxed),
        "cut": trouble.cut.load(Ordering::Relaxed),
        "repeated": trouble.repeated.load(Ordering::Relaxed),
        "looked_up": trouble.looked_up.load(Ordering::Relaxed),
    }))
    .into_response()
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let bank = Bank {
        ledger: Ledger::open(&args.ledger, args.dedupe)?,
        trouble: Arc::new(Trouble {
            rng: Mutex::new(StdRng::seed_from_u64(args.seed)),
            args: args.clone(),
            slow: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            looked_up: AtomicU64::new(0),
        }),
    };
    let app = Router::new()
        .route("/health", get(|| async { "ok" }))
        .route("/charges", post(charge).get(charges))
        .route("/ledger", get(whole_ledger))
        .route("/trouble", get(trouble))
        .with_state(bank);
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener, app).await
}

/// axum's own server always answers; this one can also hang up, which is what a cut needs.
async fn serve(listener: TcpListener, app: Router) -> Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let app = app.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let app = app.clone();
            async move { hang_up(app.oneshot(request.map(Body::new)).await) }
        });
        tokio::spawn(async move {
            // An error here is a caller that hung up, or our own cut.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

fn hang_up(
    answer: std::result::Result<Response, std::convert::Infallible>,
) -> std::io::Result<Response> {
    let answer = answer.unwrap_or_else(|never| match never {});
    match answer.extensions().get::<CutConnection>() {
        Some(CutConnection) => Err(std::io::ErrorKind::ConnectionAborted.into()),
        None => Ok(answer),
    }
}
