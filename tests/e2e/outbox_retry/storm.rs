//! Order under anything that can happen: one worker against a model, and many workers at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::stage::{Stage, Taken};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Held(i64),
    Done,
    Dead,
}

/// What should be true of every event, by name; the name begins with its key, and names of a key sort in the
/// order of their emission.
#[derive(Default)]
struct Model {
    events: BTreeMap<String, (State, u32)>,
}

fn key_of(name: &str) -> &str {
    name.split('_').next().unwrap()
}

impl Model {
    /// Checks what a take handed out, and remembers it.
    fn taken(&mut self, taken: &Taken) -> Vec<String> {
        let mut names = Vec::new();
        for event in taken.shown.split(' ') {
            let (name, attempt) = event.split_once(':').unwrap();
            let (state, failures) = self.events[name];
            assert_eq!(state, State::Pending, "{name} is not due: {taken:?}");
            assert_eq!(
                attempt.parse::<u32>().unwrap(),
                failures + 1,
                "{name}: {taken:?}"
            );
            if key_of(name) != "none" {
                self.in_order(name, taken);
            }
            self.events.get_mut(name).unwrap().0 = State::Held(taken.token);
            names.push(name.to_owned());
        }
        names
    }

    /// Nothing earlier of its key is undelivered, but for what goes ahead of it in the same batch.
    fn in_order(&self, name: &str, taken: &Taken) {
        for (other, (state, _)) in &self.events {
            let same = key_of(other) == key_of(name);
            let held_elsewhere = matches!(state, State::Held(token) if *token != taken.token);
            assert!(
                !(same && held_elsewhere),
                "{name} beside {other}: {taken:?}"
            );
            let ahead = same && other.as_str() < name;
            assert!(
                !(ahead && *state == State::Pending),
                "{name} before {other}: {taken:?}"
            );
        }
    }

    fn set(&mut self, name: &str, state: State) {
        self.events.get_mut(name).unwrap().0 = state;
    }

    /// What one nack came to: its rows, and that the later events of a key left with an earlier one.
    fn nacked(&mut self, token: i64, rows: &str) {
        for row in rows.lines() {
            let cells: Vec<&str> = row.split('|').collect();
            let event = self.events.get_mut(cells[0]).unwrap();
            assert_eq!(event.0, State::Held(token), "{row}");
            event.1 = cells[1].parse().unwrap();
            event.0 = if cells[3] == "t" {
                State::Dead
            } else {
                State::Pending
            };
        }
        for row in rows.lines() {
            let name = row.split('|').next().unwrap();
            for (other, (state, _)) in &mut self.events {
                let same = key_of(other) == key_of(name) && key_of(name) != "none";
                if same && other.as_str() > name && *state == State::Held(token) {
                    *state = State::Pending;
                }
            }
        }
    }

    fn held(&self, token: i64) -> Vec<String> {
        let held = self
            .events
            .iter()
            .filter(|(_, e)| e.0 == State::Held(token));
        held.map(|(name, _)| name.clone()).collect()
    }
}

/// What the model has to be told when a lease ran out: all of it came back, and what was alone has failed.
async fn expired(stage: &Stage, model: &mut Model, batches: &mut HashMap<i64, usize>, most: u32) {
    for (token, size) in std::mem::take(batches) {
        for name in model.held(token) {
            let event = model.events.get_mut(&name).unwrap();
            event.0 = State::Pending;
            if size == 1 {
                event.1 += 1;
                if event.1 >= most {
                    event.0 = State::Dead;
                }
            }
        }
    }
    stage.sweep(100_000).await;
}

#[tokio::test]
async fn no_history_of_one_worker_breaks_the_order_of_a_key_or_loses_an_event() {
    for seed in 0..6 {
        history(seed).await;
    }
}

async fn history(seed: u64) {
    const MOST: u32 = 3;
    let mut random = StdRng::seed_from_u64(seed);
    let stage = Stage::open(
        r#"{"max_attempts": 3, "backoff_base": "10 s", "backoff_cap": "40 s", "lease": "1000 s"}"#,
    )
    .await;
    stage
        .play
        .show("select once.topic_set('t', '{\"lanes\": 2}')")
        .await;
    let mut model = Model::default();
    let mut batches: HashMap<i64, usize> = HashMap::new();
    let mut second = 0_u32;
    for step in 0..250 {
        match random.random_range(0..100) {
            0..25 => {
                let key = ["k0", "k1", "k2", "k3", "none"][random.random_range(0..5)];
                let names: Vec<String> = (0..random.random_range(1..4))
                    .map(|i| format!("{key}_{step:03}_{i}"))
                    .collect();
                match key {
                    "none" => stage.emit(&names.join(" ")).await,
                    key => stage.emit_keyed(&names.join(" "), key).await,
                }
                let fresh = names.into_iter().map(|n| (n, (State::Pending, 0)));
                model.events.extend(fresh);
            }
            25..55 => {
                if let Some(taken) = stage.try_take(random.random_range(1..6)).await {
                    let names = model.taken(&taken);
                    batches.insert(taken.token, names.len());
                }
            }
            55..85 => {
                let tokens: Vec<i64> = batches.keys().copied().collect();
                let Some(token) = tokens.get(random.random_range(0..tokens.len().max(1))) else {
                    continue;
                };
                end_some(&stage, &mut model, *token, &mut random).await;
            }
            85..95 => {
                second += random.random_range(1..30);
                stage.clock(&format!("{second} s")).await;
            }
            95..98 => {
                second += 1_000;
                stage.clock(&format!("{second} s")).await;
                expired(&stage, &mut model, &mut batches, MOST).await;
            }
            _ => redrive(&stage, &mut model).await,
        }
        batches.retain(|token, _| !model.held(*token).is_empty());
    }
    drain(&stage, &mut model, &mut batches, second, MOST).await;
}

