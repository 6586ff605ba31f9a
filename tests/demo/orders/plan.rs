//! The load, written down before it runs: who orders what, when, and how the client misbehaves.
//!
//! Invariant: the same seed gives the same plan, so the naive service and pg_once get the same.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

/// How the client of an order behaves, beyond timing out and retrying, which all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Plain,
    /// Sends the same request twice at once; perhaps it asks to wait where the other one is in progress.
    Twice {
        waits: bool,
    },
    /// Uses the key again, later, for another order.
    OtherBody,
    /// Hangs up in the middle of its first request and never comes back.
    GivesUp {
        after: Duration,
    },
    /// Waits for one answer, and never comes back whatever it is.
    Leaves,
}

impl Manner {
    /// Whether this client asks once and is never seen again.
    pub fn leaves(self) -> bool {
        matches!(self, Self::GivesUp { .. } | Self::Leaves)
    }
}

#[derive(Clone, Debug)]
pub struct Order {
    /// The customer and the key of the request, as the services store it.
    pub key: String,
    pub customer: String,
    pub item: &'static str,
    pub amount_cents: i64,
    pub starts: Duration,
    pub manner: Manner,
    /// Where the randomness of this client's backoff begins.
    pub seed: u64,
}

/// Who orders.
pub const CUSTOMERS: u32 = 400;

const ITEMS: [&str; 6] = [
    "tea",
    "coffee",
    "bicycle bell",
    "notebook",
    "umbrella",
    "lamp",
];

impl Order {
    pub fn body(&self) -> String {
        self.body_with(self.amount_cents)
    }

    /// What the same client sends when it uses the key for something else.
    pub fn other_body(&self) -> String {
        self.body_with(self.other_amount())
    }

    pub fn other_amount(&self) -> i64 {
        self.amount_cents + 1
    }

    fn body_with(&self, amount_cents: i64) -> String {
        json!({ "customer": self.customer, "item": self.item, "amount_cents": amount_cents })
            .to_string()
    }
}

/// `count` orders of `customers` customers spread over `window`, in the order of their start.
pub fn plan(count: usize, window: Duration, customers: u32, seed: u64) -> Vec<Order> {
    let mut rng = StdRng::seed_from_u64(seed);
    let order = |_| order(&mut rng, window, customers);
    let mut orders: Vec<Order> = (0..count).map(order).collect();
    orders.sort_by_key(|order| order.starts);
    orders
}

fn order(rng: &mut StdRng, window: Duration, customers: u32) -> Order {
    let item = ITEMS
        .get(rng.random_range(0..ITEMS.len()))
        .copied()
        .unwrap_or("tea");
    let key = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
    let customer = format!("customer-{:03}", rng.random_range(0..customers));
    Order {
        key: format!("{customer}/{key}"),
        customer,
        item,
        amount_cents: rng.random_range(150..25_000),
        starts: window.mul_f64(rng.random()),
        manner: match rng.random_range(0..100) {
            click @ 0..6 => Manner::Twice { waits: click < 3 },
            6..10 => Manner::OtherBody,
            10..13 => Manner::GivesUp {
                after: Duration::from_micros(rng.random_range(1_000..25_000)),
            },
            13..30 => Manner::Leaves,
            _ => Manner::Plain,
        },
        seed: rng.random(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        let keys = |seed| {
            plan(50, Duration::from_secs(1), CUSTOMERS, seed)
                .into_iter()
                .map(|order| order.key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1), keys(2));
    }

    #[test]
    fn a_plan_of_the_smallest_size_has_every_manner() {
        let orders = plan(80, Duration::from_secs(1), CUSTOMERS, 20);
        let has = |wanted: fn(&Manner) -> bool| orders.iter().any(|order| wanted(&order.manner));
        assert!(has(|manner| *manner == Manner::Plain));
        for waits in [false, true] {
            let twice = Manner::Twice { waits };
            assert!(orders.iter().any(|order| order.manner == twice));
        }
        assert!(has(|manner| *manner == Manner::OtherBody));
        assert!(has(|manner| matches!(manner, Manner::GivesUp { .. })));
        assert!(has(|manner| *manner == Manner::Leaves));
    }
}
