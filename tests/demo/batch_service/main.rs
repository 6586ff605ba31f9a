//! The batch service of the demo: workers run costly jobs that a queue delivers, endpoints cancel
//! them for their users. Once written by hand, once with pg_once: `--how`.
//!
//! This file owns what both have in common: the way in and the answers. `naive.rs` and `run.rs` with
//! `teardown.rs` are the parts to read side by side.

// The same way to die as the order service.
#[path = "../../../client/examples/order_service/crash.rs"]
mod crash;
mod items;
mod mortal;
mod naive;
mod run;
mod store;
#[path = "../shared/sweep.rs"]
mod sweep;
mod teardown;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Parser, ValueEnum};
use deadpool_postgres::{Manager, ManagerConfig, Pool};
use pg_once::{Error, Machine};
use serde::Deserialize;
use serde_json::json;

use naive::Naive;
use run::PgOnce;
use store::Store;

/// The batch service of the pg_once demo.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database with the tables of sql/examples/batch_job.sql.
    #[arg(long)]
    database_url: String,
    /// The directory of the artifacts.
    #[arg(long)]
    store: PathBuf,
    #[arg(long)]
    how: How,
    #[arg(long)]
    role: Role,
    /// The lease of a job, in milliseconds.
    #[arg(long, default_value_t = 5000)]
    lease_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    Naive,
    PgOnce,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Runs what the queue delivers.
    Worker,
    /// Cancels what users want cancelled.
    Endpoint,
    /// Sweeps, and tears down what nobody else does.
    Janitor,
}

/// What the queue delivers of a job.
#[derive(Deserialize)]
struct Message {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    input: String,
    /// What a success costs.
    points: i64,
    /// The costly service will say no.
    fails: bool,
}

/// What the queue or the user is told.
enum Answer {
    /// There is nothing more to do; the job's state is this.
    Ended(String),
    /// Somebody is at it: ask again.
    Later(Duration),
}

/// Both services, told apart in one place.
enum Service {
    Naive(Naive),
    PgOnce(PgOnce),
}

impl Service {
    async fn run(&self, job: i64, message: &Message) -> Result<Answer, Error> {
        match self {
            Self::Naive(service) => service.run(job, message).await,
            Self::PgOnce(service) => service.run(job, message).await,
        }
    }

    async fn cancel(&self, job: i64) -> Result<Answer, Error> {
        match self {
            Self::Naive(service) => service.cancel(job).await,
            Self::PgOnce(service) => service.cancel(job).await,
        }
    }
}

async fn run(
    State(service): State<Arc<Service>>,
    Path(job): Path<i64>,
    Json(message): Json<Message>,
) -> Response {
    // A task of its own: a queue that hangs up must not stop a job half-way.
    let work = tokio::spawn(async move { service.run(job, &message).await });
    response(work.await, StatusCode::CONFLICT)
}

async fn cancel(State(service): State<Arc<Service>>, Path(job): Path<i64>) -> Response {
    let work = tokio::spawn(async move { service.cancel(job).await });
    response(work.await, StatusCode::ACCEPTED)
}

fn response(
    answer: Result<Result<Answer, Error>, tokio::task::JoinError>,
    later: StatusCode,
) -> Response {
    match answer {
        Ok(Ok(Answer::Ended(status))) => Json(json!({ "status": status })).into_response(),
        Ok(Ok(Answer::Later(after))) => {
            let seconds = after.as_secs_f64().ceil().max(1.0);
            (later, [(RETRY_AFTER, format!("{seconds:.0}"))]).into_response()
        }
        Ok(Err(error)) => {
            eprintln!("{error}");
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// A janitor that cannot go on is not one: somebody has to notice.
async fn tear_down(service: PgOnce) {
    if let Err(error) = service.keep_tearing_down().await {
        eprintln!("janitor: {error}");
        std::process::exit(1);
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let mortal = match args.role {
        Role::Worker => teardown::WORKER,
        Role::Endpoint | Role::Janitor => teardown::ENDPOINT,
    };
    let manager = ManagerConfig::default();
    let manager = Manager::from_connect(args.database_url.parse()?, mortal, manager);
    let pool = Pool::builder(manager).max_size(12).build()?;
    let store = Store::new(args.store);
    let service = match args.how {
        How::Naive => Service::Naive(Naive { pool, store }),
        How::PgOnce => {
            let lease = Duration::from_millis(args.lease_ms);
            let service = PgOnce {
                pool,
                store,
                machine: Machine::new("batch_job"),
                lease,
            };
            if args.role == Role::Janitor {
                sweep::sweep(&service.pool)
                    .await
                    .context("the first sweep")?;
                tokio::spawn(sweep::keep_sweeping(service.pool.clone(), teardown::NAP));
                tokio::spawn(tear_down(service.clone()));
            } else {
                // Jobs whose worker died would stay `running` if nobody swept: then do not start.
                service.assert_swept().await?;
            }
            Service::PgOnce(service)
        }
    };
    let app = match args.role {
        Role::Worker => Router::new().route("/jobs/{job}/run", post(run)),
        Role::Endpoint => Router::new().route("/jobs/{job}/cancel", post(cancel)),
        Role::Janitor => Router::new(),
    };
    let app = app
        .route("/health", get(|| async { "ok" }))
        .with_state(Arc::new(service));
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
