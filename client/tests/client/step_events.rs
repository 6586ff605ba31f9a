//! Events of steps, emitted when the key is completed or aborted.

use pg_once::{Batch, Json, Lease, Response, StepEvent, StepEvents, Topic};

use crate::support::{claimed, code, fresh_key, fresh_topic, pool};

fn event(topic: &Topic, payload: &str) -> StepEvent {
    StepEvent::new(topic, Json::from_text(payload)).order_key("order 7")
}

/// A lease with one step that is done and one that was only begun, each with its events.
async fn two_steps(topic: &Topic) -> Lease {
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    let refund = event(topic, "\"refund ?\"");
    lease.step_with(&pool, "charge", &refund).await.unwrap();
    let events = StepEvents::new()
        .on_complete(event(topic, "\"receipt\""))
        .on_abort(event(topic, "\"refund ch_1\""));
    let result = Json::from_text("\"ch_1\"");
    let done = lease.step_done_with(&pool, "charge", Some(&result), &events);
    assert!(done.await.unwrap().recorded);
    let cancel = event(topic, "{\"cancel\":  1.0}");
    lease.step_with(&pool, "ship", &cancel).await.unwrap();
    lease
}

async fn emitted(topic: &Topic) -> Vec<String> {
    let batch = topic
        .default_subscriber()
        .take(&pool(), 10, None)
        .await
        .unwrap();
    let events = |batch: Batch| {
        batch
            .events
            .into_iter()
            .map(|event| event.payload.into_string())
    };
    batch.map(events).into_iter().flatten().collect()
}

#[tokio::test]
async fn an_abort_emits_the_compensations_newest_first_even_of_a_call_whose_end_is_not_known() {
    let topic = fresh_topic().await;
    let lease = two_steps(&topic).await;
    assert!(emitted(&topic).await.is_empty());
    let answer = Response::new(422);
    lease.abort(&pool(), &answer).await.unwrap();
    lease.abort(&pool(), &answer).await.unwrap_err();
    assert_eq!(
        emitted(&topic).await,
        ["{\"cancel\":  1.0}", "\"refund ch_1\""]
    );
}

#[tokio::test]
async fn a_completion_emits_what_was_to_follow_and_no_compensation() {
    let topic = fresh_topic().await;
    let lease = two_steps(&topic).await;
    lease.complete(&pool(), &Response::new(201)).await.unwrap();
    assert_eq!(emitted(&topic).await, ["\"receipt\""]);
}

#[tokio::test]
async fn a_step_with_an_event_for_a_topic_that_is_not_there_does_not_begin() {
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    let nowhere = event(&Topic::new("no such topic"), "1");
    let refused = lease.step_with(&pool, "charge", &nowhere).await;
    assert_eq!(code(refused), "42704");
}
