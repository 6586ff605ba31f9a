//! Owns the events of a step. They are emitted when the step's key is completed or aborted.
//!
//! Invariant: the event contains the payload byte for byte. `to_json` checks only that the payload is one JSON value.
//! Without this check the text `1, "topic": "another"` would add a second member `topic` to the event.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::options::setters;
use crate::{Error, Json, Topic};

/// An event of a step, to be emitted when the step's key is completed or aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct StepEvent {
    topic: Topic,
    payload: Json,
    order_key: Option<String>,
}

/// The events that [`Lease::step_done_with`](crate::Lease::step_done_with) registers with a step's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct StepEvents {
    pub(super) on_complete: Option<StepEvent>,
    pub(super) on_abort: Option<StepEvent>,
}

/// An event in the form in which the server reads it.
#[derive(Serialize)]
struct Wire<'a> {
    topic: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_key: Option<&'a str>,
}

impl StepEvent {
    setters! {
        /// The event's order key: see [`EmitOptions::order_key`](crate::EmitOptions::order_key).
        order_key: impl Into<String>,
    }

    /// Makes an event of this topic.
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
