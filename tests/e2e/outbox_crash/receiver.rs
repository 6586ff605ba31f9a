//! The outside world: a receiver that outlives the server and dedupes by delivery key, as receivers should.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

/// What one event is to its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub number: usize,
    /// `~`: none.
    pub order_key: String,
}

#[derive(Default)]
struct Books {
    /// By delivery key: what it stood for first.
    known: HashMap<String, Event>,
    /// What was accepted, in that order: each delivery key once.
    accepted: Vec<Event>,
    /// Deliveries that were duplicates on the wire.
    duplicates: usize,
    tokens: HashMap<i64, BTreeSet<usize>>,
}

#[derive(Default)]
pub struct Receiver {
    books: Mutex<Books>,
}

impl Receiver {
    /// Rows of `token | delivery_key | order_key | payload`, of one take; returns its token.
    pub fn deliver(&self, rows: &str) -> Option<i64> {
        let mut taken: Option<i64> = None;
        let mut numbers = BTreeSet::new();
        let mut events = Vec::new();
        for row in rows.lines() {
            let cells: Vec<&str> = row.split('|').collect();
            taken = Some(cells[0].parse().unwrap());
            let event = Event {
                order_key: cells[2].to_owned(),
                number: cells[3].parse().unwrap(),
            };
            numbers.insert(event.number);
            events.push((cells[1].to_owned(), event));
        }
        let token = taken?;
        let books = &mut *self.books.lock().unwrap();
        if let Some(before) = books.tokens.insert(token, numbers) {
            panic!("token {token} was handed out before, for {before:?}");
        }
        for (key, event) in events {
            match books.known.get(&key) {
                None => {
                    books.known.insert(key, event.clone());
                    books.accepted.push(event);
                }
                Some(first) => {
                    assert_eq!(first, &event, "delivery key {key} stands for two events");
                    books.duplicates += 1;
                }
            }
        }
        Some(token)
    }

    /// The numbers accepted, and how often each.
    pub fn accepted(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for event in &self.books.lock().unwrap().accepted {
            *counts.entry(event.number).or_default() += 1;
        }
        counts
    }

    /// The numbers accepted of each order_key, in that order.
    pub fn by_key(&self) -> BTreeMap<String, Vec<usize>> {
        let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for event in &self.books.lock().unwrap().accepted {
            if event.order_key != "~" {
                keys.entry(event.order_key.clone())
                    .or_default()
                    .push(event.number);
            }
        }
        keys
    }

    pub fn duplicates(&self) -> usize {
        self.books.lock().unwrap().duplicates
    }
}
