//! Owns the stored answer of a finished key.

use serde::Serialize;
use serde::de::Deserialize;

use super::column;
use crate::{Error, Json, Row};

/// An answer: the first run gives it, and every replay returns it.
///
/// ```
/// # fn main() -> Result<(), pg_once::Error> {
/// use pg_once::Response;
/// use serde_json::json;
///
/// let answer = Response::new(201).with_body(&["made"])?.with_headers(&json!({"Location": "/orders/1"}))?;
/// assert_eq!(answer.code, 201);
/// assert_eq!(answer.parse::<Vec<String>>()?, ["made"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Response {
    /// The code; for HTTP, the status.
    pub code: i32,
    /// The body, if there is one.
    pub body: Option<Json>,
    /// Headers to send with the answer, if any, in a form that the caller chooses. The feature `axum` sends them only
    /// if they are an object of strings.
    pub headers: Option<Json>,
}

impl Response {
    /// Makes an answer without body and headers.
    pub const fn new(code: i32) -> Self {
        Self {
            code,
            body: None,
            headers: None,
        }
    }

    /// The same answer with this body.
    ///
    /// # Errors
    /// [`Error::Json`] if the body cannot be written as JSON.
    pub fn with_body<T: Serialize + ?Sized>(self, body: &T) -> Result<Self, Error> {
        Ok(Self {
            body: Some(Json::of(body)?),
            ..self
        })
    }

    /// The same answer with these headers.
    ///
    /// # Errors
    /// [`Error::Json`] if the headers cannot be written as JSON.
    pub fn with_headers<T: Serialize + ?Sized>(self, headers: &T) -> Result<Self, Error> {
        Ok(Self {
            headers: Some(Json::of(headers)?),
            ..self
        })
    }

    /// Reads the body as a `T`; an answer without a body reads as JSON `null`.
    ///
    /// # Errors
    /// [`Error::Json`] if the body is no `T`.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        let body = self.body.as_ref().map_or("null", Json::as_str);
        Ok(serde_json::from_str(body)?)
    }

    pub(super) fn of_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            code: column(row, "response_code")?,
            body: column(row, "response_body")?,
            headers: column(row, "response_headers")?,
        })
    }
}
