//! Two clerks press "close billing" at once.
//!
//! `cargo run -p pg-once --example billing -- --database-url postgres://localhost/mydb`, in a database where
//! `CREATE EXTENSION pg_once` was done. The program runs two cases (two clerks at once; a tax office that answers 503,
//! then does not answer) and fails unless there is one invoice for each billing. `clerk.rs` is the part to read;
//! `client/tests/client/billing.rs` kills this program at every statement.

mod clerk;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use pg_once::{Acted, Json, Machine};
use uuid::Uuid;

use clerk::{Clerk, PATH};
use common::foreign::{Foreign, Trouble};
use common::http::Http;
use common::{Story, expect, log, worker};

const TABLES: &str = include_str!("../../../sql/examples/billing.sql");
const DEFINITION: &str = include_str!("../../../sql/examples/billing.json");
const OPEN: &str = "INSERT INTO billing (customer, total) VALUES ('ada', 70) RETURNING id";

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    story: worker::Args,
    /// The billing that the worker closes.
    #[arg(long, hide = true, default_value_t)]
    billing: Uuid,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let Arguments { story, billing } = Arguments::parse();
    if let Some(name) = &story.work_for {
        let clerk = Clerk::of(&Story::open(&story.database_url, name)?, &story.foreign)?;
        return close_in_the_end(&clerk, billing).await;
    }
    let story = Story::begin(&story.database_url, "billing", TABLES).await?;
    let mut definition: serde_json::Value = serde_json::from_str(DEFINITION)?;
    definition["machine"] = story.name.as_str().into();
    // After this time another clerk may close a billing whose process died.
    definition["steps"][0]["lease"] = "1 second".into();
    Machine::define(&story.pool, &Json::from(definition)).await?;
    let office = Foreign::start().await?;
    let clerk = Clerk::of(&story, &office.url)?;
    two_clerks(&story, &clerk).await?;
    office_in_trouble(&story, &clerk, &office).await?;
    let lost = "SELECT count(*) FROM billing LEFT JOIN invoice ON billing_id = billing.id \
                WHERE billing_id IS NULL OR status <> 'closed'";
    expect("billings without an invoice", story.count(lost).await?, 0)?;
    expect(
        "invoices",
        story.count("SELECT count(*) FROM invoice").await?,
        2,
    )?;
    expect("registrations", office.effects(PATH).len(), 2)?;
    clerk.machine.drop(&story.pool).await?;
    story.end(&[]).await
}

impl Clerk {
    fn of(story: &Story, office: &str) -> Result<Self> {
        Ok(Self {
            pool: story.pool.clone(),
            machine: Machine::new(&story.name),
            office: Http::new(office)?,
        })
    }
}

async fn open(story: &Story) -> Result<Uuid> {
    let client = story.pool.get().await?;
    Ok(client.query_one(OPEN, &[]).await?.try_get(0)?)
}

/// One clerk closes the billing; the other gets `InProgress`, or `Refused` if the billing is closed already.
async fn two_clerks(story: &Story, clerk: &Clerk) -> Result<()> {
    let id = open(story).await?;
    let (one, other) = tokio::try_join!(clerk.close(id), clerk.close(id))?;
    println!("two clerks: {one:?}, {other:?}");
    let made = [&one, &other].map(|acted| usize::from(matches!(acted, Acted::Finished { .. })));
    expect("two clerks: closed", made.iter().sum(), 1)
}

/// The office answers 503, then registers but sends no answer, then answers.
async fn office_in_trouble(story: &Story, clerk: &Clerk, office: &Foreign) -> Result<()> {
    let id = open(story).await?;
    office.trouble(PATH, &[Trouble::Refuse(503), Trouble::NoAnswer]);
    for _ in 0..2 {
        let acted = clerk.close(id).await?;
        ensure!(matches!(acted, Acted::Released { .. }), "{acted:?}");
        println!("an office in trouble: {acted:?}");
    }
    close_in_the_end(clerk, id).await
}

/// Tries until the billing is closed.
async fn close_in_the_end(clerk: &Clerk, id: Uuid) -> Result<()> {
    loop {
        match clerk.close(id).await? {
            Acted::Finished { .. } => return Ok(()),
            Acted::Refused { status, .. } if status.as_deref() == Some("closed") => return Ok(()),
            Acted::InProgress { .. } => tokio::time::sleep(Duration::from_millis(50)).await,
            other => bail!("{other:?}"),
        }
    }
}
