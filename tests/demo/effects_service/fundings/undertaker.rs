//! Ends the fundings whose event died with its worker: the lease of the last attempt ran out, so
//! nobody was there to abort the key.

use std::collections::HashSet;
use std::time::Duration;

use pg_once::{DeadLetter, Error, Topic};

use super::TOPIC;
use super::worker::give_up;
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
            eprintln!("undertaker: {error}");
        }
    }
}

/// One round; `ended` are the events that need no more looks.
async fn look(service: &Service, ended: &mut HashSet<i64>) -> Result<(), Error> {
    let fundings = Topic::new(TOPIC).default_subscriber();
    for letter in fundings.dead(&service.pool, PAGE).await? {
        if ended.contains(&letter.event_id) {
            continue;
        }
        match bury(service, &letter).await {
            Ok(()) => {
                ended.insert(letter.event_id);
            }
            // Somebody is still at it, or the connection was cut: the next round, and now the others.
            Err(error) => eprintln!("undertaker, event {}: {error}", letter.event_id),
        }
    }
    Ok(())
}

/// In one transaction: a claim of its own would outlive a janitor that dies before it aborts.
async fn bury(service: &Service, letter: &DeadLetter) -> Result<(), Error> {
    let mut client = service.pool.get().await?;
    let transaction = client.transaction().await?;
    give_up(&transaction, &letter.payload.parse()?).await?;
    transaction.commit().await?;
    Ok(())
}
