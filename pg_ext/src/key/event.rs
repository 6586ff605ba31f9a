//! Events of steps. A step registers `{"topic": …, "payload": …, "order_key": …}`; the write that finishes the key
//! emits the event in the same transaction. `on_complete` events are emitted in the order in which the steps ended,
//! `on_abort` events in the reverse of the order in which the steps began.
//!
//! The topic and the caller's right to it are checked when the event is registered. Another role may finish the key
//! much later, and finishing must not fail because of the topic. If the topic or all its subscribers were dropped
//! meanwhile, the event is discarded with a WARNING. The column `emits` is false for keys without events, so finishing
//! them reads no steps.

use super::identity::KeyId;
use super::record::{KeyStatus, id_datum};
use super::step::{self, Col};
use crate::call::{Call, KEY_MAX, SCOPE_MAX, characters, shown, varlena};
use crate::error::{Error, Result};
use crate::json::{self, Members};
use crate::outbox::emit::{self, Emission};
use crate::outbox::topic::Topic;
use crate::raise::warn;
use crate::row;
use crate::table::{ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;
use std::borrow::Cow;

const HINT: &str =
    "Give {\"topic\": ..., \"payload\": ...} and, where order matters, an \"order_key\".";

/// One event that a call registers.
pub struct StepEvent<'a> {
    argument: &'static str,
    /// The document, byte for byte.
    pub json: Datum,
    topic: Cow<'a, [u8]>,
    /// The payload, byte for byte.
    payload: &'a [u8],
    order_key: Option<Cow<'a, [u8]>>,
}

impl<'a> StepEvent<'a> {
    /// Reads argument `i`; None for NULL. Raises 22023, which names `argument`, for a wrong document.
    pub fn from_call(
        call: &Call,
        i: usize,
        argument: &'static str,
    ) -> Result<Option<StepEvent<'a>>> {
        call.datum(i)
            .map(|json| StepEvent::read(json, argument))
            .transpose()
    }

    fn read(json: Datum, argument: &'static str) -> Result<StepEvent<'a>> {
        let bad = |problem: &str| Error::bad_argument(argument, problem, HINT);
        let members = Members::of(varlena(json)).ok_or_else(|| bad("must be a JSON object"))?;
        let (mut topic, mut payload, mut order_key) = (None, None, None);
        for (name, value) in members {
            let name = json::string(name).unwrap_or_default();
            let twice = match name.as_ref() {
                b"topic" => topic
                    .replace(text(value, SCOPE_MAX, "topic", bad)?)
                    .is_some(),
                b"payload" => payload.replace(value).is_some(),
                b"order_key" if value == b"null" => order_key.replace(None).is_some(),
                b"order_key" => {
                    let key = text(value, KEY_MAX, "order_key", bad)?;
                    order_key.replace(Some(key)).is_some()
                }
                other => return Err(bad(&format!("has an unknown member \"{}\"", shown(other)))),
            };
            if twice {
                return Err(bad(&format!("names member \"{}\" twice", shown(&name))));
            }
        }
        Ok(StepEvent {
            argument,
            json,
            topic: topic.ok_or_else(|| bad("has no member \"topic\""))?,
            payload: payload.ok_or_else(|| bad("has no member \"payload\""))?,
            order_key: order_key.flatten(),
        })
    }

    /// Whether the stored document is this event's.
    pub fn is(&self, stored: Option<Datum>) -> bool {
        stored.map(varlena) == Some(varlena(self.json))
    }

    /// Checks that the topic exists and has subscribers, and that the caller may use it.
    pub fn ensure_open(&self) -> Result<()> {
        let topic = Topic::named(&self.topic)?;
        match topic.subscribers {
            0 => Err(Error::bad_argument(
                self.argument,
                format!(
                    "names topic \"{}\", which has no subscribers",
                    shown(&self.topic)
                ),
                "Add a subscriber with once.subscriber_set, or no worker ever gets the event.",
            )),
            _ => Ok(()),
        }
    }

    fn emit(&self) -> Result<()> {
        let emitted = emit::emit_registered(
            &self.topic,
            &Emission::plain(row::text(self.payload), self.order_key.as_deref()),
        )?;
        if emitted.is_none() {
            warn(
                format!(
                    "an event that a step registered for topic \"{}\" is not emitted: the topic is gone or has no subscribers",
                    shown(&self.topic)
                ),
                "The topic, or its subscribers, were dropped after the step had registered the event.",
            );
        }
        Ok(())
    }
}

/// A JSON string of 1 to `max` characters.
fn text<'a>(
    value: &'a [u8],
    max: usize,
    member: &str,
    bad: impl Fn(&str) -> Error,
) -> Result<Cow<'a, [u8]>> {
    json::string(value)
        .filter(|text| !text.is_empty() && characters(text) <= max)
        .ok_or_else(|| {
            bad(&format!(
                "must have a text of 1 to {max} characters as \"{member}\""
            ))
        })
}

/// Emits the events that the steps of a key have registered for this status. The caller has locked the key's row. Reads
/// the latest committed steps: a snapshot from before the lock can miss a step without raising 40001.
pub fn emit_all(id: KeyId, end: KeyStatus) -> Result<()> {
    let (argument, document, place) = match end {
        KeyStatus::Completed => ("on_complete", Col::OnComplete, Col::DoneNo),
        KeyStatus::Aborted => ("on_abort", Col::OnAbort, Col::BegunNo),
        _ => return Ok(()),
    };
    let snapshot = Snapshot::latest();
    let table = Table::to_read(step::TABLE)?;
    let keys = &mut [ScanKey::uuid(1, id_datum(&id))];
    let mut scan = table.scan(step::BY_STEP, keys, &snapshot)?;
    let mut events = Vec::new();
    while let Some(slot) = scan.advance() {
        let step = step::StepRow::borrow(slot);
        if let Some(json) = step.raw(document) {
            events.push((step.i32(place), row::copied(json)));
        }
    }
    drop(scan);
    events.sort_by_key(|(place, _)| *place);
    if end == KeyStatus::Aborted {
        events.reverse();
    }
    for (_, json) in events {
        StepEvent::read(json, argument)?.emit()?;
    }
    Ok(())
}
