//! Owns the stored form of requests and responses, and how a stored response is sent again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use axum_core::response::IntoResponse;
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::http::{Answer, RETRY_AFTER, is_final, retry_after};
use crate::{Done, Failure, Json, Outcome};

/// The header that marks a stored body as base64; the header itself is never sent.
const BASE64: &str = "pg-once-base64";
/// A response extension with the handler's result. Extensions must be `Clone`; `Outcome` is not, hence the `Arc`.
#[derive(Clone)]
struct Said(Arc<Mutex<Option<Outcome>>>);

/// The parts of a request that must be equal in a retry.
pub(super) fn request(request: &Request<Bytes>) -> Json {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let target = json!([request.method().as_str(), uri.path(), query]);
    let (name, body) = match json_of(request.body()) {
        Ok(body) => ("body", body),
        Err(base64) => ("base64", base64),
    };
    Json::from_text(format!(r#"{{"target": {target}, "{name}": {body}}}"#))
}

/// How the key ends, and the response. The response is `None` for a `Done`, a `Failure` or a body that broke off.
pub(super) async fn end_of<R: Body>(
    mut response: Response<R>,
) -> (Result<Done, Failure>, Option<Response<Bytes>>) {
    let said = response.extensions_mut().remove::<Said>();
    match said.and_then(|Said(said)| said.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        Some(Outcome::Ran(answer)) => return (Ok(Done::Stored(answer)), None),
        Some(Outcome::Unkeyed(end)) => return (end.map(Done::Answer), None),
        _ => {}
    }
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return (Err(Failure::retry("the handler's answer broke off")), None);
    };
    let response = Response::from_parts(parts, body.to_bytes());
    let status = response.status();
    let end = if is_final(status.as_u16()) {
        Err(Failure::Abort(stored(&response)))
    } else if status.is_client_error() || status.is_server_error() {
        Err(Failure::Retry {
            error: format!("the handler answered {status}"),
            retry_after: response.headers().get(RETRY_AFTER).and_then(retry_after),
        })
    } else {
        Ok(Done::Answer(stored(&response)))
    };
    (end, Some(response))
}

fn stored(response: &Response<Bytes>) -> crate::Response {
    let mut headers = BTreeMap::<&str, String>::new();
    for (name, value) in response.headers().iter().filter(|h| h.0 != SET_COOKIE) {
        let value = String::from_utf8_lossy(value.as_bytes());
        let values = headers
            .entry(name.as_str())
            .and_modify(|v| v.push_str(", "));
        values.or_default().push_str(&value);
    }
    let body = json_of(response.body()).unwrap_or_else(|base64| {
        headers.insert(BASE64, "1".to_owned());
        base64
    });
    crate::Response {
        code: response.status().as_u16().into(),
        body: Some(body).filter(|_| !response.body().is_empty()),
        headers: Some(json!(headers).into()),
    }
}

/// The body if it is JSON that a jsonb can hold; otherwise (`Err`) the body in base64.
fn json_of(body: &Bytes) -> Result<Json, Json> {
    let text = str::from_utf8(body).unwrap_or_default();
    if serde_json::from_str::<Value>(text).is_ok() && !text.contains(r"\u0000") {
        return Ok(Json::from_text(text));
    }
    Err(Value::from(BASE64_STANDARD.encode(body)).into())
}

impl Answer {
    /// Makes the HTTP response: a stored body byte for byte, or a problem document. If the stored headers are no JSON
    /// object, or if one name or value is invalid, none of them is sent.
    pub(super) fn into_http<B: From<Bytes>>(self) -> Response<B> {
        let stored = self.stored_headers.as_ref().and_then(|stored| {
            let stored = stored.parse::<HashMap<String, String>>().ok()?;
            HeaderMap::try_from(&stored).ok()
        });
        let mut headers = stored.unwrap_or_default();
        let (kind, body) = match (self.problem, self.body) {
            (Some(title), _) => (
                "application/problem+json",
                json!({"title": title}).to_string(),
            ),
            (None, body) => (
                "application/json",
                body.map(Json::into_string).unwrap_or_default(),
            ),
        };
        let body = match headers.remove(BASE64) {
            Some(_) => BASE64_STANDARD.decode(body.trim_matches('"')),
            None => Ok(body.into_bytes()),
        };
        let body = body.unwrap_or_default();
        if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        for (name, value) in self.headers {
            if let Ok(value) = value.try_into() {
                headers.insert(name, value);
            }
        }
        let mut response = Response::new(B::from(body.into()));
        let status = StatusCode::from_u16(self.status);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.headers_mut() = headers;
        response
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> axum_core::response::Response {
        self.into_http()
    }
}

impl IntoResponse for Done {
    fn into_response(self) -> axum_core::response::Response {
        saying(match self {
            Self::Answer(answer) => Outcome::Unkeyed(Ok(answer)),
            Self::Stored(answer) => Outcome::Ran(answer),
        })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> axum_core::response::Response {
        saying(Outcome::Unkeyed(Err(self)))
    }
}

fn saying(outcome: Outcome) -> axum_core::response::Response {
    let mut response = Answer::of(&outcome).into_response();
    let said = Said(Arc::new(Mutex::new(Some(outcome))));
    response.extensions_mut().insert(said);
    response
}
