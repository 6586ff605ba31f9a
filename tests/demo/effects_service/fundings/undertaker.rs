//! Ends the fundings whose event died with its worker: the lease of the last attempt ran out, so
//! nobody was there to see `dead` and to abort the key.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use pg_once::{Claim, Topic};

use super::worker::{claim, given_up};
use super::{Funding, TOPIC};
use crate::Service;

const NAP: Duration = Duration::from_millis(300);
const PAGE: i32 = 1000;

/// For ever.
pub async fn run(service: &Service) {
    let mut ended = HashSet::new();
    loop {
        tokio::time::sleep(NAP).await;
        if let Err(error) = look(service, &mut ended).await {
            // Its connection was cut: the next round sees to it.
            eprintln!("undertaker: {error:#}");
        }
    }
}

/// One round; `ended` are the events that need no more looks.
async fn look(service: &Service, ended: &mut HashSet<i64>) -> Result<()> {
    let fundings = Topic::new(TOPIC).default_subscriber();
    for letter in fundings.dead(&service.pool, PAGE).await? {
        if ended.contains(&letter.event_id) {
            continue;
        }
        let funding: Funding = letter.payload.parse()?;
        match claim(service, &funding.funding).await? {
            Claim::Claimed(lease) | Claim::Resumed(lease) => {
                lease.abort(&service.pool, &given_up()?).await?;
            }
            // Somebody is still at it: next time.
            Claim::InProgress { .. } => continue,
            _ => {}
        }
        ended.insert(letter.event_id);
    }
    Ok(())
}
