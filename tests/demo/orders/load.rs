//! Runs the plan: every order's client at its time, all of them at once.
//!
//! Invariant: a client behaves as its order's manner says, whatever the service does.

use std::collections::HashSet;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use crate::client::{Ask, Clients, Waits};
use crate::crashes::Crashes;
use crate::load::open_loop;
use crate::progress::Progress;

use super::plan::{Manner, Order};

/// Where orders are sent.
pub const PATH: &str = "/orders";
pub const WAITS: Waits = Waits {
    answer: Duration::from_millis(800),
    end: Duration::from_secs(20),
};

/// The two clicks of a client who is ready to wait for the answer to the other one.
const WAITING: [&str; 2] = ["waiting", "waiting_twin"];
const WAIT_SECONDS: u64 = 1;

/// The whole load, until every client has its final answer or has gone.
pub async fn run(clients: &Clients, orders: &[Order], crashes: &[&Crashes], progress: &Progress) {
    let serve = |order: &Order| {
        crashes.iter().for_each(|crashes| crashes.one_started());
        let (clients, order) = (clients.clone(), order.clone());
        async move { serve(&clients, &order).await }
    };
    open_loop(orders, |order| order.starts, progress, serve).await;
}

/// The clients of these keys ask once more: they were told that nobody knew, and by now somebody does.
pub async fn come_back(clients: &Clients, orders: &[Order], keys: &HashSet<String>) {
    let mut running = JoinSet::new();
    for order in orders.iter().filter(|order| keys.contains(&order.key)) {
        let (clients, order) = (clients.clone(), order.clone());
        running.spawn(async move {
            let mut rng = StdRng::seed_from_u64(order.seed ^ 2);
            clients.insist(&ask(&order, "late"), &mut rng).await;
        });
    }
    while running.join_next().await.is_some() {}
}

pub fn ask(order: &Order, client: &'static str) -> Ask {
    Ask {
        path: PATH.to_owned(),
        key: order.key.clone(),
        client,
        amount_cents: order.amount_cents,
        body: order.body(),
    }
}

async fn serve(clients: &Clients, order: &Order) {
    let mut rng = StdRng::seed_from_u64(order.seed);
    let first = ask(order, "first");
    match order.manner {
        Manner::Plain => {
            clients.insist(&first, &mut rng).await;
        }
        Manner::Twice { waits } => {
            let mut other_rng = StdRng::seed_from_u64(order.seed ^ 1);
            let (clients, names) = match waits {
                true => (clients.ready_to_wait(WAIT_SECONDS), WAITING),
                false => (clients.clone(), ["first", "twin"]),
            };
            let [one, twin] = names.map(|name| ask(order, name));
            tokio::join!(
                clients.insist(&one, &mut rng),
                clients.insist(&twin, &mut other_rng)
            );
        }
        Manner::OtherBody => {
            clients.insist(&first, &mut rng).await;
            let other = Ask {
                client: "other_body",
                amount_cents: order.other_amount(),
                body: order.other_body(),
                ..first
            };
            clients.insist(&other, &mut rng).await;
        }
        Manner::GivesUp { after } => {
            let once = Ask {
                client: "once",
                ..first
            };
            clients.hang_up_after(&once, after, &mut rng).await;
        }
        Manner::Leaves => {
            let once = Ask {
                client: "once",
                ..first
            };
            clients.hang_up_after(&once, WAITS.answer, &mut rng).await;
        }
    }
}
