//! The story of the receipts: a shop takes orders, and the customer's own system gets a webhook for
//! each; that receiver is a process with a ledger of its own, and it dies like the others.

mod case;
mod database;
mod proof;
mod verdict;

use std::time::Duration;

use anyhow::Result;

use crate::ground::Ground;
use crate::orders::KINDS;
use crate::settings::Settings;
use crate::story::{Card, Story, run_wanted};
use case::Case;

const HEADLINES: [&str; 5] = [
    "receipts lost",
    "receipts twice, by a receiver that dedupes",
    "receipts of orders that do not exist",
    "receipts out of their customer's order",
    "duplicates seen on the wire",
];

fn cases(settings: &Settings) -> [Case; 3] {
    let asked = settings.receipts as usize;
    let window = Duration::from_secs(settings.receipt_seconds.into());
    [
        Case {
            card: Card {
                name: "receipts_naive",
                title: "save, then send",
                explain: "A handler as people write it by hand: commit the order, then send its receipt, up to three times.",
                pg_once: false,
                asked,
            },
            how: "naive",
            window,
            rounds: 3,
        },
        Case {
            card: Card {
                name: "receipts_send_first",
                title: "send, then save",
                explain: "The other way round: the receipt is sent inside the order's transaction, which commits when it \
                          was answered.",
                pg_once: false,
                asked: asked / 2,
            },
            how: "send-first",
            window: window / 2,
            rounds: 2,
        },
        Case {
            card: Card {
                name: "receipts_pg_once",
                title: "pg_once",
                explain: "The same load. The receipt is an event of the order's transaction; relays send it with its \
                          delivery key until it is answered.",
                pg_once: true,
                asked,
            },
            how: "pg-once",
            window,
            rounds: 3,
        },
    ]
}

pub async fn tell(ground: &Ground<'_>) -> Result<Story> {
    let runs = run_wanted(cases(ground.settings), ground).await?;
    Ok(Story {
        title: "The same receipts, the same receiver",
        lead: format!(
            "Clients send <code>POST /orders</code> to two shop processes, and each order's receipt goes as a webhook \
             to a receiver, with pg_once by {} relays. The receiver keeps a ledger on disk, remembers delivery keys, \
             answers late or not at all, and is killed with <code>kill -9</code> and restarted like everybody else.",
            ground.settings.services
        ),
        headlines: &HEADLINES,
        evidence: "the table `orders` and every line of the receiver's own ledger (`outside_ledger`)",
        kinds: &KINDS,
        after_load: "receipts on their way may arrive",
        runs,
    })
}
