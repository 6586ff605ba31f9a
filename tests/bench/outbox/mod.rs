//! The outbox beside pgmq: events taken and acked, emitted, under a steady load, after a backlog, and
//! what they leave on disk. A table of contents; each group of cases has its file.

mod backlog;
mod disk;
mod drain;
mod emit;
mod flow;
mod idle;
mod passed;
mod place;
pub mod side;
mod steady;
mod take;

use anyhow::Result;

use crate::database::Database;
use crate::measured::Results;
use crate::table;

/// Runs the groups that are asked for.
pub async fn measure(database: &Database, results: &mut Results) -> Result<()> {
    let settings = &database.settings;
    for reason in left_out(database) {
        table::say(&reason);
        results.left_out.push(reason);
    }
    if settings.wants_of_outbox("take") {
        results.cases.extend(take::beside_pgmq(database).await?);
    }
    if settings.wants_of_outbox("keys") {
        results.cases.push(take::with_keys(database).await?);
    }
    if settings.wants_of_outbox("emit") {
        results.cases.push(emit::one_by_one(database).await?);
    }
    if settings.wants_of_outbox("idle") {
        results.figures.extend(idle::takes(database).await?);
    }
    if settings.wants_of_outbox("size") {
        results.figures.extend(disk::after_a_flow(database).await?);
    }
    if settings.wants_of_outbox("dead") {
        let sizes = disk::beside_a_dead_subscriber(database).await?;
        results.figures.extend(sizes);
    }
    if settings.wants_of_outbox("down") {
        results
            .cases
            .push(backlog::after_a_backlog(database).await?);
    }
    if settings.wants_of_outbox("passed") {
        results.cases.push(passed::after_many(database).await?);
    }
    if settings.wants_of_outbox("steady") {
        steady::all(database, results).await?;
    }
    Ok(())
}

/// What this run does not measure, or measures on a smaller scale.
fn left_out(database: &Database) -> Vec<String> {
    let settings = &database.settings;
    let mut reasons = Vec::new();
    if settings.pgmq().is_none() {
        let path = settings.pgmq_sql.display();
        reasons.push(format!("pgmq: its SQL is not at {path}"));
    }
    if settings.events() < 1_000_000 {
        let events = table::grouped(settings.events() as f64);
        reasons.push(format!(
            "outbox: {events} events where a million are asked for, ten times that where ten million are"
        ));
    }
    if settings.steady() < 120 {
        let seconds = settings.steady();
        reasons.push(format!(
            "outbox: {seconds} s of steady load where 120 are asked for; pgmq has not decayed by then"
        ));
    }
    reasons
}
