//! Owns the way from answers to HTTP responses, and of a handler's result through a response to the runner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;

use super::stored::BASE64;
use crate::http::Answer;
use crate::{Done, Failure, Json};

/// A handler's result, in the extensions of its response, which must be cloneable.
#[derive(Clone)]
struct Said(Arc<Mutex<Option<Result<Done, Failure>>>>);

/// Takes the handler's result out of its response.
pub(super) fn said<R>(response: &mut Response<R>) -> Option<Result<Done, Failure>> {
    let Said(said) = response.extensions_mut().remove()?;
    said.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The response with its whole body.
pub(super) async fn whole<R: http_body::Body>(
    response: Response<R>,
) -> Result<Response<Bytes>, Failure> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await;
    let body = body.map_err(|_| Failure::retry("the handler's answer broke off"))?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

impl Answer {
    /// As it is sent: a stored body byte for byte, or a problem document.
    pub(super) fn into_http<R: From<Bytes>>(self) -> Response<R> {
        let mut headers = headers_of(self.stored_headers.as_ref());
        let encoded = headers.remove(BASE64).is_some();
        let (kind, body) = match (self.problem, self.body) {
            (Some(title), _) => (
                "application/problem+json",
                json!({"title": title}).to_string().into(),
            ),
            (None, Some(body)) => ("application/json", bytes_of(body, encoded)),
            (None, None) => ("", Bytes::new()),
        };
        if !body.is_empty() && !headers.contains_key(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        let ours = self.headers.into_iter();
        headers.extend(ours.filter_map(|(name, value)| header(name, &value)));
        let mut response = Response::new(R::from(body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        *response.headers_mut() = headers;
        response
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response<Body> {
        self.into_http()
    }
}

impl IntoResponse for Done {
    fn into_response(self) -> Response<Body> {
        let (Self::Answer(answer) | Self::Stored(answer)) = &self;
        saying(Answer::given(answer), Ok(self))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response<Body> {
        saying(Answer::of_failure(&self), Err(self))
    }
}

fn saying(answer: Answer, result: Result<Done, Failure>) -> Response<Body> {
    let mut response = answer.into_http();
    let said = Said(Arc::new(Mutex::new(Some(result))));
    response.extensions_mut().insert(said);
    response
}

/// Stored headers: an object, or pairs.
fn headers_of(stored: Option<&Json>) -> HeaderMap {
    let Some(stored) = stored else {
        return HeaderMap::new();
    };
    let pairs = stored.parse::<BTreeMap<String, String>>();
    let pairs = pairs.map(|object| object.into_iter().collect());
    let pairs: Vec<_> = pairs.or_else(|_| stored.parse()).unwrap_or_else(|error| {
        tracing::warn!(%error, "stored headers that are neither an object of strings nor pairs of them");
        Vec::new()
    });
    let valid = pairs.iter().filter_map(|(name, value)| header(name, value));
    valid.collect()
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let header = (name.parse().ok()?, value.parse().ok()?);
    Some(header)
}

fn bytes_of(body: Json, encoded: bool) -> Bytes {
    let decoded = encoded
        .then(|| BASE64_STANDARD.decode(body.parse::<String>().ok()?).ok())
        .flatten();
    decoded
        .unwrap_or_else(|| body.into_string().into_bytes())
        .into()
}