/// Acks or nacks something of a batch.
async fn end_some(stage: &Stage, model: &mut Model, token: i64, random: &mut StdRng) {
    let held = model.held(token);
    let some: Vec<String> = held
        .into_iter()
        .filter(|_| random.random_bool(0.6))
        .collect();
    if some.is_empty() {
        return;
    }
    // A worker acks the first events of a key, never one behind a hole.
    let names = some.join(" ");
    let more = match random.random_range(0..8) {
        0..4 => {
            let prefix = model.held(token);
            let count = random.random_range(1..=prefix.len());
            stage.ack(token, &prefix[..count].join(" ")).await;
            for name in &prefix[..count] {
                model.set(name, State::Done);
            }
            return;
        }
        4 => ", kind => 'released'",
        5 => ", kind => 'never'",
        6 => ", retry_after => '3 s'",
        _ => "",
    };
    let rows = stage.nack(token, &names, more).await;
    model.nacked(token, &rows);
}

async fn redrive(stage: &Stage, model: &mut Model) {
    stage.redrive(10_000, "").await;
    for (state, failures) in model.events.values_mut() {
        if *state == State::Dead {
            (*state, *failures) = (State::Pending, 0);
        }
    }
}

/// Delivers everything that is left; nothing may be missing.
async fn drain(
    stage: &Stage,
    model: &mut Model,
    batches: &mut HashMap<i64, usize>,
    second: u32,
    most: u32,
) {
    for round in 1..50_u32 {
        stage.clock(&format!("{} s", second + round * 1_000)).await;
        if round == 1 {
            expired(stage, model, batches, most).await;
            redrive(stage, model).await;
        }
        let mut any = false;
        while let Some(taken) = stage.try_take(5).await {
            any = true;
            for name in model.taken(&taken) {
                model.set(&name, State::Done);
            }
            stage.ack(taken.token, "").await;
        }
        if !any {
            break;
        }
    }
    let left: Vec<_> = model
        .events
        .iter()
        .filter(|(_, e)| e.0 != State::Done)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        stage.play.show("select count(*) from once.retry").await,
        "0"
    );
    assert_eq!(stage.dead().await, "");
}

#[tokio::test]
async fn many_workers_that_fail_and_vanish_keep_every_key_in_order() {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    const EACH: usize = 60;
    let stage = Stage::open(
        r#"{"max_attempts": 1000000, "backoff_base": "1 ms", "backoff_cap": "5 ms", "lease": "150 ms"}"#,
    )
    .await;
    stage
        .play
        .show("create table log (n bigserial, name text)")
        .await;
    for i in 0..EACH {
        for key in KEYS {
            stage.emit_keyed(&format!("{key}_{i:03}"), key).await;
        }
    }
    let acked = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for number in 0..6 {
        let worker = stage.another().await;
        worker.play.show("reset once.fake_now").await;
        let acked = Arc::clone(&acked);
        workers.push(tokio::spawn(async move {
            work(worker, number, &acked, EACH * KEYS.len()).await;
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    for key in KEYS {
        let logged = stage
            .play
            .show(&format!(
                "select name from log where name like '{key}%' order by n"
            ))
            .await;
        let expected: Vec<String> = (0..EACH).map(|i| format!("{key}_{i:03}")).collect();
        assert_eq!(logged, expected.join("\n"), "{key}");
    }
    assert_eq!(
        stage.play.show("select count(*) from once.retry").await,
        "0"
    );
}

/// Works until so many events are acked. Fails, releases or vanishes with its batch now and then; what it acks
/// it logs in the same transaction.
async fn work(stage: Stage, number: u64, acked: &AtomicUsize, all: usize) {
    let mut random = StdRng::seed_from_u64(number);
    let begun = Instant::now();
    while acked.load(Ordering::Relaxed) < all {
        assert!(begun.elapsed().as_secs() < 120, "the storm does not end");
        let Some(taken) = stage.try_take(random.random_range(1..8)).await else {
            tokio::task::yield_now().await;
            continue;
        };
        if random.random_bool(0.1) {
            continue; // Vanishes: nobody gets these before the lease is over.
        }
        let events = taken.shown.split(' ');
        let names: Vec<&str> = events.map(|e| e.split(':').next().unwrap()).collect();
        // Whoever was too slow is told so, and has logged nothing.
        let done = &names[..random.random_range(0..=names.len())];
        if !done.is_empty() {
            let ack = stage.ack_sql(taken.token, &done.join(" "));
            let log = format!(
                "insert into log (name) select unnest('{{{}}}'::text[])",
                done.join(",")
            );
            match stage.play.attempt(&format!("{ack}; {log}")).await {
                Ok(_) => acked.fetch_add(done.len(), Ordering::Relaxed),
                Err(refusal) => {
                    assert_eq!(refusal.code, "ON001", "{refusal:?}");
                    continue;
                }
            };
        }
        if done.len() < names.len() {
            let kind = ["released", "error"][random.random_range(0..2)];
            let nack = format!(
                "select * from once.outbox_nack('t', 'default', {}, kind => '{kind}')",
                taken.token
            );
            if let Err(refusal) = stage.play.attempt(&nack).await {
                assert_eq!(refusal.code, "ON001", "{refusal:?}");
            }
        }
    }
}
