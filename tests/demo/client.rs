//! A client of a service: sends, waits, times out, backs off, sends again.
//!
//! Invariant: it repeats one request (same key, same bytes) until the answer is final, or until
//! its deadline, which the proof then counts as stuck. Each attempt is in the journal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rand::Rng;
use rand::rngs::StdRng;

use crate::journal::{Attempt, Journal, Outcome};

/// What the proxy that authenticates would set.
const USER: &str = "x-forwarded-user";
const BACKOFF_BASE: Duration = Duration::from_millis(50);
const BACKOFF_CAP: Duration = Duration::from_secs(1);

/// One logical request.
#[derive(Clone)]
pub struct Ask {
    /// Where it goes, such as `/orders`.
    pub path: String,
    /// The name in the journal. Where the service takes an Idempotency-Key, `<user>/<key>`.
    pub key: String,
    pub client: &'static str,
    pub amount_cents: i64,
    pub body: String,
}

/// How patient clients are.
#[derive(Clone, Copy)]
pub struct Waits {
    /// With one answer.
    pub answer: Duration,
    /// Altogether: then a client stops asking, and what it asked for is stuck.
    pub end: Duration,
}

#[derive(Clone)]
pub struct Clients {
    http: Client<HttpConnector, Full<Bytes>>,
    fronts: Arc<[SocketAddr]>,
    waits: Waits,
    /// What they ask of the service beside the order.
    prefer: Option<String>,
    journal: Arc<Journal>,
}

/// An answer as it came over the wire.
struct Answer {
    outcome: Outcome,
    status: Option<u16>,
    body: Option<String>,
    retry_after: Option<Duration>,
}

impl Answer {
    fn none(outcome: Outcome) -> Self {
        Self {
            outcome,
            status: None,
            body: None,
            retry_after: None,
        }
    }
}

impl Clients {
    pub fn new(fronts: &[SocketAddr], waits: Waits, journal: Arc<Journal>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            http: Client::builder(TokioExecutor::new()).build(connector),
            fronts: fronts.into(),
            waits,
            prefer: None,
            journal,
        }
    }

    /// Such clients, but ready to wait this number of seconds where the same request is in progress.
    pub fn ready_to_wait(&self, seconds: u64) -> Self {
        let mut waiting = self.clone();
        waiting.waits.answer += Duration::from_secs(seconds);
        waiting.prefer = Some(format!("wait={seconds}"));
        waiting
    }

    /// Asks until the answer is final.
    pub async fn insist(&self, ask: &Ask, rng: &mut StdRng) -> Outcome {
        let deadline = tokio::time::Instant::now() + self.waits.end;
        let mut backoff = BACKOFF_BASE;
        loop {
            let answer = self
                .attempt(ask, self.waits.answer, Outcome::TimedOut, rng)
                .await;
            if answer.outcome.is_final() || tokio::time::Instant::now() > deadline {
                return answer.outcome;
            }
            // Full jitter; what the server asks for comes first.
            let jitter = backoff.mul_f64(rng.random());
            backoff = (backoff * 2).min(BACKOFF_CAP);
            tokio::time::sleep(answer.retry_after.unwrap_or_default() + jitter).await;
        }
    }

    /// Asks once and hangs up after `patience`.
    pub async fn hang_up_after(&self, ask: &Ask, patience: Duration, rng: &mut StdRng) -> Outcome {
        self.attempt(ask, patience, Outcome::GaveUp, rng)
            .await
            .outcome
    }

    /// The status of a request that names no key; None if there was no answer.
    pub async fn without_key(&self, path: &str, body: &str) -> Option<u16> {
        let request = Request::post(format!("http://{}{path}", self.fronts.first()?))
            .header("content-type", "application/json")
            .header(USER, "somebody")
            .body(Full::from(body.to_owned()))
            .ok()?;
        let answer = tokio::time::timeout(self.waits.answer, self.http.request(request)).await;
        answer.ok()?.ok().map(|answer| answer.status().as_u16())
    }

    async fn attempt(
        &self,
        ask: &Ask,
        patience: Duration,
        on_timeout: Outcome,
        rng: &mut StdRng,
    ) -> Answer {
        let sent_ms = self.journal.now_ms();
        // Each attempt may reach another process, as behind a load balancer.
        let front = self.fronts.get(rng.random_range(0..self.fronts.len()));
        let answer = match front {
            Some(front) => match tokio::time::timeout(patience, self.exchange(*front, ask)).await {
                Ok(Some(answer)) => answer,
                Ok(None) => Answer::none(Outcome::ConnectionLost),
                Err(_) => Answer::none(on_timeout),
            },
            None => Answer::none(Outcome::ConnectionLost),
        };
        self.journal.attempt(Attempt {
            key: ask.key.clone(),
            client: ask.client,
            asked_cents: ask.amount_cents,
            sent_ms,
            answered_ms: self.journal.now_ms(),
            outcome: answer.outcome,
            status: answer.status,
            body: answer.body.clone(),
        });
        answer
    }

    /// None: no whole answer came.
    async fn exchange(&self, front: SocketAddr, ask: &Ask) -> Option<Answer> {
        let mut request = Request::post(format!("http://{front}{}", ask.path))
            .header("content-type", "application/json");
        if let Some((user, key)) = ask.key.split_once('/') {
            request = request.header(USER, user).header("idempotency-key", key);
        }
        if let Some(prefer) = &self.prefer {
            request = request.header("prefer", prefer);
        }
        let request = request.body(Full::from(ask.body.clone())).ok()?;
        let response = self.http.request(request).await.ok()?;
        let outcome = classify(&response);
        let status = response.status().as_u16();
        let retry_after = retry_after(&response);
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer {
            outcome,
            status: Some(status),
            body: Some(String::from_utf8_lossy(&body).into_owned()),
            retry_after,
        })
    }
}

fn classify<B>(response: &Response<B>) -> Outcome {
    let status = response.status();
    if status == StatusCode::ACCEPTED {
        return Outcome::InProgress;
    }
    if status.is_success() {
        return match response.headers().get("idempotent-replayed") {
            Some(value) if value == "true" => Outcome::Replayed,
            _ => Outcome::Created,
        };
    }
    match status {
        StatusCode::CONFLICT if retry_after(response).is_some() => Outcome::InProgress,
        StatusCode::CONFLICT => Outcome::Parked,
        StatusCode::UNPROCESSABLE_ENTITY => Outcome::Mismatched,
        StatusCode::GONE => Outcome::Gone,
        StatusCode::PAYMENT_REQUIRED => Outcome::Declined,
        _ if status.is_server_error() => Outcome::ServerError,
        _ => Outcome::Refused,
    }
}

fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    value.parse().ok().map(Duration::from_secs_f64)
}
