//! A request to the world outside, over HTTP.
//!
//! Invariant: an error never says that nothing happened there; the answer may only have been lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

#[derive(Clone)]
pub struct Caller {
    http: Client<HttpConnector, Full<Bytes>>,
    url: String,
    timeout: Duration,
}

impl Caller {
    pub fn new(url: &str, timeout: Duration) -> Self {
        Self {
            http: Client::builder(TokioExecutor::new()).build_http(),
            url: url.trim_end_matches('/').to_owned(),
            timeout,
        }
    }

    /// Posts JSON, with an Idempotency-Key where there is one; tells the answer's body.
    pub async fn post(&self, path: &str, key: Option<&str>, body: String) -> Result<Value> {
        let mut request =
            Request::post(format!("{}{path}", self.url)).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::from(body))?;
        let exchange = async {
            let answer = self.http.request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            ensure!(status.is_success(), "the other side says {status}");
            Ok(serde_json::from_slice(&body)?)
        };
        tokio::time::timeout(self.timeout, exchange)
            .await
            .context("the other side does not answer")?
    }
}
