//! What the tests of machines share: jobs with items and a wallet, and a machine over these tables with an example of
//! everything (plain moves, a move with a `when`, claim states, a requester without a claim state, cancel, refund).
//!
//! Jobs are made by hand, so a test says in which status each begins.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation is how a test fails"
)]

use crate::playground::Playground;

/// The tables of jobs, items and wallets.
pub const TABLES: &str = "
create table wallet (customer text primary key, points bigint not null default 0);
create table job (
    id bigint primary key, customer text not null default 'c', status text not null default 'new',
    version bigint not null default 0, cancel_requested boolean not null default false,
    n int not null default 0, note text, doc jsonb, at timestamptz, amount numeric, short varchar(5), list int[]);
create table item (
    id bigint primary key, job_id bigint not null, state text not null default 'pending',
    points bigint not null default 1, settled text, note text);
create index item_job on item (job_id, id);
insert into wallet values ('c', 0);";

/// The machine over these tables.
pub const JOB: &str = r#"{
  "machine": "job", "table": "job", "id": "id", "status": "status", "version": "version",
  "status_types": ["new", "ready", "running", "done", "failed", "retrying", "archived", "cancelled"],
  "terminal": ["archived", "cancelled"],
  "transitions": [
    {"from": ["new"], "to": "ready", "when": "n >= 0"},
    {"from": ["ready", "failed"], "to": "new"},
    {"from": ["ready"], "to": "failed"},
    {"from": ["done"], "to": "archived"}
  ],
  "steps": [
    {"step_key": "run", "status": "ready",
     "claim_state": {"*": ["running", "ready"], "worker": ["running", "ready"]},
     "successful_state": {"*": "done", "worker": "done"}, "lease": "30 seconds"},
    {"step_key": "retry", "status": "failed",
     "claim_state": {"worker": ["retrying", "failed"]},
     "successful_state": {"worker": "done", "boss": "archived"}}
  ],
  "cancel": {"flag": "cancel_requested", "to": "cancelled"},
  "refund": {
    "items": "item", "item_id": "id", "subject": "job_id", "marker": "settled", "marked": "returned",
    "when": "state = 'succeeded'", "amount": "points", "wallet": "wallet", "wallet_id": "customer",
    "account": "customer", "balance": "points"}
}"#;

/// A database with the tables and the machine, and a session of a superuser in it.
pub async fn world() -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    define(&play, JOB).await;
    play
}

/// Registers a definition.
pub async fn define(play: &Playground, definition: &str) {
    play.show(&format!(
        "select once.machine_define($def${definition}$def$)"
    ))
    .await;
}

/// Jobs `first` to `last` in this status.
pub async fn jobs(play: &Playground, first: i64, last: i64, status: &str) {
    play.show(&format!(
        "insert into job (id, status) select g, '{status}' from generate_series({first}, {last}) as g"
    ))
    .await;
}

/// `moved|status|version|reason` of a transition; `more` are further arguments.
pub fn transition(id: &str, to: &str, more: &str) -> String {
    format!(
        "select moved, status, version, reason from once.transition('job', '{id}', '{to}'{more})"
    )
}

/// Makes a transition and tells what `transition` asks for.
pub async fn moves(play: &Playground, id: &str, to: &str, more: &str) -> String {
    play.show(&transition(id, to, more)).await
}

/// A claim of a job for a step.
pub fn claim(id: i64, step: &str, more: &str) -> String {
    format!("once.action_claim('job', '{id}', '{step}'{more})")
}

/// The outcome of a claim, and the status that it tells.
pub async fn outcome(play: &Playground, id: i64, step: &str, more: &str) -> String {
    play.show(&format!(
        "select outcome, status from {}",
        claim(id, step, more)
    ))
    .await
}

/// Claims a job and returns the token; `more` are further arguments.
pub async fn token(play: &Playground, id: i64, step: &str, more: &str) -> i64 {
    let call = claim(id, step, more);
    let shown = play
        .show(&format!("select outcome, token from {call}"))
        .await;
    let (outcome, token) = shown.split_once('|').unwrap();
    assert_eq!(outcome, "claimed", "{call}: {shown}");
    token.parse().unwrap()
}

/// Extends a lease.
pub fn extend(id: i64, token: i64) -> String {
    format!("select lease_left, cancelling from once.action_extend('job', '{id}', {token})")
}

/// Finishes an action; `more` are further arguments.
pub fn finish(id: i64, token: i64, more: &str) -> String {
    format!("select outcome, status, version from once.action_finish('job', '{id}', {token}{more})")
}

/// Releases a row; `more` are further arguments.
pub fn release(id: i64, token: i64, more: &str) -> String {
    format!("select status, version from once.action_release('job', '{id}', {token}{more})")
}

/// `status|version` of a job.
pub async fn job(play: &Playground, id: i64) -> String {
    play.show(&format!("select status, version from job where id = {id}"))
        .await
}

/// `done|failed|more` of one sweep of everything.
pub async fn sweep(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select done, failed, more from once.sweep({max}, 'action_release')"
    ))
    .await
}

/// Sweeps until nothing is left to do, and says how much was done and failed.
pub async fn drain(play: &Playground, max: u32) -> (u64, u64) {
    let (mut done, mut failed) = (0, 0);
    for _ in 0..1000 {
        let shown = sweep(play, max).await;
        let mut columns = shown.split('|');
        let mut next = || columns.next().unwrap().to_owned();
        let now: (u64, u64) = (next().parse().unwrap(), next().parse().unwrap());
        done += now.0;
        failed += now.1;
        // Rows that cannot be handled fail again in each sweep.
        if next() == "f" && now.0 == 0 {
            return (done, failed);
        }
    }
    panic!("the sweep does not end");
}

/// A role of this name that may log in and call the functions of `kind`; made unless it is there.
pub async fn role(play: &Playground, name: &str, kind: &str) {
    play.ensure_role(&format!("{name} login")).await;
    play.show(&format!("select once.grant_role('{name}', '{kind}')"))
        .await;
}
