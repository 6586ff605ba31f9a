//! The load, written down before it runs: who funds what, and which of them cannot succeed.
//!
//! Invariant: the same seed gives the same plan, so both services get the same.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const CUSTOMERS: u32 = 60;

/// How an account behaves; its name says so to the other side.
const WAYS: [&str; 2] = ["frozen", "silent"];

pub struct Funding {
    /// The customer and the key of the request, as the services store it.
    pub id: String,
    pub customer: String,
    pub custody: String,
    pub amount_cents: i64,
    pub starts: Duration,
    /// One of its accounts will never say yes.
    pub doomed: bool,
    /// Where the randomness of its client's backoff begins.
    pub seed: u64,
}

impl Funding {
    pub fn body(&self) -> String {
        json!({ "funding": self.id, "customer": self.customer, "custody": self.custody,
                "amount_cents": self.amount_cents })
        .to_string()
    }
}

/// `count` fundings spread over `window`, in the order of their start.
pub fn plan(count: usize, window: Duration, seed: u64) -> Vec<Funding> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut fundings: Vec<Funding> = (0..count).map(|_| funding(&mut rng, window)).collect();
    fundings.sort_by_key(|funding| funding.starts);
    fundings
}

fn funding(rng: &mut StdRng, window: Duration) -> Funding {
    let customer = format!("customer-{:02}", rng.random_range(0..CUSTOMERS));
    let custody = "custody".to_owned();
    let way = WAYS
        .get(rng.random_range(0..WAYS.len()))
        .unwrap_or(&"frozen");
    let roll = rng.random_range(0..100);
    let key = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
    let customer = match roll {
        0..5 => format!("{way}-{customer}"),
        _ => customer,
    };
    Funding {
        id: format!("{customer}/{key}"),
        customer,
        custody: match roll {
            5..15 => format!("{way}-{custody}"),
            _ => custody,
        },
        amount_cents: rng.random_range(1_000..100_000),
        starts: window.mul_f64(rng.random()),
        doomed: roll < 15,
        seed: rng.random(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_fundings_and_another_seed_others() {
        let bodies = |seed| {
            let fundings = plan(20, Duration::from_secs(1), seed);
            fundings.iter().map(Funding::body).collect::<Vec<_>>()
        };
        assert_eq!(bodies(1), bodies(1));
        assert_ne!(bodies(1), bodies(2));
    }

    #[test]
    fn a_plan_of_the_smallest_size_has_every_way_to_fail() {
        let fundings = plan(100, Duration::from_secs(1), 20);
        let accounts = |name: fn(&Funding) -> &String| fundings.iter().map(name);
        for way in WAYS {
            assert!(accounts(|funding| &funding.customer).any(|name| name.starts_with(way)));
            assert!(accounts(|funding| &funding.custody).any(|name| name.starts_with(way)));
        }
        assert!(fundings.iter().any(|funding| !funding.doomed));
    }
}
