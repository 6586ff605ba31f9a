//! Owns the HTTP requests to the bank, and the kinds of their outcomes.
//!
//! Invariant: [`Ended::NoAnswer`] does not count as refused, because the bank may have charged.

use std::time::Duration;

use pg_once::http::{is_final, retry_after};
use reqwest::StatusCode;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use serde::{Deserialize, Serialize};

/// The bank's address and abilities.
#[derive(Clone)]
pub struct Bank {
    http: reqwest::Client,
    url: String,
    /// Whether the bank makes only one charge for all requests with the same `Idempotency-Key`.
    pub dedupes: bool,
    /// Whether the bank can be asked for the charges of a reference.
    pub can_be_asked: bool,
}

/// A charge to make.
#[derive(Serialize)]
pub struct Charge<'a> {
    pub amount_cents: i64,
    pub customer: &'a str,
    pub reference: &'a str,
}

#[derive(Deserialize)]
struct Made {
    charge_id: String,
}

/// How a request for a charge ended.
pub enum Ended {
    /// The bank charged, on this request or an earlier one: the charge's id.
    Charged(String),
    /// The bank refused: it did not charge and will not.
    Refused(StatusCode),
    /// The bank may have charged: the error's text, and the wait that the bank asks for.
    NoAnswer(String, Option<Duration>),
}

impl Bank {
    pub fn new(
        url: &str,
        timeout: Duration,
        dedupes: bool,
        can_be_asked: bool,
    ) -> reqwest::Result<Self> {
        // A followed redirect would turn the POST into a GET, which charges nothing.
        let http = reqwest::Client::builder().timeout(timeout);
        let http = http.redirect(Policy::none()).build()?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            dedupes,
            can_be_asked,
        })
    }

    /// Asks for a charge.
    pub async fn charge(&self, derived_key: &str, charge: &Charge<'_>) -> Ended {
        let request = self
            .http
            .post(format!("{}/charges", self.url))
            .header("Idempotency-Key", derived_key)
            .json(charge);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                return Ended::NoAnswer(format!("the bank did not answer: {error}"), None);
            }
        };
        match response.status() {
            status if status.is_success() => match response.json::<Made>().await {
                Ok(made) => Ended::Charged(made.charge_id),
                Err(error) => {
                    Ended::NoAnswer(format!("the bank's answer broke off: {error}"), None)
                }
            },
            // 404 and 405 count as no answer. A gateway may send them, and an earlier request may have charged.
            status if is_final(status.as_u16()) && !matches!(status.as_u16(), 404 | 405) => {
                Ended::Refused(status)
            }
            status => {
                let after = response.headers().get(RETRY_AFTER).and_then(retry_after);
                Ended::NoAnswer(format!("the bank says {status}"), after)
            }
        }
    }

    /// Looks for a charge that an earlier attempt made.
    pub async fn find(&self, reference: &str) -> reqwest::Result<Option<String>> {
        let request = self
            .http
            .get(format!("{}/charges", self.url))
            .query(&[("reference", reference)]);
        let made: Vec<Made> = request.send().await?.error_for_status()?.json().await?;
        Ok(made.into_iter().next().map(|made| made.charge_id))
    }
}
