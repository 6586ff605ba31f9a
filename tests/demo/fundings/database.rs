//! The tables of the fundings, and the evidence that is loaded beside them after a run.
//!
//! Invariant: both services have the same tables; the hand-written one alone writes the columns of its
//! queue.

use anyhow::Result;
use tokio_postgres::Client;

use super::plan::Funding;
use crate::database::{copy, load_saw};
use crate::journal::Attempt;
use crate::outside;
use crate::outside::line::Line;

const TABLES: &str = "\
create table funding (
    funding text primary key,
    customer text not null,
    custody text not null,
    amount_cents bigint not null,
    status text not null default 'pending' check (status in ('pending', 'posted', 'archived')),
    made_at timestamptz not null default clock_timestamp(),
    ended_at timestamptz,
    -- Of the hand-written queue: how many transfers were answered, and who is at it.
    done integer not null default 0,
    attempts integer not null default 0,
    taken_at timestamptz
);
create table entry (
    entry bigint generated always as identity primary key,
    funding text not null references funding,
    account text not null,
    amount_cents bigint not null,
    status text not null default 'pending' check (status in ('pending', 'posted', 'archived'))
);
create index on entry (funding);
create index on funding (made_at) where status = 'pending';
grant select, insert, update on funding, entry to shop;";

/// A funding is tried four times; a compensation for as long as it takes.
const TOPICS: &str = "\
select once.topic_set('fundings', '{}');
select once.subscriber_set('fundings', 'default',
    '{\"max_attempts\": 4, \"backoff_base\": \"100 ms\", \"backoff_cap\": \"400 ms\"}');
select once.topic_set('compensations', '{}');
select once.subscriber_set('compensations', 'default',
    '{\"max_attempts\": 1000, \"backoff_base\": \"50 ms\", \"backoff_cap\": \"400 ms\"}');";

/// What each transfer must have moved in the end, by what the ledger of our own says.
const EVIDENCE: &str = "\
create table asked (funding text primary key, doomed boolean);
create view expected as
    select funding || '/pull' as reference, case status when 'posted' then -amount_cents else 0 end as amount_cents
    from funding
    union all
    select funding || '/push', case status when 'posted' then amount_cents else 0 end from funding;
create view transfer as
    select regexp_replace(reference, '/[^/]*$', '') as funding, split_part(reference, '/', -1) as leg, *
    from outside_ledger where kind in ('made', 'reversed');";

/// Fundings that have not ended, and something that changes while somebody is at them.
pub const PENDING: &str =
    "select count(*) filter (where status = 'pending'), coalesce(sum(attempts), 0) from funding";

pub async fn prepare(owner: &Client, pg_once: bool) -> Result<()> {
    owner.batch_execute(TABLES).await?;
    if pg_once {
        owner.batch_execute(TOPICS).await?;
    }
    Ok(())
}

/// Puts the account's ledger, the plan and the clients' journal beside the fundings.
pub async fn load_evidence(
    owner: &Client,
    ledger: &[Line],
    plan: &[Funding],
    attempts: &[Attempt],
) -> Result<()> {
    outside::load(owner, ledger).await?;
    owner.batch_execute(EVIDENCE).await?;
    let fundings = plan
        .iter()
        .map(|funding| [Some(funding.id.clone()), Some(funding.doomed.to_string())]);
    copy(owner, "asked", fundings).await?;
    load_saw(owner, attempts).await?;
    owner.batch_execute("analyze").await?;
    Ok(())
}
