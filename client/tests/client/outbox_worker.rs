//! The outbox worker delivers every event, also after failures, and keeps the order of events with one order key.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use pg_once::{
    Acked, Backoff, Begin, Claim, ClaimOptions, Deliver, EmitOptions, Error, Event, Json, Key,
    Kind, OpenTransaction, OutboxWorker, Response, StepEvent, Subscriber, SubscriberOptions, Topic,
    Undelivered, Waker,
};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::types::Type;

use crate::proxy::{Cut, Proxy};
use crate::support::{
    Pool, QUICK, Stalling, a_year_later, begun, claimed, fresh_key, fresh_topic, named_pool, pool,
    pool_to, take_over_batch, until, until_idle,
};

/// The events that a handler got, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Seen {
    fn add(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    fn payloads(&self) -> Vec<String> {
        let events = self.0.lock().unwrap();
        events
            .iter()
            .map(|event| event.payload.to_string())
            .collect()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until the handler got this number of events.
    async fn until(&self, deliveries: usize) {
        until(|| self.len() >= deliveries).await;
    }

    /// A handler that calls `handle` for each event, then records the event.
    fn noting<F>(&self, handle: F) -> Noting<F> {
        Noting(self.clone(), handle)
    }
}

struct Noting<F>(Seen, F);

impl<F, Fut> Deliver for Noting<F>
where
    F: Fn(Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Undelivered>> + Send,
{
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let ended = (self.1)(event.clone()).await;
        self.0.add(event.clone());
        ended.map(Acked::from)
    }
}

async fn fine(_: Event) -> Result<(), Undelivered> {
    Ok(())
}

async fn emit(topic: &Topic, payload: impl std::fmt::Display, options: &EmitOptions) -> i64 {
    let payload = Json::from_text(payload.to_string());
    topic
        .emit(&pool(), &payload, options)
        .await
        .unwrap()
        .event_id
}

fn worker(topic: &Topic) -> OutboxWorker<Pool> {
    let worker = topic.default_subscriber().worker(&pool());
    worker.backoff(QUICK).poll_every(Duration::from_millis(50))
}

/// Limits the attempts, and makes failed events due again almost at once.
async fn eager(topic: &Topic, max_attempts: i32) {
    let options = SubscriberOptions::new()
        .max_attempts(max_attempts)
        .backoff_base(Duration::from_millis(1))
        .backoff_cap(Duration::from_millis(2));
    topic
        .default_subscriber()
        .set(&pool(), &options)
        .await
        .unwrap();
}

/// Asserts that a take a year later finds nothing.
async fn assert_nothing_left(topic: &Topic) {
    let later = a_year_later().await;
    let left = topic
        .default_subscriber()
        .take(&later, 10, None)
        .await
        .unwrap();
    assert_eq!(left, None);
}

#[tokio::test]
async fn every_event_is_delivered_once_and_the_worker_ends_when_it_is_told() {
    let topic = fresh_topic().await;
    for n in 0..50 {
        emit(&topic, n, &EmitOptions::new()).await;
    }
    let seen = Seen::default();
    let handler = seen.noting(fine);
    let delivered = worker(&topic)
        .batch(7)
        .run(seen.until(50), handler)
        .await
        .unwrap();
    assert_eq!(
        (delivered.delivered, delivered.failed, delivered.lost),
        (50, 0, 0)
    );
    let mut numbers: Vec<i32> = seen.payloads().iter().map(|n| n.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert_nothing_left(&topic).await;
}

#[tokio::test]
async fn events_of_a_key_go_one_after_another_and_different_keys_at_the_same_time() {
    let topic = fresh_topic().await;
    for n in 0..10 {
        for key in ["a", "b", "c"] {
            let payload = format!("\"{key}{n}\"");
            emit(&topic, payload, &EmitOptions::new().order_key(key)).await;
        }
    }
    let seen = Seen::default();
    let at_work: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let most = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
        seen.noting(move |event: Event| {
            let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
            async move {
                let key = event.order_key.clone().unwrap();
                {
                    let mut at_work = at_work.lock().unwrap();
                    *at_work.entry(key.clone()).or_default() += 1;
                    assert_eq!(at_work[&key], 1, "two of one key at the same time");
                    most.fetch_max(at_work.values().sum(), Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                *at_work.lock().unwrap().get_mut(&key).unwrap() -= 1;
                Ok(())
            }
        })
    };
    let delivered = worker(&topic).run(seen.until(30), handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.failed), (30, 0));
    for key in ["a", "b", "c"] {
        let of_key: Vec<String> = seen
            .payloads()
            .into_iter()
            .filter(|p| p.contains(key))
            .collect();
        let in_order: Vec<String> = (0..10).map(|n| format!("\"{key}{n}\"")).collect();
        assert_eq!(of_key, in_order);
    }
    assert!(
        most.load(Ordering::SeqCst) > 1,
        "nothing went at the same time"
    );
}

#[tokio::test]
async fn no_more_handlers_run_at_a_time_than_were_asked_for_and_no_more_is_taken_than_they_need() {
    let topic = fresh_topic().await;
    for n in 0..20 {
        emit(&topic, n, &EmitOptions::new()).await;
    }
    let (gate, seen, at_work) = (
        Arc::new(Semaphore::new(0)),
        Seen::default(),
        Arc::new(AtomicUsize::new(0)),
    );
    let handler = {
        let (gate, at_work) = (Arc::clone(&gate), Arc::clone(&at_work));
        seen.noting(move |_| {
            let (gate, at_work) = (Arc::clone(&gate), Arc::clone(&at_work));
            async move {
                assert!(at_work.fetch_add(1, Ordering::SeqCst) < 3);
                gate.acquire().await.unwrap().forget();
                at_work.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        })
    };
    let shutdown = async {
        until(|| at_work.load(Ordering::SeqCst) == 3).await;
        // The worker has a batch of five events: three are in handlers, two wait. Another take gets the other 15.
        let others = topic.default_subscriber().take(&pool(), 100, None).await;
        let others = others.unwrap().unwrap();
        assert_eq!(others.events.len(), 15);
        others.ack(&pool(), None).await.unwrap();
        gate.add_permits(20);
        seen.until(5).await;
    };
    let delivered = worker(&topic)
        .concurrency(3)
        .batch(5)
        .run(shutdown, handler)
        .await;
    assert_eq!(delivered.unwrap().delivered, 5);
}

#[tokio::test]
async fn a_failed_event_is_tried_again_with_the_same_delivery_key_before_those_behind_it() {
    let topic = fresh_topic().await;
    eager(&topic, 10).await;
    for n in 1..=3 {
        emit(&topic, n, &EmitOptions::new().order_key("a")).await;
    }
    let seen = Seen::default();
    let handler = seen.noting(|event: Event| async move {
        match event.payload.as_str() == "1" && event.attempt < 3 {
            true => Err(Undelivered::retry("timeout", "no answer")),
            false => Ok(()),
        }
    });
    let delivered = worker(&topic).run(seen.until(5), handler).await.unwrap();
    assert_eq!(
        (delivered.delivered, delivered.failed, delivered.lost),
        (3, 2, 0)
    );
    assert_eq!(seen.payloads(), ["1", "1", "1", "2", "3"]);
    let events = seen.0.lock().unwrap();
    assert_eq!(events[0].delivery_key, events[2].delivery_key);
    assert_eq!((events[2].attempt, events[3].attempt), (3, 1));
}

#[tokio::test]
async fn an_event_that_is_put_off_comes_again_and_no_attempt_is_counted() {
    let topic = fresh_topic().await;
    // A counted failure would make the event dead.
    eager(&topic, 1).await;
    for n in 1..=2 {
        emit(&topic, n, &EmitOptions::new().order_key("a")).await;
    }
    let (seen, times) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let handler = seen.noting(move |event: Event| {
        let put_off = event.payload.as_str() == "1" && times.fetch_add(1, Ordering::SeqCst) < 3;
        async move {
            match put_off {
                true => Err(Undelivered::later("somebody is at it", Duration::ZERO)),
                false => Ok(()),
            }
        }
    });
    let delivered = worker(&topic).run(seen.until(5), handler).await.unwrap();
    assert_eq!(
        (delivered.delivered, delivered.failed, delivered.dead),
        (2, 0, 0)
    );
    assert!(delivered.released >= 3, "{delivered:?}");
    assert_eq!(seen.payloads(), ["1", "1", "1", "1", "2"]);
    let events = seen.0.lock().unwrap();
    assert!(events.iter().all(|event| event.attempt == 1), "{events:?}");
}

#[tokio::test]
async fn a_panic_of_the_handler_is_a_failure_of_its_event_and_of_nothing_else() {
    let topic = fresh_topic().await;
    eager(&topic, 2).await;
    let poison = emit(&topic, "\"poison\"", &EmitOptions::new()).await;
    emit(&topic, "1", &EmitOptions::new()).await;
    let all = Seen::default();
    let handler = {
        let all = all.clone();
        move |event: Event| {
            let poison = event.payload.as_str() == "\"poison\"";
            all.add(event);
            async move {
                assert!(!poison, "cannot be handled");
                Ok(())
            }
        }
    };
    let delivered = worker(&topic).run(all.until(3), handler).await.unwrap();
    assert_eq!(
        (delivered.delivered, delivered.failed, delivered.dead),
        (1, 1, 1)
    );
    let subscriber = topic.default_subscriber();
    let failed = subscriber.deliveries(&pool(), poison).await.unwrap();
    assert_eq!((failed.len(), failed[0].kind.as_str()), (2, "panic"));
    assert_eq!(
        subscriber.dead(&pool(), 10).await.unwrap()[0].event_id,
        poison
    );
}

#[tokio::test]
async fn a_payload_that_cannot_be_read_is_retried_and_dies_of_the_kind_json() {
    let topic = fresh_topic().await;
    eager(&topic, 2).await;
    let event_id = emit(&topic, "\"no number\"", &EmitOptions::new()).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let read = Arc::clone(&tries);
    let handler = move |event: Event| {
        read.fetch_add(1, Ordering::SeqCst);
        async move {
            let _: i64 = event.payload.parse()?;
            Ok(())
        }
    };
    let both = until(|| tries.load(Ordering::SeqCst) == 2);
    let delivered = worker(&topic).run(both, handler).await.unwrap();
    assert_eq!((delivered.failed, delivered.dead), (1, 1));
    let subscriber = topic.default_subscriber();
    let failed = subscriber.deliveries(&pool(), event_id).await.unwrap();
    assert!(
        failed.iter().all(|attempt| attempt.kind == "json"),
        "{failed:?}"
    );
}

/// How the callback `dead` fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    Fails,
    SwallowsAnError,
    FailsAtCommit,
    IsGivenUpAtCommit,
    Panics,
}

/// Refuses each shipment; when the event dies, the callback `dead` aborts the key.
#[derive(Clone)]
struct Compensating {
    key: Key,
    trouble: Trouble,
    /// Counts the calls of `dead`, and the deliveries of events that are no shipments.
    callbacks: Arc<AtomicUsize>,
}

impl Deliver for Compensating {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        assert_eq!(event.attempt, 1);
        match event.payload.as_str() {
            "\"ship\"" => Err(Undelivered::never("no such address")),
            _ => {
                self.callbacks.fetch_add(1, Ordering::SeqCst);
                Ok(Acked::ByWorker)
            }
        }
    }

    async fn dead(
        &self,
        transaction: &OpenTransaction,
        _: &Event,
        failure: &Undelivered,
    ) -> Result<(), Error> {
        assert_eq!(failure, &Undelivered::never("no such address"));
        self.callbacks.fetch_add(1, Ordering::SeqCst);
        assert!(self.trouble != Trouble::Panics, "it cannot be undone");
        if self.trouble == Trouble::Fails {
            transaction.query("SELECT 1/0", &[]).await?;
        }
        if self.trouble == Trouble::SwallowsAnError {
            assert!(transaction.query("SELECT 1/0", &[]).await.is_err());
            return Ok(());
        }
        if self.trouble == Trouble::FailsAtCommit {
            let twice = "CREATE TEMP TABLE twice (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) \
                ON COMMIT DROP; INSERT INTO twice VALUES (1), (1)";
            transaction.batch_execute(twice).await?;
        }
        if self.trouble == Trouble::IsGivenUpAtCommit {
            let slow = "CREATE TEMP TABLE slow (n int) ON COMMIT DROP; \
                CREATE FUNCTION pg_temp.give_up() RETURNS trigger LANGUAGE plpgsql \
                AS $$ BEGIN RAISE query_canceled; END $$; \
                CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED \
                FOR EACH ROW EXECUTE FUNCTION pg_temp.give_up(); INSERT INTO slow VALUES (1)";
            transaction.batch_execute(slow).await?;
        }
        match self.key.claim(transaction, &ClaimOptions::new()).await? {
            Claim::Resumed(lease) => lease.abort(transaction, &Response::new(422)).await,
            Claim::Replayed(_) => Ok(()),
            other => Err(Error::other(format!("{other:?}"))),
        }
    }
}

/// Emits a shipment. Begins a step of a fresh key, and releases the key. An abort of that key emits a refund. Returns
/// the topics of the shipments and of the refunds, and the handler.
async fn half_done() -> (Topic, Topic, Compensating) {
    let (shipments, refunds) = (fresh_topic().await, fresh_topic().await);
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    let refund = StepEvent::new(&refunds, Json::from_text("\"refund\""));
    lease.step_with(&pool, "charge", &refund).await.unwrap();
    emit(&shipments, "\"ship\"", &EmitOptions::new()).await;
    lease.release(&pool, None, None).await.unwrap();
    let handler = Compensating {
        key,
        trouble: Trouble::None,
        callbacks: Arc::default(),
    };
    (shipments, refunds, handler)
}

async fn refunds_emitted(refunds: &Topic) -> usize {
    let batch = refunds
        .default_subscriber()
        .take(&pool(), 10, None)
        .await
        .unwrap();
    batch.map_or(0, |batch| batch.events.len())
}

#[tokio::test]
async fn what_a_death_undoes_is_undone_in_the_same_transaction() {
    let (shipments, refunds, handler) = half_done().await;
    let shutdown = until(|| handler.callbacks.load(Ordering::SeqCst) == 1);
    let delivered = worker(&shipments)
        .run(shutdown, handler.clone())
        .await
        .unwrap();
    assert_eq!((delivered.dead, delivered.delivered), (1, 0));
    assert_eq!(refunds_emitted(&refunds).await, 1);
    assert_eq!(
        shipments
            .default_subscriber()
            .dead(&pool(), 10)
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn in_test_mode_a_worker_leaves_nothing_and_a_callback_that_fails_undoes_its_own_part_alone()
{
    for (trouble, left) in [
        (Trouble::None, 0),
        (Trouble::Fails, 1),
        (Trouble::SwallowsAnError, 1),
        (Trouble::Panics, 1),
    ] {
        let (topic, (_, refunds, mut handler)) = (fresh_topic().await, half_done().await);
        handler.trouble = trouble;
        let (test, subscriber) = (begun(&pool()).await, topic.default_subscriber());
        for payload in ["1", "\"ship\"", "2"] {
            let payload = Json::from_text(payload);
            topic
                .emit(&test, &payload, &EmitOptions::new())
                .await
                .unwrap();
        }
        let callbacks = Arc::clone(&handler.callbacks);
        let settled = until(|| callbacks.load(Ordering::SeqCst) == 3);
        let worker = subscriber.worker(&test).backoff(QUICK);
        let ended = worker
            .poll_every(Duration::from_millis(50))
            .run(settled, handler)
            .await
            .unwrap();
        assert_eq!((ended.delivered, ended.dead + ended.released), (2, 1));
        let refunded = refunds.default_subscriber().peek(&test, 10).await.unwrap();
        assert_eq!((refunded.len(), ended.released), (1 - left, left as u64));
        test.0.batch_execute("ROLLBACK").await.unwrap();
        for topic in [topic, refunds] {
            let events = topic.default_subscriber().peek(&pool(), 10).await.unwrap();
            assert!(events.is_empty(), "{events:?}");
        }
    }
}

#[tokio::test]
async fn an_event_whose_callback_fails_does_not_die_and_nothing_is_undone() {
    for trouble in [
        Trouble::Fails,
        Trouble::SwallowsAnError,
        Trouble::FailsAtCommit,
        Trouble::IsGivenUpAtCommit,
        Trouble::Panics,
    ] {
        let (shipments, refunds, mut handler) = half_done().await;
        handler.trouble = trouble;
        let shutdown = until(|| handler.callbacks.load(Ordering::SeqCst) == 1);
        let delivered = worker(&shipments).run(shutdown, handler.clone()).await;
        let delivered = delivered.unwrap();
        assert_eq!(
            (delivered.dead, delivered.released, delivered.lost),
            (0, 1, 0),
            "{trouble:?}"
        );
        assert_eq!(refunds_emitted(&refunds).await, 0);
        let subscriber = shipments.default_subscriber();
        assert_eq!(subscriber.dead(&pool(), 10).await.unwrap(), []);
        let later = a_year_later().await;
        let again = subscriber.take(&later, 10, None).await;
        assert_eq!(again.unwrap().unwrap().events[0].attempt, 1);
    }
}

#[tokio::test]
async fn a_death_whose_commit_is_not_answered_runs_its_callback_once() {
    let (shipments, refunds, handler) = half_done().await;
    let proxy = Proxy::start().await;
    proxy.lose_answer_to("COMMIT");
    let worker = shipments
        .default_subscriber()
        .worker(&pool_to(proxy.config()));
    let shutdown = until(|| handler.callbacks.load(Ordering::SeqCst) == 1);
    let delivered = worker
        .backoff(QUICK)
        .run(shutdown, handler.clone())
        .await
        .unwrap();
    assert_eq!((delivered.dead, proxy.lost()), (1, 1));
    assert_eq!(handler.callbacks.load(Ordering::SeqCst), 1);
    assert_eq!(refunds_emitted(&refunds).await, 1);
}

#[tokio::test]
async fn answers_that_the_network_loses_change_nothing() {
    for text in ["outbox_ack", "outbox_extend"] {
        let topic = fresh_topic().await;
        emit(&topic, 1, &EmitOptions::new()).await;
        let proxy = Proxy::start().await;
        proxy.lose_answer_to(text);
        let (seen, slow) = (Seen::default(), Duration::from_secs(2));
        let handler = seen.noting(move |_| async move {
            tokio::time::sleep(slow).await; // two heartbeats
            Ok(())
        });
        let worker = topic.default_subscriber().worker(&pool_to(proxy.config()));
        let worker = worker.backoff(QUICK).lease(Duration::from_secs(3));
        let delivered = worker.run(seen.until(1), handler).await.unwrap();
        assert_eq!(
            (delivered.delivered, delivered.lost, proxy.lost()),
            (1, 0, 1),
            "{text}"
        );
        assert_nothing_left(&topic).await;
    }
}

#[tokio::test]
async fn events_whose_common_ack_is_not_answered_count_as_delivered_once_each() {
    let topic = fresh_topic().await;
    for payload in [1, 1, 2] {
        emit(&topic, payload, &EmitOptions::new()).await;
    }
    let proxy = Proxy::start().await;
    proxy.lose_answer_to("outbox_ack");
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let seen = Seen::default();
    let handler = seen.noting(move |event: Event| {
        let both = Arc::clone(&both);
        async move {
            if event.payload.to_string() == "2" {
                tokio::time::sleep(Duration::from_secs(1)).await;
            } else {
                both.wait().await;
            }
            Ok(())
        }
    });
    let worker = topic.default_subscriber().worker(&pool_to(proxy.config()));
    let delivered = worker
        .backoff(QUICK)
        .run(seen.until(3), handler)
        .await
        .unwrap();
    assert_eq!((delivered.delivered, delivered.lost), (3, 0));
    assert_eq!((proxy.lost(), seen.len()), (1, 3));
    assert_nothing_left(&topic).await;
}

/// If an event has no headers, emits it to another topic and acks it, in one transaction. The worker acks the others.
struct Acking<P> {
    pool: P,
    subscriber: Subscriber,
    written: Topic,
    backoff: Backoff,
    seen: Seen,
}

impl<P: Begin> Acking<P> {
    async fn write(&self, event: &Event) -> Result<Acked, Error> {
        let transaction = self.pool.begin().await?;
        let options = EmitOptions::new();
        self.written
            .emit(&transaction, &event.payload, &options)
            .await?;
        let acked = self.subscriber.ack(&transaction, event).await?;
        transaction.commit().await?;
        Ok(acked)
    }
}

impl<P: Begin> Deliver for Acking<P> {
    async fn deliver(&self, event: &Event) -> Result<Acked, Undelivered> {
        let acked = match event.headers {
            None => self.backoff.retry(|| self.write(event)).await,
            Some(_) => Ok(Acked::ByWorker),
        };
        self.seen.add(event.clone());
        Ok(acked?)
    }
}

#[tokio::test]
async fn a_worker_acks_only_what_its_handler_has_not() {
    let (topic, written) = (fresh_topic().await, fresh_topic().await);
    for headers in [None, Some("{}"), None] {
        let mut options = EmitOptions::new();
        options = headers.into_iter().fold(options, |options, headers| {
            options.headers(Json::from_text(headers))
        });
        emit(&topic, 1, &options).await;
    }
    let proxy = Proxy::start().await;
    proxy.cut(Cut {
        text: "outbox_ack",
        nth: 2,
        arrives: true,
        hold: false,
    });
    let (subscriber, seen) = (topic.default_subscriber(), Seen::default());
    let handler = Acking {
        pool: pool(),
        subscriber: subscriber.clone(),
        written: written.clone(),
        backoff: QUICK,
        seen: seen.clone(),
    };
    let worker = subscriber.worker(&pool_to(proxy.config())).backoff(QUICK);
    let delivered = worker.run(seen.until(3), handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.lost), (3, 0));
    assert_eq!(proxy.lost(), 0, "one ack came from the worker");
    assert_eq!(refunds_emitted(&written).await, 2);
    assert_nothing_left(&topic).await;
}

#[tokio::test]
async fn in_test_mode_a_handler_acks_in_a_transaction_that_is_rolled_back() {
    let (topic, written) = (fresh_topic().await, fresh_topic().await);
    emit(&topic, 1, &EmitOptions::new()).await;
    let test = begun(&pool()).await;
    let (subscriber, seen) = (topic.default_subscriber(), Seen::default());
    let handler = Acking {
        pool: test.clone(),
        subscriber: subscriber.clone(),
        written: written.clone(),
        backoff: QUICK,
        seen: seen.clone(),
    };
    let delivered = subscriber.worker(&test).run(seen.until(1), handler).await;
    assert_eq!(delivered.unwrap().delivered, 1);
    let written = written.default_subscriber();
    assert_eq!(written.peek(&test, 10).await.unwrap().len(), 1);
    test.0.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(written.peek(&pool(), 10).await.unwrap().len(), 0);
    assert_eq!(subscriber.peek(&pool(), 10).await.unwrap()[0].attempt, 1);
}

#[tokio::test]
async fn an_event_that_its_handler_has_acked_is_not_delivered_again_though_the_answer_is_lost() {
    let once = Backoff { tries: 1, ..QUICK };
    // With QUICK the handler runs its transaction again and gets ON006; with `once` it returns the commit's error.
    for backoff in [QUICK, once] {
        let (topic, written) = (fresh_topic().await, fresh_topic().await);
        for n in 0..2 {
            emit(&topic, n, &EmitOptions::new().order_key("a")).await;
        }
        let proxy = Proxy::start().await;
        proxy.lose_answer_to("COMMIT");
        let (subscriber, seen) = (topic.default_subscriber(), Seen::default());
        let handler = Acking {
            pool: pool_to(proxy.config()),
            subscriber,
            written: written.clone(),
            backoff,
            seen: seen.clone(),
        };
        let delivered = worker(&topic).run(seen.until(2), handler).await.unwrap();
        assert_eq!((delivered.delivered, delivered.released), (2, 1));
        assert_eq!((delivered.failed, delivered.lost, proxy.lost()), (0, 0, 1));
        assert_eq!(seen.payloads(), ["0", "1"]);
        assert_eq!(refunds_emitted(&written).await, 2);
        assert_nothing_left(&topic).await;
    }
}

#[tokio::test]
async fn a_take_whose_answer_is_lost_leaves_its_events_to_their_lease() {
    let topic = fresh_topic().await;
    for n in 0..2 {
        emit(&topic, n, &EmitOptions::new()).await;
    }
    let proxy = Proxy::start().await;
    proxy.lose_answer_to("outbox_take");
    let seen = Seen::default();
    let handler = seen.noting(fine);
    let worker = topic.default_subscriber().worker(&pool_to(proxy.config()));
    let worker = worker.backoff(QUICK).lease(Duration::from_secs(1));
    let worker = worker.poll_every(Duration::from_millis(50));
    let delivered = worker.run(seen.until(2), handler).await.unwrap();
    assert_eq!((delivered.delivered, proxy.lost()), (2, 1));
    // Neither event was alone in its batch, so no attempt is counted.
    let attempts: Vec<i32> = seen.0.lock().unwrap().iter().map(|e| e.attempt).collect();
    assert_eq!(attempts, [1, 1]);
    assert_nothing_left(&topic).await;
}

#[tokio::test]
async fn a_handler_that_takes_longer_than_the_lease_keeps_it() {
    let topic = fresh_topic().await;
    emit(&topic, 1, &EmitOptions::new()).await;
    let seen = Seen::default();
    let handler = seen.noting(|_| async {
        tokio::time::sleep(Duration::from_millis(4500)).await;
        Ok(())
    });
    let worker = worker(&topic).lease(Duration::from_millis(1800));
    let delivered = worker.run(seen.until(1), handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.lost, seen.len()), (1, 0, 1));
}

#[tokio::test]
async fn a_lease_beyond_what_the_subscriber_grants_is_not_believed() {
    let topic = fresh_topic().await;
    let options = SubscriberOptions::new().max_lease_life(Duration::from_millis(600));
    let subscriber = topic.default_subscriber();
    subscriber.set(&pool(), &options).await.unwrap();
    emit(&topic, 1, &EmitOptions::new()).await;
    let handler = Stalling::default();
    let shutdown = until(|| handler.lost.load(Ordering::SeqCst) == 1);
    // The handler is stopped when the granted lease ends, not after an hour.
    let worker = worker(&topic).lease(Duration::from_secs(3600));
    let delivered = worker.run(shutdown, handler.clone()).await.unwrap();
    assert_eq!((delivered.delivered, delivered.lost >= 1), (0, true));
}

#[tokio::test]
async fn a_wait_that_is_nothing_or_beyond_all_measure_costs_the_batch_nothing() {
    let topic = fresh_topic().await;
    let options = EmitOptions::new();
    for payload in ["\"at once\"", "\"never\"", "\"fine\""] {
        emit(&topic, payload, &options).await;
    }
    let seen = Seen::default();
    let handler = seen.noting(|event: Event| async move {
        match (event.payload.as_str(), event.attempt) {
            ("\"at once\"", 1) => {
                let wait = Duration::ZERO; // Retry-After: 0
                Err(Undelivered::retry_after("refused", 429, wait))
            }
            ("\"never\"", _) => Err(Undelivered::retry_after("refused", 429, Duration::MAX)),
            _ => Ok(()),
        }
    });
    let delivered = worker(&topic).run(seen.until(4), handler).await.unwrap();
    assert_eq!(
        (delivered.delivered, delivered.failed, delivered.lost),
        (2, 2, 0)
    );
    let delayed = topic.default_subscriber().peek(&pool(), 10).await.unwrap();
    let day_and_more = SystemTime::now() + Duration::from_secs(25 * 60 * 60);
    assert!(delayed.len() == 1 && delayed[0].due_at < Some(day_and_more));
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    let topic = fresh_topic().await;
    for payload in ["1", "\"never\"", "2", "3"] {
        emit(&topic, payload, &EmitOptions::new()).await;
    }
    let (seen, one) = (Seen::default(), pool());
    one.resize(1);
    let handler = seen.noting(|event: Event| async move {
        match event.payload.as_str() {
            "\"never\"" => Err(Undelivered::never("not that")),
            _ => Ok(()),
        }
    });
    let worker = topic.default_subscriber().worker(&one).backoff(QUICK);
    let delivered = worker.run(seen.until(4), handler).await.unwrap();
    assert_eq!((delivered.delivered, delivered.dead), (3, 1));
}

#[tokio::test]
async fn when_somebody_else_has_the_batch_its_handlers_stop_and_the_worker_goes_on() {
    let topic = fresh_topic().await;
    emit(&topic, 1, &EmitOptions::new()).await;
    let handler = Stalling::default();
    let shutdown = async {
        handler.begun.notified().await;
        let (later, theirs) = take_over_batch(&topic.default_subscriber()).await;
        until(|| handler.dropped.load(Ordering::SeqCst)).await;
        until(|| handler.lost.load(Ordering::SeqCst) == 1).await;
        // The worker has neither acked nor released the batch that it lost.
        assert_eq!(theirs.ack(&later, None).await.unwrap(), 1);
    };
    let worker = worker(&topic).lease(Duration::from_millis(300));
    let delivered = worker.run(shutdown, handler.clone()).await.unwrap();
    assert_eq!((delivered.lost, delivered.delivered), (1, 0));
}

#[tokio::test]
async fn what_is_not_done_when_the_grace_is_over_is_stopped_and_given_back() {
    let topic = fresh_topic().await;
    for key in ["a", "a", "b"] {
        emit(&topic, 1, &EmitOptions::new().order_key(key)).await;
    }
    let handler = Stalling::default();
    let begun = Arc::clone(&handler.begun);
    let worker = worker(&topic)
        .concurrency(1)
        .grace(Duration::from_millis(50));
    let delivered = worker.run(begun.notified(), handler.clone()).await.unwrap();
    assert!(handler.dropped.load(Ordering::SeqCst));
    assert_eq!((delivered.released >= 2, delivered.lost), (true, 0));
    // The events were released: they are due at once, and no attempt is counted.
    let mut left = 0;
    while let Some(batch) = topic
        .default_subscriber()
        .take(&pool(), 10, None)
        .await
        .unwrap()
    {
        assert!(batch.events.iter().all(|event| event.attempt == 1));
        left += batch.ack(&pool(), None).await.unwrap();
    }
    assert_eq!(left, 3);
}

#[tokio::test]
async fn more_events_of_a_key_than_one_call_names_are_given_back_together() {
    let topic = fresh_topic().await;
    let emit = "SELECT once.outbox_emit(topic => $1, payload => '1', order_key => 'a') \
        FROM generate_series(1, 1001)";
    let args = [(&topic.as_str() as _, Type::TEXT)];
    let client = pool().get().await.unwrap();
    client.query_typed(emit, &args).await.unwrap();
    let handler = Stalling::default();
    let begun = Arc::clone(&handler.begun);
    let worker = worker(&topic).batch(2000).grace(Duration::ZERO);
    let delivered = worker.run(begun.notified(), handler.clone()).await.unwrap();
    assert_eq!((delivered.released, delivered.lost), (1001, 0));
}

#[tokio::test]
async fn events_behind_one_that_its_handler_has_acked_are_given_back() {
    let topic = fresh_topic().await;
    for n in 1..=3 {
        emit(&topic, n, &EmitOptions::new().order_key("a")).await;
    }
    let (subscriber, acked) = (topic.default_subscriber(), Arc::new(Notify::new()));
    let handler = {
        let acked = Arc::clone(&acked);
        move |event: Event| {
            let (subscriber, acked) = (subscriber.clone(), Arc::clone(&acked));
            async move {
                let by_handler = subscriber.ack(&pool(), &event).await?;
                acked.notify_one();
                std::future::pending::<()>().await;
                Ok::<_, Undelivered>(by_handler)
            }
        }
    };
    let worker = worker(&topic).grace(Duration::ZERO);
    let delivered = worker.run(acked.notified(), handler).await.unwrap();
    assert_eq!((delivered.released, delivered.lost), (3, 0));
    let left = topic.default_subscriber().peek(&pool(), 10).await.unwrap();
    assert_eq!(left.len(), 2);
}

#[tokio::test]
async fn what_is_at_work_when_the_worker_is_told_to_stop_is_finished() {
    let topic = fresh_topic().await;
    emit(&topic, 1, &EmitOptions::new()).await;
    let (begun, seen) = (Arc::new(Notify::new()), Seen::default());
    let handler = {
        let begun = Arc::clone(&begun);
        seen.noting(move |_| {
            let begun = Arc::clone(&begun);
            async move {
                begun.notify_one();
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok(())
            }
        })
    };
    let delivered = worker(&topic).run(begun.notified(), handler).await.unwrap();
    assert_eq!((delivered.delivered, seen.len()), (1, 1));
    assert_nothing_left(&topic).await;
}

#[tokio::test]
async fn an_idle_worker_that_is_woken_need_not_wait_for_the_next_poll() {
    let topic = fresh_topic().await;
    let (waker, seen) = (Waker::new(), Seen::default());
    let handler = seen.noting(fine);
    let (name, pool) = named_pool();
    let shutdown = async {
        let next_look = until_idle(&name).await;
        let begin = Instant::now();
        emit(&topic, 1, &EmitOptions::new()).await;
        waker.wake();
        seen.until(1).await;
        let took = begin.elapsed();
        assert!(took < next_look / 2, "{took:?} of {next_look:?}");
    };
    let subscriber = topic.default_subscriber();
    let worker = subscriber.worker(&pool).waker(&waker);
    let worker = worker.poll_every(Duration::from_secs(3600));
    worker.run(shutdown, handler).await.unwrap();
}

#[tokio::test]
async fn a_worker_for_a_topic_that_is_not_there_says_so() {
    let worker = worker(&Topic::new("no such topic"));
    let error = worker.run(std::future::pending(), fine).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Undeclared);
}

#[tokio::test]
async fn several_workers_share_the_events_and_deliver_each_once() {
    let topic = fresh_topic().await;
    for n in 0..60 {
        let key = format!("key {}", n % 5);
        emit(&topic, n, &EmitOptions::new().order_key(key)).await;
    }
    let seen = Seen::default();
    let run = || {
        let seen = &seen;
        let worker = worker(&topic).batch(3);
        worker.run(seen.until(60), seen.noting(fine))
    };
    let (one, two, three) = tokio::join!(run(), run(), run());
    let sum: u64 = [one, two, three].map(|d| d.unwrap().delivered).iter().sum();
    assert_eq!((sum, seen.len()), (60, 60));
    for key in 0..5 {
        let numbers = seen
            .payloads()
            .into_iter()
            .map(|n| n.parse::<i32>().unwrap());
        let of_key: Vec<i32> = numbers.filter(|n| n % 5 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}
