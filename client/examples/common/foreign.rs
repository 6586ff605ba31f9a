//! Owns the foreign service: an HTTP server in this process with a ledger. The server makes one effect for all POSTs
//! with one `Idempotency-Key`, answers a GET with the id of the key's effect, refuses POSTs by a rule, and fails as
//! [`Foreign::trouble`] asks.
//!
//! Invariant: an effect is in the ledger before its answer can be lost, as with real services.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use pg_once::http::IDEMPOTENCY_KEY;
use serde_json::{Value, json};

/// The answer to a GET if the key has no effect. A 404 would be unclear: a gateway can send it, too.
pub const NONE: &str = "null";

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// The effect is made and no answer is sent.
    NoAnswer,
    /// The request takes this time to arrive, and no answer is sent.
    Late(Duration),
    /// Nothing is made, and the answer has this status.
    Refuse(u16),
    /// Nothing is made, and the answer is 429 with this time in Retry-After, as an HTTP date.
    NotBefore(SystemTime),
}

/// The effect of the first accepted POST with `key`.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    pub id: String,
    pub path: String,
    pub key: String,
    pub body: Value,
}

#[derive(Default)]
struct Ledger {
    effects: Vec<Effect>,
    by_key: HashMap<String, usize>,
    requests: usize,
    trouble: HashMap<String, VecDeque<Trouble>>,
}

/// Returns the status with which the service refuses a request; `None`: the service accepts the request.
type Rule = fn(path: &str, body: &Value) -> Option<StatusCode>;

#[derive(Clone)]
pub struct Foreign {
    pub url: String,
    ledger: Arc<Mutex<Ledger>>,
    rule: Rule,
}

impl Foreign {
    /// Starts a service whose rule accepts every request.
    pub async fn start() -> Result<Self> {
        Self::start_with(|_, _| None).await
    }

    pub async fn start_with(rule: Rule) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let foreign = Self {
            url: format!("http://{}", listener.local_addr()?),
            ledger: Arc::default(),
            rule,
        };
        let app = Router::new()
            .fallback(any(answer))
            .with_state(foreign.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(foreign)
    }

    /// Queues troubles: each of the next POSTs to this path gets one of them.
    pub fn trouble(&self, path: &str, trouble: &[Trouble]) {
        let mut ledger = self.ledger();
        let queue = ledger.trouble.entry(path.to_owned()).or_default();
        queue.extend(trouble);
    }

    /// The effects of the POSTs to this path, in order.
    pub fn effects(&self, path: &str) -> Vec<Effect> {
        let effects = &self.ledger().effects;
        effects.iter().filter(|e| e.path == path).cloned().collect()
    }

    /// The number of POSTs to all paths, with or without trouble.
    pub fn requests(&self) -> usize {
        self.ledger().requests
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a GET: the id of the effect with this key, or [`NONE`].
    fn look(&self, key: &str) -> (StatusCode, String) {
        let ledger = self.ledger();
        let at = ledger.by_key.get(key);
        match at.and_then(|at| ledger.effects.get(*at)) {
            Some(effect) => (StatusCode::OK, json!({"id": effect.id}).to_string()),
            None => (StatusCode::OK, NONE.to_owned()),
        }
    }

    /// Makes the effect of a POST, unless it is refused. Returns the answer, or `None` if no answer is sent.
    fn act(&self, path: &str, key: &str, body: Value) -> Option<Response> {
        let mut ledger = self.ledger();
        ledger.requests += 1;
        let trouble = ledger.trouble.get_mut(path).and_then(VecDeque::pop_front);
        match trouble {
            Some(Trouble::Refuse(status)) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                return Some(status.into_response());
            }
            Some(Trouble::NotBefore(time)) => {
                let date = [(RETRY_AFTER, httpdate::fmt_http_date(time))];
                return Some((StatusCode::TOO_MANY_REQUESTS, date).into_response());
            }
            Some(Trouble::Late(time)) => {
                let (late, path, key) = (self.clone(), path.to_owned(), key.to_owned());
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    late.act(&path, &key, body);
                });
                return None;
            }
            Some(Trouble::NoAnswer) | None => {}
        }
        if let Some(status) = (self.rule)(path, &body) {
            return Some(status.into_response());
        }
        let at = match ledger.by_key.get(key) {
            Some(at) => *at,
            None => {
                let at = ledger.effects.len();
                ledger.effects.push(Effect {
                    id: format!("{}_{at}", path.trim_start_matches('/')),
                    path: path.to_owned(),
                    key: key.to_owned(),
                    body,
                });
                ledger.by_key.insert(key.to_owned(), at);
                at
            }
        };
        let id = ledger.effects.get(at).map(|effect| effect.id.clone());
        match trouble {
            Some(Trouble::NoAnswer) => None,
            _ => Some(json!({"id": id}).to_string().into_response()),
        }
    }
}

async fn answer(
    State(foreign): State<Foreign>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let key = headers
        .get(IDEMPOTENCY_KEY)
        .and_then(|key| key.to_str().ok());
    let Some(key) = key else {
        return (StatusCode::BAD_REQUEST, "no Idempotency-Key").into_response();
    };
    if method == Method::GET {
        return foreign.look(key).into_response();
    }
    let Ok(body) = serde_json::from_str(&body) else {
        return (StatusCode::BAD_REQUEST, "no JSON").into_response();
    };
    match foreign.act(uri.path(), key, body) {
        Some(answer) => answer,
        None => std::future::pending().await,
    }
}
