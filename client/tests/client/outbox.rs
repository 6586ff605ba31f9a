//! Events from their emit to their end, call by call, and events whose lease is lost.

use std::time::Duration;

use pg_once::{
    Batch, EmitOptions, Error, Json, Kind, NackOptions, Subscriber, SubscriberOptions, Topic,
    TopicOptions,
};

use crate::proxy::Proxy;
use crate::support::{a_year_later, code, fresh_topic, pool, pool_to, take_over_batch};

async fn emit(topic: &Topic, payload: &str, options: EmitOptions) -> i64 {
    let payload = Json::from_text(payload);
    let emitted = topic.emit(&pool(), &payload, &options).await.unwrap();
    assert!(emitted.emitted);
    emitted.event_id
}

async fn take(subscriber: &Subscriber) -> Batch {
    subscriber.take(&pool(), 10, None).await.unwrap().unwrap()
}

fn lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    let seen = (error.code(), error.kind(), error.is_retryable());
    assert_eq!(seen, (Some("ON001"), Kind::LeaseLost, false));
}

fn done_already<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    let seen = (error.code(), error.kind(), error.is_retryable());
    assert_eq!(seen, (Some("ON006"), Kind::AlreadyDone, false));
}

#[tokio::test]
async fn an_event_is_delivered_as_it_was_emitted_and_once() {
    let topic = fresh_topic().await;
    let headers = Json::from_text(r#"{"trace":  "t-1"}"#);
    let options = EmitOptions::new()
        .order_key("user 7")
        .headers(headers.clone());
    let event_id = emit(&topic, "{\"n\":  1.50}", options).await;

    let batch = take(&topic.default_subscriber()).await;
    let event = &batch.events[0];
    assert_eq!((batch.events.len(), event.event_id), (1, event_id));
    assert_eq!(
        (event.payload.as_str(), event.attempt),
        ("{\"n\":  1.50}", 1)
    );
    assert_eq!(event.order_key.as_deref(), Some("user 7"));
    assert_eq!(event.headers.as_ref(), Some(&headers));
    assert!(!event.delivery_key.is_empty());
    assert!(event.emitted_at.elapsed().unwrap() < Duration::from_secs(600));
    assert_eq!(batch.ack(&pool(), None).await.unwrap(), 1);
    // If the answer of ack was lost, the same call again raises ON006.
    done_already(batch.ack(&pool(), None).await);
    let more = topic.default_subscriber().take(&pool(), 10, None).await;
    assert_eq!(more.unwrap(), None);
}

#[tokio::test]
async fn an_event_vanishes_with_its_transaction() {
    let topic = fresh_topic().await;
    let (pool, payload) = (pool(), Json::from_text("1"));
    let mut client = pool.get().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let emitted = topic
        .emit(&transaction, &payload, &EmitOptions::new())
        .await;
    assert!(emitted.unwrap().emitted);
    transaction.rollback().await.unwrap();
    let taken = topic.default_subscriber().take(&pool, 10, None).await;
    assert_eq!(taken.unwrap(), None);
}

#[tokio::test]
async fn the_same_dedupe_key_emits_once() {
    let topic = fresh_topic().await;
    let options = EmitOptions::new().dedupe_key("welcome 7");
    let first = emit(&topic, "1", options.clone()).await;
    let again = topic.emit(&pool(), &Json::from_text("2"), &options).await;
    let again = again.unwrap();
    assert_eq!((again.emitted, again.event_id), (false, first));
    assert_eq!(take(&topic.default_subscriber()).await.events.len(), 1);
}

#[tokio::test]
async fn a_delayed_event_comes_later_and_not_with_an_order_key() {
    let topic = fresh_topic().await;
    let hour = Duration::from_secs(3600);
    emit(&topic, "1", EmitOptions::new().delay(hour)).await;
    let subscriber = topic.default_subscriber();
    assert!(subscriber.take(&pool(), 10, None).await.unwrap().is_none());
    let later = a_year_later().await;
    assert!(subscriber.take(&later, 10, None).await.unwrap().is_some());
    let both = EmitOptions::new().delay(hour).order_key("a");
    let refused = topic.emit(&pool(), &Json::from_text("1"), &both).await;
    assert_eq!(code(refused), "22023");
}

#[tokio::test]
async fn each_subscriber_gets_every_event_with_a_delivery_key_of_its_own() {
    let topic = Topic::new(&format!("two {}", uuid::Uuid::new_v4()));
    let options = TopicOptions::new().subscribers(["mails", "crm"]);
    topic.set(&pool(), &options).await.unwrap();
    emit(&topic, "1", EmitOptions::new()).await;
    let mails = take(&topic.subscriber("mails")).await;
    let crm = take(&topic.subscriber("crm")).await;
    assert_eq!(mails.events[0].event_id, crm.events[0].event_id);
    assert_ne!(mails.events[0].delivery_key, crm.events[0].delivery_key);
    let nobody = topic.subscriber("default").take(&pool(), 10, None).await;
    assert_eq!(nobody.unwrap_err().kind(), Kind::Undeclared);
}

#[tokio::test]
async fn a_failed_event_comes_again_with_the_same_delivery_key_and_its_failures_can_be_read() {
    let topic = fresh_topic().await;
    let event_id = emit(&topic, "1", EmitOptions::new()).await;
    let subscriber = topic.default_subscriber();
    let first = take(&subscriber).await;
    let options = NackOptions::new()
        .kind("refused")
        .error("503")
        .retry_after(Duration::from_secs(3600));
    let nacked = first
        .nack(&pool(), Some(&[event_id]), &options)
        .await
        .unwrap();
    assert_eq!(
        (nacked.len(), nacked[0].attempt, nacked[0].dead),
        (1, 1, false)
    );
    assert!(nacked[0].next_attempt_at.is_some());
    // If the answer of nack was lost, the same call again raises ON006.
    done_already(first.nack(&pool(), Some(&[event_id]), &options).await);
    assert!(subscriber.take(&pool(), 10, None).await.unwrap().is_none());

    let failed = subscriber.deliveries(&pool(), event_id).await.unwrap();
    let seen = (failed.len(), failed[0].attempt, failed[0].kind.as_str());
    assert_eq!(seen, (1, 1, "refused"));
    assert_eq!(failed[0].error.as_deref(), Some("503"));

    let later = a_year_later().await;
    let second = subscriber.take(&later, 10, None).await.unwrap().unwrap();
    assert_eq!(second.events[0].attempt, 2);
    assert_eq!(second.events[0].delivery_key, first.events[0].delivery_key);
    assert_eq!(second.ack(&later, None).await.unwrap(), 1);
}

#[tokio::test]
async fn a_failed_event_takes_the_later_ones_of_its_key_along_and_no_others() {
    let topic = fresh_topic().await;
    let first = emit(&topic, "1", EmitOptions::new().order_key("a")).await;
    let second = emit(&topic, "2", EmitOptions::new().order_key("a")).await;
    let subscriber = topic.default_subscriber();
    let batch = take(&subscriber).await;
    let ids: Vec<i64> = batch.events.iter().map(|event| event.event_id).collect();
    assert_eq!(ids, [first, second]);
    let failed = NackOptions::new().retry_after(Duration::from_secs(3600));
    let nacked = batch.nack(&pool(), Some(&[first]), &failed).await.unwrap();
    assert_eq!((nacked.len(), nacked[0].event_id), (1, first));
    lost(batch.ack(&pool(), Some(&[second])).await);
    assert!(subscriber.take(&pool(), 10, None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_released_event_counts_no_attempt() {
    let topic = fresh_topic().await;
    emit(&topic, "1", EmitOptions::new()).await;
    let subscriber = topic.default_subscriber();
    let batch = take(&subscriber).await;
    let nacked = batch.nack(&pool(), None, &NackOptions::released()).await;
    assert_eq!(nacked.unwrap()[0].attempt, 0);
    assert_eq!(take(&subscriber).await.events[0].attempt, 1);
}

#[tokio::test]
async fn an_event_without_attempts_left_is_dead_until_it_is_redriven() {
    let topic = fresh_topic().await;
    let subscriber = topic.default_subscriber();
    let once = SubscriberOptions::new().max_attempts(1);
    subscriber.set(&pool(), &once).await.unwrap();
    let event_id = emit(&topic, "{\"user\": 7}", EmitOptions::new()).await;
    let first = take(&subscriber).await;
    let refused = NackOptions::new().error("no such mailbox");
    let nacked = first.nack(&pool(), None, &refused).await.unwrap();
    assert!(nacked[0].dead && nacked[0].next_attempt_at.is_none());

    let dead = subscriber.dead(&pool(), 100).await.unwrap();
    let seen = (
        dead.len(),
        dead[0].event_id,
        dead[0].attempts,
        dead[0].kind.as_str(),
    );
    assert_eq!(seen, (1, event_id, 1, "error"));
    assert_eq!(dead[0].error.as_deref(), Some("no such mailbox"));
    assert_eq!(dead[0].payload.as_str(), "{\"user\": 7}");

    assert_eq!(
        subscriber
            .redrive(&pool(), 100, Some(&[event_id]))
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        subscriber
            .redrive(&pool(), 100, Some(&[event_id]))
            .await
            .unwrap(),
        0
    );
    let again = take(&subscriber).await;
    assert_eq!(again.events[0].attempt, 1);
    assert_eq!(again.events[0].delivery_key, first.events[0].delivery_key);
    again.ack(&pool(), None).await.unwrap();
    assert!(subscriber.dead(&pool(), 100).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_compensation_commits_with_the_death_that_caused_it() {
    let (topic, undo) = (fresh_topic().await, fresh_topic().await);
    emit(&topic, "7", EmitOptions::new()).await;
    let batch = take(&topic.default_subscriber()).await;
    let pool = pool();
    for commit in [false, true] {
        let mut client = pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let nacked = batch.nack(&transaction, None, &NackOptions::never()).await;
        assert!(nacked.unwrap()[0].dead);
        let refund = Json::from_text("\"undo 7\"");
        let emitted = undo.emit(&transaction, &refund, &EmitOptions::new()).await;
        assert!(emitted.unwrap().emitted);
        match commit {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        let taken = undo
            .default_subscriber()
            .take(&pool, 10, None)
            .await
            .unwrap();
        assert_eq!(taken.is_some(), commit);
    }
}

#[tokio::test]
async fn a_short_lease_stays_short_when_it_is_extended() {
    let topic = fresh_topic().await;
    emit(&topic, "1", EmitOptions::new()).await;
    let short = Duration::from_secs(2);
    let batch = topic
        .default_subscriber()
        .take(&pool(), 10, Some(short))
        .await;
    let batch = batch.unwrap().unwrap();
    assert!(batch.extend(&pool(), None).await.unwrap() <= short);
    let long = Some(Duration::from_secs(60));
    assert!(batch.extend(&pool(), long).await.unwrap() > short);
    batch.ack(&pool(), None).await.unwrap();
    done_already(batch.extend(&pool(), None).await);
}

#[tokio::test]
async fn every_write_with_a_lost_lease_is_refused() {
    let topic = fresh_topic().await;
    let event_id = emit(&topic, "1", EmitOptions::new()).await;
    let subscriber = topic.default_subscriber();
    let batch = take(&subscriber).await;
    let (_, theirs) = take_over_batch(&subscriber).await;
    assert_eq!(theirs.events[0].delivery_key, batch.events[0].delivery_key);
    assert_eq!(theirs.events[0].attempt, 2);
    lost(batch.ack(&pool(), None).await);
    lost(batch.ack(&pool(), Some(&[event_id])).await);
    lost(batch.nack(&pool(), None, &NackOptions::new()).await);
    lost(batch.extend(&pool(), None).await);
    let failed = subscriber.deliveries(&pool(), event_id).await.unwrap();
    assert_eq!(failed[0].kind, "expired");
}

#[tokio::test]
async fn an_ack_whose_answer_is_lost_is_made_again_and_says_that_it_is_done() {
    let topic = fresh_topic().await;
    emit(&topic, "1", EmitOptions::new()).await;
    let batch = take(&topic.default_subscriber()).await;
    let proxy = Proxy::start().await;
    let through = pool_to(proxy.config());
    proxy.lose_answer_to("outbox_ack");
    let error = batch.ack(&through, None).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(proxy.lost(), 1);
    done_already(batch.ack(&through, None).await);
}

#[tokio::test]
async fn options_are_set_read_and_reset() {
    let (topic, pool) = (fresh_topic().await, pool());
    let value = |json: Json| json.parse::<serde_json::Value>().unwrap();
    topic
        .set(&pool, &TopicOptions::new().lanes(4))
        .await
        .unwrap();
    assert_eq!(value(topic.get(&pool).await.unwrap())["lanes"], 4);
    topic
        .set(&pool, &TopicOptions::new().reset("lanes"))
        .await
        .unwrap();
    assert_eq!(value(topic.get(&pool).await.unwrap())["lanes"], 16);

    let subscriber = topic.default_subscriber();
    let options = SubscriberOptions::new()
        .max_attempts(3)
        .lease(Duration::from_secs(5));
    subscriber.set(&pool, &options).await.unwrap();
    assert_eq!(
        value(subscriber.get(&pool).await.unwrap())["max_attempts"],
        3
    );
    let reset = SubscriberOptions::new().reset("max_attempts");
    subscriber.set(&pool, &reset).await.unwrap();
    assert_eq!(
        value(subscriber.get(&pool).await.unwrap())["max_attempts"],
        10
    );

    subscriber.drop(&pool).await.unwrap();
    assert_eq!(
        subscriber.get(&pool).await.unwrap_err().kind(),
        Kind::Undeclared
    );
    let nobody = topic
        .emit(&pool, &Json::from_text("1"), &EmitOptions::new())
        .await;
    assert_eq!(code(nobody), "22023");
    let unknown = Topic::new("no such topic").get(&pool).await.unwrap_err();
    assert_eq!(unknown.kind(), Kind::Undeclared);
}

#[tokio::test]
async fn a_paused_subscriber_takes_nothing_and_what_is_pending_can_be_seen() {
    let (topic, pool) = (fresh_topic().await, pool());
    let subscriber = topic.default_subscriber();
    let paused = SubscriberOptions::new().paused(true);
    subscriber.set(&pool, &paused).await.unwrap();
    let event_id = emit(&topic, "{\"n\":  1}", EmitOptions::new()).await;
    assert_eq!(subscriber.take(&pool, 10, None).await.unwrap(), None);
    let pending = subscriber.peek(&pool, 10).await.unwrap();
    assert_eq!((pending.len(), pending[0].event_id), (1, event_id));
    assert_eq!(pending[0].payload.as_str(), "{\"n\":  1}");
    assert_eq!(
        (pending[0].state.as_str(), pending[0].attempt),
        ("ready", 1)
    );

    let goes_on = SubscriberOptions::new().paused(false);
    subscriber.set(&pool, &goes_on).await.unwrap();
    let batch = take(&subscriber).await;
    let pending = subscriber.peek(&pool, 10).await.unwrap();
    assert_eq!(pending[0].state, "leased");
    assert!(pending[0].due_at.is_some(), "when the lease ends");
    batch.ack(&pool, None).await.unwrap();
    assert_eq!(subscriber.peek(&pool, 10).await.unwrap(), []);
}

#[tokio::test]
async fn dead_letters_are_discarded_by_name_or_kept_for_a_time() {
    let (topic, pool) = (fresh_topic().await, pool());
    let subscriber = topic.default_subscriber();
    let day = SubscriberOptions::new().dead_for(Duration::from_secs(24 * 60 * 60));
    subscriber.set(&pool, &day).await.unwrap();
    for payload in ["1", "2"] {
        emit(&topic, payload, EmitOptions::new()).await;
    }
    let batch = take(&subscriber).await;
    let never = NackOptions::never();
    batch.nack(&pool, None, &never).await.unwrap();
    let first = batch.events[0].event_id;
    assert_eq!(subscriber.discard(&pool, &[first]).await.unwrap(), 1);
    assert_eq!(subscriber.discard(&pool, &[first]).await.unwrap(), 0);
    let dead = subscriber.dead(&pool, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].payload.as_str()), (1, "2"));
    let later = subscriber.dead(&a_year_later().await, 10).await;
    assert_eq!(later.unwrap(), []);
}
