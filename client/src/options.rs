//! Owns the wire form of options: one JSON object with the named options, and nothing else.
//!
//! Invariant: an option that was not named is not sent, so setting one never changes another.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Error, Json};

/// Options by name; `null` resets one.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Options(Map<String, Value>);

impl Options {
    pub(crate) fn with(mut self, option: &str, value: Value) -> Self {
        self.0.insert(option.to_owned(), value);
        self
    }

    /// The text form is exact to the microsecond and the same under every `IntervalStyle`.
    pub(crate) fn interval(self, option: &str, length: Duration) -> Self {
        self.with(
            option,
            format!("{} microseconds", length.as_micros()).into(),
        )
    }

    pub(crate) fn reset(self, option: &str) -> Self {
        self.with(option, Value::Null)
    }

    pub(crate) fn to_json(&self) -> Result<Json, Error> {
        Json::of(self)
    }
}
