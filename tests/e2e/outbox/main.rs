//! The outbox as its callers meet it: emit, take, ack, extend; many workers, late commits, lost answers, killed
//! workers, bad input.
//!
//! What fails in between (nack, retries, dead letters) is outbox_retry's, options are outbox_options', space is
//! outbox_retire's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod idle;
mod killed;
mod lanes;
mod late;
mod levels;
mod quiet;
mod refusals;
mod repeats;
mod subscribers;
mod transactions;
mod workers;

use pg_once_tests::{playground, stage, waiting};
use playground::Playground;

/// Isolation levels at which a snapshot is kept.
const KEPT: [&str; 2] = ["repeatable read", "serializable"];

/// What is due for `subscriber`, taken and acked until nothing is: the payloads in the order they came.
async fn drain(play: &Playground, subscriber: &str) -> String {
    let mut all = Vec::new();
    loop {
        let sql = format!(
            "select token, payload #>> '{{}}' from once.outbox_take('t', '{subscriber}', 100)"
        );
        let rows = play.show(&sql).await;
        let mut token = None;
        for row in rows.lines() {
            let (t, payload) = row.split_once('|').unwrap();
            token = Some(t);
            all.push(payload.to_owned());
        }
        let Some(token) = token else {
            return all.join(" ");
        };
        play.show(&format!(
            "select once.outbox_ack('t', '{subscriber}', {token})"
        ))
        .await;
    }
}

/// Sorted words.
fn sorted(words: &str) -> String {
    let mut all: Vec<&str> = words.split_whitespace().collect();
    all.sort_unstable();
    all.join(" ")
}
