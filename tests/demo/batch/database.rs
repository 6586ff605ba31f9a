//! The batch service's tables, the logs that triggers keep of them, and the evidence that is loaded
//! beside them after a run.
//!
//! Invariant: both services have the same tables and the same logs; neither service writes to a log.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::plan::{Job, START_POINTS, customers};
use crate::database::{copy, load_saw};
use crate::journal::Attempt;

/// The story's tables and machine, as users find them.
const TABLES: &str = include_str!("../../../sql/examples/batch_job.sql");
const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

const RIGHTS: &str = "\
grant select, insert, update on wallet, batch_job, batch_item to shop, janitor;";

/// AFTER triggers see what was really written, by whomever. A change of a wallet was for the job whose
/// items the same transaction wrote, or that a comment in the service's statement names.
const LOGS: &str = "\
create table status_log (
    id bigint generated always as identity primary key,
    job bigint not null, old_status text not null, new_status text not null, flagged boolean not null,
    at timestamptz not null default clock_timestamp());
create table wallet_log (
    id bigint generated always as identity primary key,
    customer text not null, job bigint, delta bigint not null, xid xid8 not null default pg_current_xact_id(),
    at timestamptz not null default clock_timestamp());
create table item_log (job bigint not null, xid xid8 not null default pg_current_xact_id());
create function note_item() returns trigger language plpgsql security definer set search_path = public as $$
begin
    insert into item_log (job) values (new.job_id);
    return null;
end $$;
create function note_status() returns trigger language plpgsql security definer set search_path = public as $$
begin
    insert into status_log (job, old_status, new_status, flagged)
    values (new.id, old.status, new.status, old.cancel_requested);
    return null;
end $$;
create function note_wallet() returns trigger language plpgsql security definer set search_path = public as $$
begin
    insert into wallet_log (customer, job, delta)
    values (new.customer, substring(current_query() from 'job=([0-9]+)')::bigint, new.points - old.points);
    return null;
end $$;
create trigger note_status after update on batch_job
    for each row when (old.status <> new.status) execute function note_status();
create trigger note_item after insert or update on batch_item for each row execute function note_item();
create trigger note_wallet after update on wallet for each row execute function note_wallet();";

const EVIDENCE: &str = "\
create table asked (job bigint primary key, customer text, price bigint);
create table artifact (name text primary key);
update wallet_log w set job = i.job from item_log i where w.job is null and i.xid = w.xid;
create index on wallet_log (job);
create index on status_log (job);";

/// Tables, wallets and jobs; with the machine and its guard where the service uses pg_once.
pub async fn prepare(owner: &Client, machine: bool, jobs: &[Arc<Job>]) -> Result<()> {
    owner.batch_execute(TABLES).await?;
    owner.batch_execute(RIGHTS).await?;
    if machine {
        owner
            .execute("select once.machine_define($1::text::json)", &[&MACHINE])
            .await
            .context("machine_define")?;
        owner
            .batch_execute("select once.machine_guard('batch_job', true)")
            .await
            .context("machine_guard")?;
    }
    owner.batch_execute(LOGS).await?;
    let wallets = customers().map(|name| [Some(name), Some(START_POINTS.to_string())]);
    copy(owner, "wallet (customer, points)", wallets).await?;
    owner
        .batch_execute("create table wallet_start as select * from wallet")
        .await?;
    let rows = jobs
        .iter()
        .map(|job| [Some(job.id.to_string()), Some(job.customer.clone())]);
    copy(owner, "batch_job (id, customer)", rows).await
}

/// Puts the plan, the files that are there and the clients' journal beside the tables.
pub async fn load_evidence(
    owner: &Client,
    jobs: &[Arc<Job>],
    store: &Path,
    attempts: &[Attempt],
) -> Result<()> {
    owner.batch_execute(EVIDENCE).await?;
    let asked = jobs.iter().map(|job| {
        [
            Some(job.id.to_string()),
            Some(job.customer.clone()),
            Some(job.price().to_string()),
        ]
    });
    copy(owner, "asked", asked).await?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(store)? {
        files.push([Some(entry?.file_name().to_string_lossy().into_owned())]);
    }
    copy(owner, "artifact", files.into_iter()).await?;
    load_saw(owner, attempts).await?;
    owner.batch_execute("analyze").await?;
    Ok(())
}
