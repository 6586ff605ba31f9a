//! Owns the events of a step, which are emitted when its key ends.
//!
//! Invariant: the payload goes into the event byte for byte. The only check is that it is one JSON
//! value, because other text could add members to the event.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::options::setters;
use crate::{Error, Json, Topic};

/// An event of a step, to be emitted when the key ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct StepEvent {
    topic: Topic,
    payload: Json,
    order_key: Option<String>,
}

/// The events that go with a step's end, for [`Lease::step_done_with`](crate::Lease::step_done_with).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct StepEvents {
    pub(super) on_complete: Option<StepEvent>,
    pub(super) on_abort: Option<StepEvent>,
}

/// The document that the server reads.
#[derive(Serialize)]
struct Wire<'a> {
    topic: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_key: Option<&'a str>,
}

impl StepEvent {
    setters! {
        /// Its order key: see [`EmitOptions::order_key`](crate::EmitOptions::order_key).
        order_key: impl Into<String>,
    }

    /// An event of this topic.
    pub fn new(topic: &Topic, payload: Json) -> Self {
        Self {
            topic: topic.clone(),
            payload,
            order_key: None,
        }
    }

    pub(super) fn to_json(&self) -> Result<Json, Error> {
        Json::of(&Wire {
            topic: self.topic.as_str(),
            payload: serde_json::from_str(self.payload.as_str())?,
            order_key: self.order_key.as_deref(),
        })
    }
}

impl StepEvents {
    setters! {
        /// Emitted when the key is completed.
        on_complete: StepEvent,
        /// Emitted when the key is aborted, instead of the event of [`Lease::step_with`](crate::Lease::step_with).
        on_abort: StepEvent,
    }

    /// No events.
    pub fn new() -> Self {
        Self::default()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/step_event.rs"]
mod tests;
