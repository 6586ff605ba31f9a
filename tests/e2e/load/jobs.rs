//! Batch jobs that can be cancelled while they run: workers that claim and sometimes die half-way, clients that
//! cancel, teardown workers that give the points back and delete the artifacts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Load;
use super::door::{Fault, Session, text};

/// What a wallet holds before its job has cost anything.
const FULL: i64 = 1000;

/// A job with four items of a wallet of its own; made once, however often it is asked for.
const NEW: &str = "
with w as (insert into wallet values ('WHO', FULL) on conflict do nothing returning customer),
     j as (insert into batch_job (customer) select customer from w returning id)
insert into batch_item (job_id, input, points, artifact)
select j.id, i, 3 * i, j.id || '-' || i from j, generate_series(1, 4) as i";

/// Customers whose job was made and jobs whose cancellation was promised, as clients were told.
#[derive(Default)]
pub struct Promised {
    pub made: Mutex<BTreeSet<String>>,
    pub cancelled: Mutex<BTreeSet<String>>,
}

async fn rest() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Makes jobs, not many more than the workers get done, and cancels every third.
pub async fn customer(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    let mut n = 0;
    while !load.door.is_quiet() {
        match order(&load, &session, n).await {
            Ok(()) => n += 1,
            Err(fault) => session.recover(&fault).await,
        }
        rest().await;
    }
}

async fn order(load: &Load, session: &Session<'_>, n: usize) -> Result<(), Fault> {
    let open = "select count(*) from batch_job where status not in ('done', 'cancelled')";
    if session.text(open).await?.parse::<usize>().unwrap() > 20 {
        return Ok(());
    }
    let who = format!("c{n}");
    let make = NEW.replace("WHO", &who).replace("FULL", &FULL.to_string());
    session.rows(&make).await?;
    load.promised.made.lock().unwrap().insert(who);
    if !n.is_multiple_of(3) {
        return Ok(());
    }
    let any = "select id from batch_job where status in ('queued', 'running') order by id % 7, id limit 1";
    if let Some(row) = session.rows(any).await?.first() {
        let id = text(row, 0);
        let request = format!("select outcome from once.cancel_request('batch_job', '{id}')");
        let outcome = session.text(&request).await?;
        if matches!(outcome.as_str(), "teardown" | "accepted") {
            let mut cancelled = load.promised.cancelled.lock().unwrap();
            cancelled.insert(id.to_owned());
        }
    }
    Ok(())
}

/// A worker's hold on a job.
struct Held {
    job: String,
    token: i64,
}

/// Runs jobs; every sixth it leaves lying with its first item done.
pub async fn worker(load: Arc<Load>, who: usize) {
    let mut session = load.door.enter().await;
    let mut n = 0;
    while !load.door.is_closed() {
        let queued = format!(
            "select id from batch_job where status = 'queued' and not cancel_requested
              order by (id + {who}) % 5, id limit 1"
        );
        let job = match session.rows(&queued).await {
            Ok(rows) => rows.first().map(|row| text(row, 0).to_owned()),
            Err(fault) => {
                session.recover(&fault).await;
                continue;
            }
        };
        let Some(job) = job else {
            rest().await;
            continue;
        };
        n += 1;
        let holder = format!("worker {who}-{n}");
        let leaves = n % 6 == 5 && !load.door.is_quiet();
        run(&load, &mut session, &job, &holder, leaves).await;
    }
}

/// Claims the job and works on it until it is done, given up or lost.
async fn run(load: &Load, session: &mut Session<'_>, job: &str, holder: &str, leaves: bool) {
    // What it held when a connection was lost: the next claim tells whether it still has it.
    let mut before: Option<Held> = None;
    while !load.door.is_closed() {
        let claimed = match claim(load, session, job, holder).await {
            Ok(claimed) => claimed,
            Err(fault) => {
                session.recover(&fault).await;
                continue;
            }
        };
        let token = claimed.as_ref().map(|held| held.token);
        if let Some(lost) = before.take().filter(|held| Some(held.token) != token) {
            withdraw(load, session, &lost).await;
        }
        let Some(held) = claimed else {
            return rest().await;
        };
        match work(load, session, &held, leaves).await {
            Ok(()) => return,
            Err(fault @ (Fault::Lost | Fault::NotNow)) => {
                session.recover(&fault).await;
                return withdraw(load, session, &held).await;
            }
            Err(fault) => session.recover(&fault).await,
        }
        before = Some(held);
    }
}

async fn claim(
    load: &Load,
    session: &Session<'_>,
    job: &str,
    holder: &str,
) -> Result<Option<Held>, Fault> {
    let claim = format!(
        "select outcome, token from once.action_claim('batch_job', '{job}', 'run', 'worker', '2 s', '{holder}')"
    );
    let row = session.row(&claim).await?;
    if text(&row, 0) != "claimed" {
        return Ok(None);
    }
    let held = Held {
        job: job.to_owned(),
        token: text(&row, 1).parse().unwrap(),
    };
    let what = format!("job {job}");
    load.receiver.saw_token(&what, held.token, holder);
    Ok(Some(held))
}

