//! Owns the HTTP requests to a foreign service, and the kinds of their outcomes.
//!
//! Invariant: a request without an answer does not count as refused, because the other side may have acted.

use std::time::Duration;

use pg_once::http::{IDEMPOTENCY_KEY, is_final, retry_after};
use pg_once::{Event, Failure, Response, Undelivered};
use reqwest::StatusCode;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use serde_json::json;

/// How long a foreign service may take.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Http {
    client: reqwest::Client,
    url: String,
}

/// How a request ended.
pub enum Ended {
    /// Done, by this request or an earlier one with the same key: the answer's body.
    Done(String),
    /// An error status (after a 5xx the request may have been done), and the wait of `Retry-After`, if any.
    Refused(StatusCode, Option<Duration>),
    /// The outcome is unknown: the kind (`timeout` or `transport`), and the error's text.
    NoAnswer(&'static str, String),
}

impl Http {
    pub fn new(url: &str) -> reqwest::Result<Self> {
        // A followed redirect would turn a POST into a GET, whose answer does not show that anything was done.
        let client = reqwest::Client::builder().timeout(TIMEOUT);
        let client = client.redirect(Policy::none()).build()?;
        Ok(Self {
            client,
            url: url.to_owned(),
        })
    }

    /// Posts a body, byte for byte, with the key by which the other side dedupes.
    pub async fn post(&self, path: &str, key: &str, body: impl Into<String>) -> Ended {
        let request = self
            .client
            .post(format!("{}{path}", self.url))
            .header(IDEMPOTENCY_KEY, key)
            .header("Content-Type", "application/json")
            .body(body.into());
        ended(request).await
    }

    /// Asks what was made with a key.
    pub async fn look(&self, path: &str, key: &str) -> Ended {
        let request = self.client.get(format!("{}{path}", self.url));
        ended(request.header(IDEMPOTENCY_KEY, key)).await
    }
}

async fn ended(request: reqwest::RequestBuilder) -> Ended {
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_timeout() => {
            return Ended::NoAnswer("timeout", error.to_string());
        }
        Err(error) => return Ended::NoAnswer("transport", error.to_string()),
    };
    let status = response.status();
    if !status.is_success() {
        let after = response.headers().get(RETRY_AFTER).and_then(retry_after);
        return Ended::Refused(status, after);
    }
    match response.text().await {
        Ok(body) => Ended::Done(body),
        Err(error) => Ended::NoAnswer("transport", error.to_string()),
    }
}

impl Ended {
    /// Converts into the result of a step's call. The service dedupes, so a call without an answer may be retried.
    pub fn of_step(self, step: &str) -> Result<String, Failure> {
        let (error, retry_after) = match self {
            Self::Done(body) => return Ok(body),
            Self::Refused(status, _) if is_final(status.as_u16()) => {
                let title = json!({"title": format!("refused: {step}"), "status": status.as_u16()});
                return Err(Failure::Abort(Response::new(422).with_body(&title)?));
            }
            Self::Refused(status, after) => (format!("{step}: {status}"), after),
            Self::NoAnswer(_, error) => (format!("{step}: {error}"), None),
        };
        Err(Failure::Retry { error, retry_after })
    }

    /// Converts into the result of an event's delivery. Only a status in `final_ones` makes the event dead at once.
    pub fn of_event(self, event: &Event, final_ones: &[StatusCode]) -> Result<String, Undelivered> {
        match self {
            Self::Done(body) => Ok(body),
            Self::Refused(status, _) if final_ones.contains(&status) => {
                Err(Undelivered::never(format!("refused for good: {status}")))
            }
            Self::Refused(status, Some(after)) => {
                Err(Undelivered::retry_after("refused", status, after))
            }
            Self::Refused(status, None) => Err(Undelivered::retry("refused", status)),
            Self::NoAnswer(kind, error) => {
                tracing::info!(event.event_id, event.attempt, kind, "no answer; once more");
                Err(Undelivered::retry(kind, error))
            }
        }
    }
}
