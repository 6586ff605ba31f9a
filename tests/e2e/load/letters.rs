//! Dead letters: events some of which fail for good at first, and others whose consumer dies too often. Who gives one
//! up notes it in the same transaction, the operator looks and redrives, and in the end all are consumed, once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Load;
use super::door::{Fault, Row, Session, text};
use super::events::{self, take};

pub const TOPIC: &str = "frail";

/// What was answered: numbers that were emitted, events that died and those that were redriven.
#[derive(Default)]
pub struct Letters {
    pub emitted: Mutex<BTreeSet<usize>>,
    pub died: Mutex<BTreeSet<String>>,
    pub redriven: Mutex<BTreeSet<String>>,
}

/// How often the event of this number has to die before it can be handled, and of what.
fn fate(n: usize) -> (usize, &'static str) {
    match n % 16 {
        1 | 9 | 12 => (1, "error"),
        3 => (1, "never"),
        5 => (2, "error"),
        _ => (0, "error"),
    }
}

/// Emits one number after the other.
pub async fn emitter(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    let mut n = 0;
    while !load.door.is_quiet() {
        match emit(&session, n).await {
            Ok(()) => {
                load.letters.emitted.lock().unwrap().insert(n);
                n += 1;
            }
            Err(fault) => session.recover(&fault).await,
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn emit(session: &Session<'_>, n: usize) -> Result<(), Fault> {
    let order_key = match n % 3 {
        0 => "null".to_owned(),
        _ => format!("'f{}'", n % 5),
    };
    let deaths = fate(n).0;
    session
        .rows(&format!(
            "begin;
             insert into frail select {n}, {order_key}, {deaths}
              where (select emitted
                       from once.outbox_emit('{TOPIC}', '{{\"event\": \"frail {n}\"}}', {order_key}, '{n}'));
             commit"
        ))
        .await?;
    Ok(())
}

/// Takes, delivers and settles; what it refuses stays behind, with all of its order_key.
pub async fn consumer(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    let mut batches = 0;
    while !load.door.is_closed() {
        match consume(&load, &mut session, batches).await {
            Ok(true) => batches += 1,
            Ok(false) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(fault) => session.recover(&fault).await,
        }
    }
}

/// One batch. False: nothing was due.
async fn consume(load: &Load, session: &mut Session<'_>, batches: usize) -> Result<bool, Fault> {
    let events = take(load, session, TOPIC, 5).await?;
    let Some(first) = events.first() else {
        return Ok(false);
    };
    let token = text(first, 0).to_owned();
    let (mut left, mut handled) = (BTreeSet::new(), Vec::new());
    for event in &events {
        // Its key's earlier event has taken it out of the batch.
        if event[3].as_ref().is_some_and(|key| left.contains(key)) {
            continue;
        }
        if let Some(kind) = refuses(session, event).await? {
            load.receiver
                .deliver(text(event, 2), &format!("{TOPIC} {}", text(event, 4)));
            refuse(load, session, event, kind).await?;
            left.extend(event[3].clone());
        } else {
            events::handle(load, session, TOPIC, event).await?;
            handled.push(text(event, 1));
        }
    }
    // One that never says so: what was alone in its batch counts that.
    if handled.is_empty() || (batches % 8 == 6 && !load.door.is_quiet()) {
        return Ok(true);
    }
    let ids = handled.join(", ");
    let ack = format!("select once.outbox_ack('{TOPIC}', 'default', {token}, array[{ids}])");
    session.rows(&ack).await?;
    Ok(true)
}

/// What is wrong with an event that has not died often enough yet.
async fn refuses(session: &Session<'_>, event: &Row) -> Result<Option<&'static str>, Fault> {
    let n = text(event, 4).strip_prefix("frail ").unwrap();
    let (deaths, kind) = fate(n.parse().unwrap());
    let died = format!(
        "select count(*) from died where event_id = {}",
        text(event, 1)
    );
    let died: usize = session.text(&died).await?.parse().unwrap();
    Ok((died < deaths).then_some(kind))
}

/// Tells that it failed, and notes it where that was its end. Whose answer was lost says the same again; where that is
/// done already, what it noted is there.
async fn refuse(
    load: &Load,
    session: &mut Session<'_>,
    event: &Row,
    kind: &str,
) -> Result<(), Fault> {
    let (token, id, what) = (text(event, 0), text(event, 1), text(event, 4));
    let nack = format!(
        "with n as (select * from once.outbox_nack('{TOPIC}', 'default', {token}, array[{id}], 'unreadable', '{kind}')),
              d as (insert into died select event_id, {token}, '{what}' from n where dead on conflict do nothing)
         select dead from n"
    );
    let noted =
        format!("select exists (select from died where event_id = {id} and token = {token})");
    let mut ask = &nack;
    loop {
        match session.text(ask).await {
            Ok(dead) => {
                if dead == "t" {
                    load.letters.died.lock().unwrap().insert(id.to_owned());
                }
                return Ok(());
            }
            Err(fault @ Fault::Gone) => session.recover(&fault).await,
            Err(fault @ Fault::Done) => {
                session.recover(&fault).await;
                ask = &noted;
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Looks at the dead letters now and then, notes them and redrives them.
pub async fn operator(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    while !load.door.is_closed() {
        if let Err(fault) = redrive(&load, &session).await {
            session.recover(&fault).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn redrive(load: &Load, session: &Session<'_>) -> Result<(), Fault> {
    let note = format!(
        "begin;
         insert into redriven
         select event_id, payload ->> 'event', order_key, kind, attempts from once.outbox_dead('{TOPIC}', 'default', 20)
         returning event_id"
    );
    let rows = session.rows(&note).await?;
    let ids: Vec<&str> = rows.iter().map(|row| text(row, 0)).collect();
    if ids.is_empty() {
        session.rows("rollback").await?;
        return Ok(());
    }
    let list = ids.join(", ");
    let rise = format!("select once.outbox_redrive('{TOPIC}', 'default', 100, array[{list}])");
    // Somebody whom a lost connection left behind may have them.
    let all = session.text(&rise).await? == ids.len().to_string();
    session
        .rows(if all { "commit" } else { "rollback" })
        .await?;
    if all {
        let ids = ids.into_iter().map(str::to_owned);
        load.letters.redriven.lock().unwrap().extend(ids);
    }
    Ok(())
}