async fn work(load: &Load, session: &Session<'_>, held: &Held, leaves: bool) -> Result<(), Fault> {
    let Held { job, token } = held;
    let todo = format!(
        "select id, artifact from batch_item where job_id = {job} and state <> 'succeeded' order by id"
    );
    for row in session.rows(&todo).await? {
        let (item, artifact) = (text(&row, 0), text(&row, 1));
        // The row that names it is there already, so that it will be found.
        load.store.make(artifact, *token);
        let extend = format!(
            "begin; select cancelling from once.action_extend('batch_job', '{job}', {token})"
        );
        if session.text(&extend).await? == "t" {
            load.store.delete_own(artifact, *token);
            return give_back(session, held).await;
        }
        session
            .rows(&format!(
                "with i as (update batch_item set state = 'succeeded', made_by = {token}
                             where id = {item} returning points, job_id)
                 update wallet as w set points = w.points - i.points
                   from i join batch_job as j on j.id = i.job_id where w.customer = j.customer;
                 commit"
            ))
            .await?;
        if leaves {
            return Ok(());
        }
    }
    let finish = format!(
        "begin; select outcome from once.action_finish('batch_job', '{job}', {token}, '{{\"result\": \"{token}\"}}')"
    );
    if session.text(&finish).await? == "cancelling" {
        return give_back(session, held).await;
    }
    let keep = format!("update batch_item set settled = 'kept' where job_id = {job}; commit");
    session.rows(&keep).await?;
    Ok(())
}

async fn give_back(session: &Session<'_>, held: &Held) -> Result<(), Fault> {
    let Held { job, token } = held;
    let release =
        format!("rollback; select status from once.action_release('batch_job', '{job}', {token})");
    session.rows(&release).await?;
    Ok(())
}

/// A holder whose lease is lost deletes what it made outside, but for what it had committed.
async fn withdraw(load: &Load, session: &mut Session<'_>, held: &Held) {
    let Held { job, token } = held;
    let mine = format!(
        "select artifact from batch_item where job_id = {job} and made_by is distinct from {token}"
    );
    while !load.door.is_closed() {
        match session.rows(&mine).await {
            Ok(rows) => {
                for row in rows {
                    load.store.delete_own(text(&row, 0), *token);
                }
                return;
            }
            Err(fault) => session.recover(&fault).await,
        }
    }
}

/// Tears down what is cancelled and not leased.
pub async fn undertaker(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    while !load.door.is_closed() {
        let pending = "select id from once.cancel_pending('batch_job', 5)";
        let jobs = match session.rows(pending).await {
            Ok(rows) => rows,
            Err(fault) => {
                session.recover(&fault).await;
                continue;
            }
        };
        for row in jobs {
            if let Err(fault) = tear_down(&load, &session, text(&row, 0)).await {
                session.recover(&fault).await;
            }
        }
        rest().await;
    }
}

async fn tear_down(load: &Load, session: &Session<'_>, job: &str) -> Result<(), Fault> {
    let of = format!("'batch_job', '{job}'");
    let refund = format!("select remaining, pass from once.cancel_refund({of}, 3)");
    let pass = loop {
        let row = session.row(&refund).await?;
        if text(&row, 0) == "f" {
            break text(&row, 1).to_owned();
        }
    };
    let mut after = "null".to_owned();
    loop {
        let list =
            format!("select item_id, item ->> 'artifact' from once.cancel_items({of}, {after}, 2)");
        let page = session.rows(&list).await?;
        let Some(last) = page.last() else {
            break;
        };
        after = format!("'{}'", text(last, 0));
        for row in &page {
            load.store.delete(text(row, 1));
        }
    }
    let confirm = format!("select confirmed from once.cancel_confirm({of}, {pass})");
    if session.text(&confirm).await? == "t" {
        let finish = format!("select status from once.cancel_finish({of})");
        session.rows(&finish).await?;
    }
    Ok(())
}

/// Puts queued jobs aside one by one, as long as anything new is begun, and all of them back at once; and puts things
/// right after a hand that writes past the guard.
pub async fn operator(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    let mut rounds = 0;
    while !load.door.is_closed() {
        rounds += 1;
        let done = match rounds % 10 {
            3 if !load.door.is_quiet() => by_hand(&session).await,
            8 => adopt(&session).await,
            _ => aside_and_back(&load, &session).await,
        };
        if let Err(fault) = done {
            session.recover(&fault).await;
        }
        rest().await;
    }
}

/// A queued job wears the claim state, and nobody has its lease.
async fn by_hand(session: &Session<'_>) -> Result<(), Fault> {
    const HAND: &str = "
        begin; set local session_replication_role = replica;
        with j as (update batch_job set status = 'running'
                    where id = (select id from batch_job
                                 where status = 'queued' and not exists (select from by_hand where job = id)
                                 order by id % 3, id limit 1 for update skip locked)
                   returning id)
        insert into by_hand select id from j; commit";
    session.rows(HAND).await?;
    Ok(())
}

/// A row that somebody has locked is left to the next time; one that was cancelled may have been torn down before.
async fn adopt(session: &Session<'_>) -> Result<(), Fault> {
    const ADOPT: &str = "
        begin; select once.action_adopt('batch_job');
        update by_hand set over = true
         where not over and (exists (select from once.action_lease as l
                                      where l.machine = 'batch_job' and l.row_id = job::text and l.state = 'h')
                             or exists (select from batch_job as j where j.id = job and j.status = 'cancelled'));
        commit";
    session.rows(ADOPT).await?;
    Ok(())
}

async fn aside_and_back(load: &Load, session: &Session<'_>) -> Result<(), Fault> {
    const ASIDE: &str = "
        select t.moved from (select id::text as id from batch_job where status = 'queued' and id % 3 = 0 limit 2) as j,
               lateral once.transition('batch_job', j.id, 'failed', array['queued']) as t";
    const BACK: &str = "
        select t.moved from (select array_agg(id::text) as ids from batch_job where status = 'failed' having count(*) > 0) as j,
               lateral once.transition_many('batch_job', j.ids, 'queued') as t";
    if !load.door.is_quiet() {
        session.rows(ASIDE).await?;
    }
    session.rows(BACK).await?;
    Ok(())
}
