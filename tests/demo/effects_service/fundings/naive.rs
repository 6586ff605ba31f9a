//! A funding as people write it by hand: a table as a queue, a column that says how far it has come,
//! four attempts, and then what is known to have happened is given back.
//!
//! It is the demo's measuring stick, so it is honest: each step's end is written down at once, and what
//! a dead worker had is taken up again after a while. What it lacks is a key that the other side could
//! know a call again by, and a memory of calls that were begun and never answered.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio_postgres::types::Type;

use super::{Funding, Leg, end};
use crate::{Service, crash};

const IDLE: Duration = Duration::from_millis(60);
const ATTEMPTS: i32 = 4;
const TRIES: u32 = 3;

const TAKE: &str = "\
update funding set taken_at = clock_timestamp(), attempts = attempts + 1
where funding = (select funding from funding
                 where status = 'pending' and (taken_at is null or taken_at < clock_timestamp() - $1 * interval '1 ms')
                 order by made_at limit 1 for update skip locked)
returning funding, customer, custody, amount_cents, done, attempts";
const DONE: &str = "update funding set done = $2 where funding = $1";

/// For ever.
pub async fn run(service: &Service) {
    loop {
        match work(service).await {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(IDLE).await,
            Err(error) => {
                // It stays taken for a while, and is tried again then.
                eprintln!("{error:#}");
                tokio::time::sleep(IDLE).await;
            }
        }
    }
}

/// One attempt at one funding; false: there was none.
async fn work(service: &Service) -> Result<bool> {
    let client = service.pool.get().await?;
    let after = i64::try_from(service.lease.as_millis())?;
    let taken = client.query_typed(TAKE, &[(&after, Type::INT8)]).await?;
    drop(client);
    let Some(row) = taken.first() else {
        return Ok(false);
    };
    crash::point("after_take");
    let funding = Funding {
        funding: row.get("funding"),
        customer: row.get("customer"),
        custody: row.get("custody"),
        amount_cents: row.get("amount_cents"),
    };
    let (done, attempts): (i32, i32) = (row.get("done"), row.get("attempts"));
    let done = usize::try_from(done)?;
    if attempts > ATTEMPTS {
        give_back(service, &funding, done).await?;
        return Ok(true);
    }
    for (at, leg) in Leg::BOTH.into_iter().enumerate().skip(done) {
        let body = funding.transfer(leg).to_string();
        service.outside.post("/charges", None, body).await?;
        crash::point("after_transfer");
        let client = service.pool.get().await?;
        let made = i32::try_from(at + 1)?;
        let args = [
            (&funding.funding as _, Type::TEXT),
            (&made as _, Type::INT4),
        ];
        client.query_typed(DONE, &args).await?;
        crash::point("after_step_done");
    }
    finish(service, &funding, "posted").await?;
    Ok(true)
}

/// Reverses what is known to have happened, the last first.
async fn give_back(service: &Service, funding: &Funding, done: usize) -> Result<()> {
    for leg in Leg::BOTH.into_iter().take(done).rev() {
        reverse(service, funding, leg).await?;
        crash::point("after_reversal");
    }
    finish(service, funding, "archived").await
}

async fn reverse(service: &Service, funding: &Funding, leg: Leg) -> Result<()> {
    let mut last = anyhow!("not tried");
    for _ in 0..TRIES {
        let body = funding.transfer(leg).to_string();
        match service.outside.post("/reversals", None, body).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn finish(service: &Service, funding: &Funding, status: &str) -> Result<()> {
    let mut client = service.pool.get().await?;
    let transaction = client.transaction().await?;
    end(&transaction, &funding.funding, status).await?;
    crash::point("before_end_commit");
    transaction.commit().await?;
    Ok(())
}
