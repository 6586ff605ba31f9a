//! The outbox through crashes and restores: what was committed is delivered, nothing is handed out under a token
//! or a delivery key that somebody has seen for something else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod killed;
mod lost_commits;
mod moved;
mod receiver;

use pg_once_tests::{Cluster, playground};

use playground::Playground;

const DATABASE: &str = "shop";

async fn session(cluster: &Cluster) -> Playground {
    Playground::on(cluster, DATABASE).await
}

/// Moves the session's clock this far ahead.
async fn ahead(play: &Playground, interval: &str) {
    play.show(&format!(
        "select set_config('once.fake_now', (clock_timestamp() + interval '{interval}')::text, false)"
    ))
    .await;
}
