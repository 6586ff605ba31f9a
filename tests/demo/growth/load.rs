//! Clients that insist, and a third of them that ask again seconds later, as a phone does that was out of reach.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::{Ask, Clients, Waits};
use crate::load::open_loop;
use crate::orders::load::ask;
use crate::orders::plan::{Manner, Order, plan};
use crate::progress::Progress;

pub const WAITS: Waits = Waits {
    answer: Duration::from_secs(8),
    end: Duration::from_secs(60),
};
/// When a late retry comes.
const LATE_MS: std::ops::Range<u64> = 1000..6000;
const CUSTOMERS: u32 = 400;

/// The orders; nobody leaves, and nobody asks twice at once, which a service by hand would charge twice anyway.
pub fn orders(count: usize, window: Duration, seed: u64) -> Vec<Order> {
    let mut orders = plan(count, window, CUSTOMERS, seed);
    for order in &mut orders {
        order.manner = Manner::Plain;
    }
    orders
}

/// The whole load; each customer's requests go to the clients of its shard, of which there is one for services that
/// find the server themselves.
pub async fn run(
    clients: &[Clients],
    shards: &HashMap<String, usize>,
    orders: &[Order],
    progress: &Progress,
) {
    let serve = |order: &Order| {
        let shard = shards.get(&order.customer).copied().unwrap_or_default();
        let way = clients.get(shard).cloned();
        let order = order.clone();
        async move {
            if let Some(clients) = way {
                serve(&clients, &order).await;
            }
        }
    };
    open_loop(orders, |order| order.starts, progress, serve).await;
}

async fn serve(clients: &Clients, order: &Order) {
    let mut rng = StdRng::seed_from_u64(order.seed);
    let first = ask(order, "first");
    clients.insist(&first, &mut rng).await;
    if rng.random_ratio(1, 3) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(LATE_MS))).await;
        let late = Ask {
            client: "late",
            ..first
        };
        clients.insist(&late, &mut rng).await;
    }
}
