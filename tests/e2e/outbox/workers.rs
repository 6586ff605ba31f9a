//! Many workers of one subscriber: each event once, each key in order and in one lease at a time.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::playground::Playground;

/// Ids of events, their delivery keys, and the tokens that handed them out.
type Ledger = (Vec<i64>, HashSet<String>, HashSet<i64>);

/// What a worker was given.
struct Batch {
    token: i64,
    /// event_id, delivery_key, order_key, payload.
    events: Vec<(i64, String, String, usize)>,
}

async fn take(play: &Playground, max: usize) -> Option<Batch> {
    let sql = format!(
        "select token, event_id, attempt, delivery_key, order_key, payload from once.outbox_take('t', max => {max})"
    );
    let rows = play.show(&sql).await;
    let mut batch = None;
    for row in rows.lines() {
        let cells: Vec<&str> = row.split('|').collect();
        let token = cells[0].parse().unwrap();
        let batch = batch.get_or_insert(Batch {
            token,
            events: Vec::new(),
        });
        assert_eq!(batch.token, token, "one token for a take");
        assert_eq!(cells[2], "1", "nothing fails here: {row}");
        batch.events.push((
            cells[1].parse().unwrap(),
            cells[3].to_owned(),
            cells[4].to_owned(),
            cells[5].parse().unwrap(),
        ));
    }
    assert!(batch.as_ref().is_none_or(|b| b.events.len() <= max));
    batch
}

async fn ack(play: &Playground, batch: &Batch) {
    let sql = format!("select once.outbox_ack('t', 'default', {})", batch.token);
    assert_eq!(play.show(&sql).await, batch.events.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_deliver_each_of_400_events_once() {
    const EVENTS: usize = 400;
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{\"lanes\": 4}')")
        .await;
    let ledger: Arc<Mutex<Ledger>> = Arc::default();
    let mut tasks = Vec::new();
    for emitter in 0..4 {
        let play = play.another().await;
        tasks.push(tokio::spawn(async move {
            for i in 0..EVENTS / 8 {
                // Two a transaction, one of them with an order_key; every fifth transaction is undone first.
                let sql = format!(
                    "select once.outbox_emit('t', '{i}'); select once.outbox_emit('t', '{i}', 'key {emitter} {}')",
                    i % 7
                );
                if i % 5 == 0 {
                    play.show(&format!("begin; {sql}; rollback")).await;
                }
                play.show(&sql).await;
            }
        }));
    }
    for number in 0..8 {
        let (play, ledger) = (play.another().await, Arc::clone(&ledger));
        tasks.push(tokio::spawn(async move {
            let begun = Instant::now();
            while ledger.lock().unwrap().0.len() < EVENTS {
                assert!(begun.elapsed().as_secs() < 60, "the events do not come");
                let Some(batch) = take(&play, 1 + number * 2).await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                {
                    let (ids, keys, tokens) = &mut *ledger.lock().unwrap();
                    assert!(tokens.insert(batch.token), "token {} twice", batch.token);
                    for (id, key, _, _) in &batch.events {
                        ids.push(*id);
                        assert!(keys.insert(key.clone()), "{key} twice");
                    }
                }
                ack(&play, &batch).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let ids = ledger.lock().unwrap().0.clone();
    assert_eq!(ids.len(), EVENTS);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), EVENTS);
    assert_eq!(crate::drain(&play, "default").await, "");
    assert_eq!(play.show("select count(*) from once.retry").await, "0");
}

/// Batches of one lane whose later one was taken before the earlier one was over.
const OVERLAPS: &str = "
    select count(*) from once.batch a join once.batch b using (subscriber_id, lane)
     where lane > 0 and a.token < b.token and cardinality(a.event_ids) > 0
       and b.taken_at < (select max(at) from once.receipt r
                          where r.subscriber_id = a.subscriber_id and r.token = a.token)";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_workers_keep_three_keys_in_order_and_never_hold_one_twice() {
    const EACH: usize = 80;
    for lanes in [1, 16] {
        let play = Playground::open().await;
        play.show(&format!(
            "select once.topic_set('t', '{{\"lanes\": {lanes}}}')"
        ))
        .await;
        // By key: what was handled, and who has it now.
        type Handled = (BTreeMap<String, Vec<usize>>, BTreeMap<String, i64>);
        let handled: Arc<Mutex<Handled>> = Arc::default();
        let mut tasks = Vec::new();
        for key in ["a", "b", "c"] {
            let play = play.another().await;
            tasks.push(tokio::spawn(async move {
                for n in (0..EACH).step_by(2) {
                    // Two events a transaction; a third one in between is undone.
                    play.show(&format!(
                        "begin; select once.outbox_emit('t', '{n}', '{key}');
                         savepoint s; select once.outbox_emit('t', '999', '{key}'); rollback to s;
                         select once.outbox_emit('t', '{}', '{key}'); commit",
                        n + 1
                    ))
                    .await;
                }
            }));
        }
        for number in 0..4 {
            let (play, handled) = (play.another().await, Arc::clone(&handled));
            tasks.push(tokio::spawn(async move {
                let begun = Instant::now();
                let count = || {
                    handled
                        .lock()
                        .unwrap()
                        .0
                        .values()
                        .map(Vec::len)
                        .sum::<usize>()
                };
                while count() < 3 * EACH {
                    assert!(begun.elapsed().as_secs() < 60, "the events do not come");
                    let Some(batch) = take(&play, 1 + number).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    {
                        let (seen, held) = &mut *handled.lock().unwrap();
                        for (_, _, key, n) in &batch.events {
                            let holder = *held.entry(key.clone()).or_insert(batch.token);
                            assert_eq!(holder, batch.token, "{key} is in two live leases");
                            seen.entry(key.clone()).or_default().push(*n);
                        }
                    }
                    tokio::task::yield_now().await;
                    handled
                        .lock()
                        .unwrap()
                        .1
                        .retain(|_, token| *token != batch.token);
                    ack(&play, &batch).await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let expected: Vec<usize> = (0..EACH).collect();
        let (seen, _) = handled.lock().unwrap().clone();
        for (key, seen) in seen {
            assert_eq!(seen, expected, "{key} with {lanes} lanes");
        }
        assert_eq!(play.show(OVERLAPS).await, "0", "{lanes} lanes");
    }
}
