//! Owns how a request and a response are stored: in the form of the Python package's middleware.

use std::fmt::Write;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{Done, Failure, Json};

/// A stored header of ours: the body is no JSON.
pub(super) const BASE64: &str = "pg-once-base64";
/// Answers that do not tell how the next attempt at the same request ends.
const NOT_FINAL: [StatusCode; 6] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
];
/// Of one response and not of the answer.
const NOT_STORED: [HeaderName; 5] = [
    header::SET_COOKIE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::DATE,
];

/// What must be equal in a retry. A body that is JSON is compared as JSON, any other by its hash.
pub(super) fn request(request: &Request<Bytes>) -> Json {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let target = json!([request.method().as_str(), uri.path(), query]);
    Json::from_text(match json_of(request.body()) {
        Some(body) => format!(r#"{{"target": {target}, "body": {body}}}"#),
        None => {
            let mut hash = String::new();
            for byte in Sha256::digest(request.body()) {
                // A String takes all that is written.
                let _ = write!(hash, "{byte:02x}");
            }
            format!(r#"{{"target": {target}, "sha256": "{hash}"}}"#)
        }
    })
}

/// What a response of the handler's own means for the key.
pub(super) fn end_of(response: &Response<Bytes>) -> Result<Done, Failure> {
    let status = response.status();
    if status.is_server_error() || NOT_FINAL.contains(&status) {
        let after = response.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
        return Err(Failure::Retry {
            error: format!("the handler answered {status}"),
            retry_after: after.map(Duration::from_secs),
        });
    }
    let answer = answer(response);
    match status.is_client_error() {
        true => Err(Failure::Abort(answer)),
        false => Ok(Done::Answer(answer)),
    }
}

fn answer(response: &Response<Bytes>) -> crate::Response {
    let mut headers = Map::new();
    for name in response.headers().keys() {
        if !NOT_STORED.contains(name) {
            let values = response.headers().get_all(name).iter();
            let values: Vec<_> = values
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            headers.insert(name.to_string(), values.join(", ").into());
        }
    }
    let body = response.body();
    let body = match json_of(body) {
        Some(text) => Some(Json::from_text(text)),
        None if body.is_empty() => None,
        None => {
            headers.insert(BASE64.to_owned(), "1".into());
            Some(Value::from(BASE64_STANDARD.encode(body)).into())
        }
    };
    crate::Response {
        code: response.status().as_u16().into(),
        body,
        headers: Some(Value::from(headers).into()),
    }
}

/// The text of a body that is JSON, and that a jsonb can hold.
fn json_of(body: &Bytes) -> Option<&str> {
    let text = str::from_utf8(body).ok()?;
    let is_json = serde_json::from_str::<Value>(text).is_ok();
    Some(text).filter(|text| is_json && !text.contains(r"\u0000"))
}
