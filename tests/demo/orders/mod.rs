//! The story of the orders: clients send `POST /orders`, the service charges a bank over HTTP and
//! saves the order.

pub mod bank_process;
#[path = "../shared/caller.rs"]
mod caller;
mod case;
pub mod database;
pub mod load;
pub mod plan;
pub mod proof;
mod reconcile;
mod refunds;
mod verdict;

use std::time::Duration;

use anyhow::Result;

use crate::ground::Ground;
use crate::settings::Settings;
use crate::story::{Card, Kind, Story, run_wanted};
use case::{Case, TheirMemory};

const HEADLINES: [&str; 6] = [
    "orders made",
    "double charges",
    "charges without an order",
    "wrong answers replayed",
    "requests stuck",
    "... finished by the completer",
];

/// The answers to orders.
pub const KINDS: [Kind; 5] = [
    ("order made", "made"),
    ("stored answer replayed", "replayed"),
    ("422 another request", "mismatched"),
    ("409 in progress", "waiting"),
    ("failed: cut, timed out, 5xx", "failed"),
];

/// The four runs, in the order of the story.
fn cases(settings: &Settings) -> [Case; 4] {
    let orders = settings.orders as usize;
    let window = Duration::from_secs(settings.seconds.into());
    [
        Case {
            card: Card {
                name: "naive",
                title: "charge, then save",
                explain: "A handler as people write it by hand: look the key up, charge, save the order.",
                pg_once: false,
                asked: orders,
            },
            bank: TheirMemory::Dedupes,
            window,
            rounds: 7,
        },
        Case {
            card: Card {
                name: "pg_once",
                title: "pg_once",
                explain: "The same load. The handler claims the key, records each step, and a retry resumes where the dead \
                      one stopped.",
                pg_once: true,
                asked: orders,
            },
            bank: TheirMemory::Dedupes,
            window,
            rounds: 3,
        },
        Case {
            card: Card {
                name: "pg_once_forgetful_bank",
                title: "pg_once, forgetful bank",
                explain: "A bank that forgets Idempotency-Keys: when a step was begun before, the handler looks at the bank \
                      first.",
                pg_once: true,
                asked: orders / 5,
            },
            bank: TheirMemory::CanBeAsked,
            window: window.mul_f64(0.4),
            rounds: 1,
        },
        Case {
            card: Card {
                name: "pg_once_silent_bank",
                title: "pg_once, silent bank",
                explain: "A bank that forgets keys and cannot be asked, and sends its ledger afterwards. What nobody \
                          knows is parked, and settled from that ledger; so are the refunds whose delivery has died.",
                pg_once: true,
                asked: orders / 5,
            },
            bank: TheirMemory::LedgerOnly,
            window: window.mul_f64(0.4),
            rounds: 1,
        },
    ]
}

pub async fn tell(ground: &Ground<'_>) -> Result<Story> {
    let runs = run_wanted(cases(ground.settings), ground).await?;
    Ok(Story {
        title: "The same orders, the same trouble",
        lead: format!(
            "Clients send <code>POST /orders</code> with an Idempotency-Key to {} service processes, which charge a \
             bank over HTTP and save the order. Answers get lost, clients time out and retry, requests come twice, \
             backends are terminated, and processes are killed with <code>kill -9</code>. One client in five asks \
             once and never comes back: what is left of its request is the completer's.",
            ground.settings.services
        ),
        headlines: &HEADLINES,
        evidence: "the table `orders`, the bank's own ledger (`bank_ledger`), what was asked for (`asked`) and every \
                   answer that a client got (`saw`)",
        kinds: &KINDS,
        after_load: "the completer goes on with the orders whose clients left",
        runs,
    })
}
