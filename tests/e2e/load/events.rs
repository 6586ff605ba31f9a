//! Events: emitters whose lost answers are asked for again by dedupe key, and consumers that handle each message
//! once by the inbox, in one transaction with what they write.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Load;
use super::door::{Fault, Row, Session, text};

pub const TOPICS: [&str; 3] = ["posts", "paid", "undo"];

/// Numbers whose commit was answered.
#[derive(Default)]
pub struct Posted(pub Mutex<BTreeSet<usize>>);

/// Emits one number after the other; every tenth is undone and never seen.
pub async fn emitter(load: Arc<Load>, who: usize, of: usize) {
    let mut session = load.door.enter().await;
    let mut n = who;
    while !load.door.is_quiet() {
        match emit(&session, n, who).await {
            Ok(()) => {
                if n % 10 != 9 {
                    load.posted.0.lock().unwrap().insert(n);
                }
                n += of;
            }
            Err(fault) => session.recover(&fault).await,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn emit(session: &Session<'_>, n: usize, who: usize) -> Result<(), Fault> {
    // Every third has no order. The keys of one emitter are its own: it knows in which order it emitted.
    let order_key = match n % 3 {
        0 => "null".to_owned(),
        _ => format!("'{who}-{}'", n % 4),
    };
    let delay = match n % 6 {
        0 => ", delay => '200 ms'",
        _ => "",
    };
    let payload = format!("{{\"event\": \"post {n}\"}}");
    let sql = if n % 10 == 9 {
        format!(
            "begin; select once.outbox_emit('posts', '{{\"event\": \"undone {n}\"}}', {order_key}); rollback"
        )
    } else {
        format!(
            "begin;
             insert into posted select {n}, {order_key}
              where (select emitted from once.outbox_emit('posts', '{payload}', {order_key}, 'post {n}'{delay}));
             commit"
        )
    };
    session.rows(&sql).await?;
    Ok(())
}

/// Takes, delivers and settles, now of this topic, now of that.
pub async fn consumer(load: Arc<Load>, who: usize) {
    let mut session = load.door.enter().await;
    let mut batches = who;
    while !load.door.is_closed() {
        let mut idle = true;
        for topic in TOPICS {
            match consume(&load, &session, topic, batches).await {
                Ok(true) => {
                    batches += 1;
                    idle = false;
                }
                Ok(false) => {}
                Err(fault) => session.recover(&fault).await,
            }
        }
        if idle {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// One batch. False: nothing was due.
async fn consume(
    load: &Load,
    session: &Session<'_>,
    topic: &str,
    batches: usize,
) -> Result<bool, Fault> {
    let events = take(load, session, topic, 10).await?;
    let Some(first) = events.first() else {
        return Ok(false);
    };
    let token = text(first, 0).to_owned();
    // A busy loop of one kind of end would never meet the others.
    let handled = match batches % 5 {
        1 if !load.door.is_quiet() => &events[..events.len().div_ceil(2)],
        _ => &events[..],
    };
    for event in handled {
        handle(load, session, topic, event).await?;
    }
    let of = format!("'{topic}', 'default', {token}");
    let ids: Vec<&str> = handled.iter().map(|event| text(event, 1)).collect();
    let settle = match batches % 5 {
        // A crash in the middle: some acked, the rest comes back by itself.
        1 => format!("select once.outbox_ack({of}, array[{}])", ids.join(", ")),
        2 => format!(
            "select once.outbox_ack({of}, array[{}]); select once.outbox_ack({of})",
            ids[0]
        ),
        // Delivered and told as failed: it comes again, and the inbox knows it.
        3 => format!(
            "select once.outbox_nack({of}, array[{}], 'said so'); select once.outbox_ack({of})",
            ids[ids.len() - 1]
        ),
        4 => format!("select once.outbox_extend({of}, '2 s'); select once.outbox_ack({of})"),
        _ => format!("select once.outbox_ack({of})"),
    };
    match session.rows(&settle).await {
        Ok(_) => Ok(true),
        // Too slow: somebody else has them.
        Err(Fault::Lost) => Ok(true),
        Err(fault) => Err(fault),
    }
}

/// A batch: token, event_id, delivery_key, order_key and the event itself.
pub async fn take(
    load: &Load,
    session: &Session<'_>,
    topic: &str,
    max: usize,
) -> Result<Vec<Row>, Fault> {
    let take = format!(
        "select token, event_id, delivery_key, order_key, payload ->> 'event'
           from once.outbox_take('{topic}', max => {max}, lease => '2 s')"
    );
    let events = session.rows(&take).await?;
    if let Some(first) = events.first() {
        let (token, holder) = (text(first, 0), format!("batch {}", text(first, 2)));
        let what = format!("topic {topic}");
        load.receiver
            .saw_token(&what, token.parse().unwrap(), &holder);
    }
    Ok(events)
}

/// What an event of this topic does in the saga of its request, and what comes of it: paid once, or never paid and so
/// nothing to compensate.
fn saga(topic: &str) -> Option<(&str, &str)> {
    match topic {
        "paid" => Some(("action", "run")),
        "undo" => Some(("compensation", "skipped")),
        _ => None,
    }
}

/// The receiver hears of it, and the handler's write is in one transaction with the message.
pub async fn handle(
    load: &Load,
    session: &Session<'_>,
    topic: &str,
    event: &Row,
) -> Result<(), Fault> {
    let (key, what) = (text(event, 2), text(event, 4));
    load.receiver.deliver(key, &format!("{topic} {what}"));
    let order_key = event[3]
        .as_deref()
        .map_or("null".to_owned(), |key| format!("'{key}'"));
    let accept = format!("begin; select accepted from once.inbox_accept('consumer', '{key}')");
    let end = if session.text(&accept).await? == "t" {
        if let Some((operation, wanted)) = saga(topic) {
            let request = what.split(' ').next_back().unwrap();
            let barrier = format!(
                "select once.inbox_barrier('shipping', '{request}', 'ship', '{operation}')"
            );
            assert_eq!(session.text(&barrier).await?, wanted, "{topic} {what}");
        }
        format!(
            "insert into consumed (topic, event, order_key, delivery_key)
                values ('{topic}', '{what}', {order_key}, '{key}');
             select once.inbox_record('consumer', '{key}', '\"{what}\"'); commit"
        )
    } else {
        "rollback".to_owned()
    };
    session.rows(&end).await?;
    Ok(())
}
