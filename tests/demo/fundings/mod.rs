//! The story of the fundings: money moves between two accounts outside, and our own ledger has to say
//! what happened there, whatever dies in between.

mod case;
mod database;
mod plan;
mod proof;
mod verdict;

use std::time::Duration;

use anyhow::Result;

use crate::ground::Ground;
use crate::settings::Settings;
use crate::story::{Card, Kind, Story, run_wanted};
use case::Case;

const HEADLINES: [&str; 6] = [
    "fundings ended",
    "cents outside that the ledger does not know",
    "fundings half-way left",
    "transfers made twice",
    "compensations made twice",
    "compensations out of order",
];

const KINDS: [Kind; 3] = [
    ("funding accepted", "made"),
    ("accepted before", "replayed"),
    ("failed: cut, timed out, 5xx", "failed"),
];

fn cases(settings: &Settings) -> [Case; 2] {
    let asked = settings.fundings as usize;
    let window = Duration::from_secs(settings.funding_seconds.into());
    [
        Case {
            card: Card {
                name: "fundings_naive",
                title: "a table as a queue",
                explain: "A worker as people write it by hand: note each transfer that was answered, try four times, then \
                          give back what is known to have happened.",
                pg_once: false,
                asked,
            },
            how: "naive",
            window,
            rounds: 3,
        },
        Case {
            card: Card {
                name: "fundings_pg_once",
                title: "pg_once",
                explain: "The same load. One key for each funding; a transfer names its compensation before it begins, \
                          and when an event's attempts are used up its key is aborted in the same transaction.",
                pg_once: true,
                asked,
            },
            how: "pg-once",
            window,
            rounds: 2,
        },
    ]
}

pub async fn tell(ground: &Ground<'_>) -> Result<Story> {
    let runs = run_wanted(cases(ground.settings), ground).await?;
    Ok(Story {
        title: "The same fundings, the same account",
        lead: "Each funding pulls money from a customer's account outside, pushes it to a custody account there, and \
               posts two entries that were pending. Some accounts are frozen, and some take the money and never say \
               so: those fundings fail for good half-way, and what they moved has to go back. Workers, the endpoints \
               and the account itself are killed with <code>kill -9</code>."
            .to_owned(),
        headlines: &HEADLINES,
        evidence: "the tables `funding` and `entry`, every line of the account's own ledger (`outside_ledger`), and \
                   what each transfer must have moved (`expected`)",
        kinds: &KINDS,
        after_load: "what is under way may end",
        runs,
    })
}
