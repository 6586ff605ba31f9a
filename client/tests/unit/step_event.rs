//! Unit tests of src/key/step_event.rs.

#![allow(clippy::unwrap_used)] // a test may panic

use super::*;

#[test]
fn a_payload_stays_as_it_is_written_and_cannot_become_another_member() {
    let topic = Topic::new("a \"topic\"");
    let event = |payload| StepEvent::new(&topic, Json::from_text(payload));
    let json = event("{\"n\":  1.50}").order_key("7").to_json().unwrap();
    let expected = r#"{"topic":"a \"topic\"","payload":{"n":  1.50},"order_key":"7"}"#;
    assert_eq!(json.as_str(), expected);
    assert!(event(r#"1,"topic":"another""#).to_json().is_err());
    let plain = event("null").to_json().unwrap();
    assert_eq!(plain.as_str(), r#"{"topic":"a \"topic\"","payload":null}"#);
}
