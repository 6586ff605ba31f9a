//! The world outside of the demo's services: a separate process that is asked over HTTP. It is the
//! bank of the orders, the receiver of the receipts' webhooks, and the account of the fundings.
//!
//! Like a real provider it remembers `Idempotency-Key` (unless told not to), and like a real network
//! it sometimes answers too late or not at all. Invariant: an answer is late or lost only when the line
//! is in the ledger, the case that a caller cannot tell apart. A transfer of an account that is named
//! `frozen` is always answered 503, without a line; one of an account named `silent` is never answered.

// The same way to die as the services.
#[path = "../../../client/examples/order_service/crash.rs"]
mod crash;
mod ledger;
mod line;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{ArgAction, Parser};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ledger::{Ledger, Order, Posted, Want};
use line::{Fate, Line, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tower::ServiceExt;

/// The other side of the pg_once demo: charges, receipts and transfers over HTTP, with a durable
/// ledger.
#[derive(Parser, Clone)]
#[command(version)]
struct Args {
    /// Where to listen; port 0 takes a free one. The address is printed on standard output.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The ledger: a file of JSON lines, made if it is not there.
    #[arg(long)]
    ledger: PathBuf,
    /// Whether a repeated Idempotency-Key gets the first answer instead of a new effect.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    dedupe: bool,
    /// Share of requests that are answered late.
    #[arg(long, default_value_t = 0.0)]
    slow: f64,
    /// How late, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    slow_ms: u64,
    /// Share of requests whose connection is closed without an answer.
    #[arg(long, default_value_t = 0.0)]
    cut: f64,
    /// Seed of the trouble.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone)]
struct Outside {
    ledger: Ledger,
    rng: Arc<Mutex<StdRng>>,
    args: Arc<Args>,
}

impl Outside {
    /// What becomes of the next answer.
    fn fate(&self) -> Fate {
        let roll: f64 = self
            .rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random();
        if roll < self.args.cut {
            Fate::Cut
        } else if roll < self.args.cut + self.args.slow {
            Fate::Late
        } else {
            Fate::Answered
        }
    }

    async fn post(&self, want: Want, headers: &HeaderMap, request: Request) -> Response {
        let making = want == Want::Make;
        if making && request.customer.starts_with("frozen") {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let fate = match making && request.customer.starts_with("silent") {
            true => Fate::Cut,
            false => self.fate(),
        };
        let key = headers.get("idempotency-key");
        let order = Order {
            want,
            request,
            key: key.and_then(|value| value.to_str().ok()).map(str::to_owned),
            fate,
        };
        crash::point("before_ledger");
        let posted = self.ledger.post(order).await;
        crash::point("after_ledger");
        let mut answer = match posted {
            Ok(Posted::New(line)) => made(&line, false),
            Ok(Posted::Again(line)) => {
                ([("idempotent-replayed", "true")], made(&line, true)).into_response()
            }
            Ok(Posted::OtherRequest) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            Ok(Posted::Closed) => StatusCode::GONE.into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        };
        match fate {
            Fate::Answered => {}
            Fate::Late => tokio::time::sleep(Duration::from_millis(self.args.slow_ms)).await,
            Fate::Cut => {
                answer.extensions_mut().insert(CutConnection);
            }
        }
        answer
    }
}

fn made(line: &Line, deduplicated: bool) -> Response {
    let body = json!({ "charge_id": line.charge_id, "reference": line.request.reference,
                       "amount_cents": line.request.amount_cents, "deduplicated": deduplicated });
    (StatusCode::CREATED, Json(body)).into_response()
}

/// Marks an answer that must never reach the caller.
#[derive(Clone)]
struct CutConnection;

async fn make(
    State(outside): State<Outside>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Response {
    outside.post(Want::Make, &headers, request).await
}

async fn reverse(
    State(outside): State<Outside>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Response {
    outside.post(Want::Reverse, &headers, request).await
}

#[derive(Deserialize)]
struct ByReference {
    reference: String,
}

async fn charges(State(outside): State<Outside>, Query(by): Query<ByReference>) -> Response {
    match outside.ledger.look(by.reference).await {
        Ok(lines) => Json(lines).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let outside = Outside {
        ledger: Ledger::open(&args.ledger, args.dedupe)?,
        rng: Arc::new(Mutex::new(StdRng::seed_from_u64(args.seed))),
        args: Arc::new(args.clone()),
    };
    let app = Router::new()
        .route("/health", get(|| async { "ok" }))
        .route("/charges", post(make).get(charges))
        .route("/receipts", post(make))
        .route("/reversals", post(reverse))
        .with_state(outside);
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
        let service = service_fn(move |request: HttpRequest<Incoming>| {
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
