//! Unit tests of src/run/outbox/chain.rs.

use super::*;
use crate::Json;
use std::time::SystemTime;

fn event(event_id: i64, order_key: Option<&str>) -> Event {
    Event {
        token: 1,
        event_id,
        attempt: 1,
        delivery_key: event_id.to_string(),
        order_key: order_key.map(str::to_owned),
        payload: Json::from_text("null"),
        headers: None,
        emitted_at: SystemTime::UNIX_EPOCH,
        shard: None,
    }
}

#[test]
fn events_of_a_key_are_one_chain_in_their_order_and_the_others_are_chains_of_their_own() {
    let events = vec![
        event(1, Some("a")),
        event(2, None),
        event(3, Some("b")),
        event(4, Some("a")),
        event(5, None),
    ];
    let ids: Vec<Vec<i64>> = chains_of(events)
        .iter()
        .map(|chain| chain.iter().map(|event| event.event_id).collect())
        .collect();
    assert_eq!(ids, [vec![1, 4], vec![2], vec![3], vec![5]]);
}
