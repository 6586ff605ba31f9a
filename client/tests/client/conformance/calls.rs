//! Makes the calls of sql/examples/conformance.json through the crate `pg_once`.

use std::collections::BTreeMap;
use std::time::Duration;

use pg_once::{
    Accepted, Action, ActionClaim, ActionEnd, ActionOptions, Batch, Claim, ClaimOptions,
    EmitOptions, Error, Inbox, Json, Lease, Machine, NackOptions, Response, Scope, Step, StepEvent,
    StepEvents, Subscriber, Topic,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Said, Session, fields, nothing, row, rows, told};

/// The part of an earlier answer that a call needs.
pub enum Handle {
    None,
    Lease(Lease),
    Action(Action),
    Batch(Batch),
}

/// The arguments of a call, as text.
#[derive(Clone)]
pub struct With(pub BTreeMap<String, String>);

impl With {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn json(&self, name: &str) -> Option<Json> {
        self.get(name).map(Json::from_text)
    }

    fn seconds(&self, name: &str) -> Option<Duration> {
        let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
        self.get(name).map(seconds)
    }

    fn subscriber(&self) -> Subscriber {
        Topic::new(self.text("topic")).default_subscriber()
    }

    fn event(&self, name: &str) -> Option<StepEvent> {
        #[derive(Deserialize)]
        struct Written<'t> {
            topic: &'t str,
            #[serde(borrow)]
            payload: &'t RawValue,
        }
        let event: Written<'_> = serde_json::from_str(self.get(name)?).unwrap();
        let payload = Json::from_text(event.payload.get());
        Some(StepEvent::new(&Topic::new(event.topic), payload))
    }

    fn response(&self) -> Response {
        Response {
            code: self.text("code").parse().unwrap(),
            body: self.json("body"),
            headers: self.json("headers"),
        }
    }

    /// The ids of the events at the given places of the batch.
    fn events(&self, batch: &Batch) -> Option<Vec<i64>> {
        let id = |place: &str| batch.events[place.parse::<usize>().unwrap()].event_id;
        Some(self.get("events")?.split(',').map(id).collect())
    }
}

pub async fn make(
    session: &Session,
    call: &str,
    of: Option<&Handle>,
    with: &With,
) -> Result<Said, Error> {
    match (call, of) {
        ("key.claim", None) => claim_key(session, with).await,
        ("action.claim", None) => claim_action(session, with).await,
        ("outbox.emit", None) => emit(session, with).await,
        ("outbox.take", None) => take(session, with).await,
        ("outbox.dead", None) => dead(session, with).await,
        ("outbox.redrive", None) => {
            let redriven = with.subscriber().redrive(session, 100, None).await?;
            Ok(row([("redriven", told(redriven))]))
        }
        ("inbox.accept", None) => accept(session, with).await,
        ("inbox.record", None) => {
            let inbox = Inbox::new(with.text("scope"));
            let verdict = with.json("verdict").unwrap();
            let recorded = inbox.record(session, with.text("message_id"), &verdict);
            recorded.await.map(nothing)
        }
        (_, Some(Handle::Lease(lease))) => with_lease(session, call, lease, with).await,
        (_, Some(Handle::Action(action))) => with_action(session, call, action, with).await,
        (_, Some(Handle::Batch(batch))) => with_batch(session, call, batch, with).await,
        _ => panic!("no such call: {call}"),
    }
}

async fn claim_key(session: &Session, with: &With) -> Result<Said, Error> {
    let mut options = ClaimOptions::new();
    if let Some(request) = with.json("request") {
        options = options.request(request);
    }
    if let Some(holder) = with.get("holder") {
        options = options.holder(holder);
    }
    if let Some(ttl) = with.seconds("ttl") {
        options = options.ttl(ttl);
    }
    let key = Scope::new(with.text("scope")).key(with.text("key"));
    Ok(match key.claim(session, &options).await? {
        Claim::Claimed(lease) => leased("claimed", lease),
        Claim::Resumed(lease) => leased("resumed", lease),
        Claim::Replayed(answer) => row([
            ("outcome", told("replayed")),
            ("code", told(answer.code)),
            ("body", answer.body.map(Json::into_string)),
            ("headers", answer.headers.map(Json::into_string)),
        ]),
        Claim::InProgress { .. } => row([("outcome", told("in_progress"))]),
        Claim::Mismatched => row([("outcome", told("mismatched"))]),
        Claim::Gone => row([("outcome", told("gone"))]),
        Claim::Parked { attempt } => row([("outcome", told("parked")), ("attempt", told(attempt))]),
    })
}

fn leased(outcome: &str, lease: Lease) -> Said {
    let said = row([
        ("outcome", told(outcome)),
        ("token", told(lease.token())),
        ("attempt", told(lease.attempt())),
        ("recovery_point", told(lease.recovery_point())),
        ("state", lease.state().map(ToString::to_string)),
    ]);
    let handle = Handle::Lease(lease);
    Said { handle, ..said }
}

async fn with_lease(
    session: &Session,
    call: &str,
    lease: &Lease,
    with: &With,
) -> Result<Said, Error> {
    match call {
        "key.advance" => {
            let (point, state) = (with.text("recovery_point"), with.json("state"));
            let advanced = lease.advance(session, point, state.as_ref(), None);
            advanced.await.map(nothing)
        }
        "key.step" => begin(session, lease, with).await,
        "key.step_done" => {
            let mut events = StepEvents::new();
            if let Some(event) = with.event("on_complete") {
                events = events.on_complete(event);
            }
            if let Some(event) = with.event("on_abort") {
                events = events.on_abort(event);
            }
            let (step, result) = (with.text("step"), with.json("result"));
            let done = lease.step_done_with(session, step, result.as_ref(), &events);
            let done = done.await?;
            Ok(row([
                ("recorded", told(done.recorded)),
                ("result", done.result.map(Json::into_string)),
            ]))
        }
        "key.complete" => lease.complete(session, &with.response()).await.map(nothing),
        "key.abort" => lease.abort(session, &with.response()).await.map(nothing),
        "key.release" => {
            let released = lease.release(session, with.get("error"), with.seconds("retry_after"));
            released.await.map(nothing)
        }
        "key.park" => lease.park(session, with.text("reason")).await.map(nothing),
        "key.extend" => lease.extend(session, None).await.map(nothing),
        _ => panic!("no such call with a lease: {call}"),
    }
}

async fn begin(session: &Session, lease: &Lease, with: &With) -> Result<Said, Error> {
    let step = match with.event("on_abort") {
        Some(event) => lease.step_with(session, with.text("step"), &event).await?,
        None => lease.step(session, with.text("step")).await?,
    };
    let begun = |derived_key, attempted| {
        row([
            ("done", told(false)),
            ("derived_key", Some(derived_key)),
            ("attempted", told(attempted)),
        ])
    };
    Ok(match step {
        Step::Done(result) => row([
            ("done", told(true)),
            ("result", result.map(Json::into_string)),
        ]),
        Step::First { derived_key } => begun(derived_key, 0),
        Step::Again {
            derived_key,
            attempted,
            ..
        } => begun(derived_key, attempted),
    })
}

async fn claim_action(session: &Session, with: &With) -> Result<Said, Error> {
    let mut options = ActionOptions::new().requester(with.text("requester"));
    if let Some(holder) = with.get("holder") {
        options = options.holder(holder);
    }
    if let Some(version) = with.get("version") {
        options = options.version(version.parse().unwrap());
    }
    let subject = Machine::new(with.text("machine")).row(with.text("id"));
    let claim = subject.claim(session, with.text("step"), &options).await?;
    Ok(match claim {
        ActionClaim::Claimed(action) => {
            let said = row([
                ("outcome", told("claimed")),
                ("token", told(action.token())),
                ("status", told(action.status())),
                ("version", action.version().and_then(told)),
            ]);
            let handle = Handle::Action(action);
            Said { handle, ..said }
        }
        ActionClaim::InProgress { .. } => row([("outcome", told("in_progress"))]),
        ActionClaim::Cancelling => row([("outcome", told("cancelling"))]),
        ActionClaim::Refused { status, version } => row([
            ("outcome", told("refused")),
            ("status", Some(status)),
            ("version", version.and_then(told)),
        ]),
        ActionClaim::NotFound => row([("outcome", told("not_found"))]),
        ActionClaim::Unclaimed => row([("outcome", told("unclaimed"))]),
    })
}

async fn with_action(
    session: &Session,
    call: &str,
    action: &Action,
    with: &With,
) -> Result<Said, Error> {
    Ok(match call {
        "action.extend" => {
            let extended = action.extend(session, None).await?;
            row([("cancelling", told(extended.cancelling))])
        }
        "action.finish" => match action.finish(session, with.json("patch").as_ref()).await? {
            ActionEnd::Finished { status, version } => row([
                ("outcome", told("finished")),
                ("status", Some(status)),
                ("version", version.and_then(told)),
            ]),
            ActionEnd::Cancelling => row([("outcome", told("cancelling"))]),
        },
        "action.release" => {
            let released = action.release(session, with.get("error")).await?;
            row([
                ("status", Some(released.status)),
                ("version", released.version.and_then(told)),
            ])
        }
        _ => panic!("no such call with an action: {call}"),
    })
}

async fn emit(session: &Session, with: &With) -> Result<Said, Error> {
    let mut options = EmitOptions::new();
    if let Some(key) = with.get("order_key") {
        options = options.order_key(key);
    }
    if let Some(key) = with.get("dedupe_key") {
        options = options.dedupe_key(key);
    }
    if let Some(headers) = with.json("headers") {
        options = options.headers(headers);
    }
    if let Some(delay) = with.seconds("delay") {
        options = options.delay(delay);
    }
    let payload = with.json("payload").unwrap();
    let topic = Topic::new(with.text("topic"));
    let emitted = topic.emit(session, &payload, &options).await?;
    Ok(row([
        ("event_id", told(emitted.event_id)),
        ("emitted", told(emitted.emitted)),
    ]))
}

async fn take(session: &Session, with: &With) -> Result<Said, Error> {
    let Some(batch) = with.subscriber().take(session, 10, None).await? else {
        return Ok(rows(Vec::new()));
    };
    let event = |event: &pg_once::Event| {
        fields([
            ("event_id", told(event.event_id)),
            ("attempt", told(event.attempt)),
            ("delivery_key", told(&event.delivery_key)),
            ("order_key", event.order_key.clone()),
            ("payload", told(&event.payload)),
            ("headers", event.headers.as_ref().map(ToString::to_string)),
        ])
    };
    let rows = batch.events.iter().map(event).collect();
    let handle = Handle::Batch(batch);
    Ok(Said { handle, rows })
}

async fn with_batch(
    session: &Session,
    call: &str,
    batch: &Batch,
    with: &With,
) -> Result<Said, Error> {
    let events = with.events(batch);
    match call {
        "outbox.ack" => {
            let acked = batch.ack(session, events.as_deref()).await?;
            Ok(row([("acked", told(acked))]))
        }
        "outbox.nack" => {
            let mut options = NackOptions::new().kind(with.get("kind").unwrap_or("error"));
            if let Some(error) = with.get("error") {
                options = options.error(error);
            }
            if let Some(after) = with.seconds("retry_after") {
                options = options.retry_after(after);
            }
            let nacked = batch.nack(session, events.as_deref(), &options).await?;
            let nacked = nacked.iter().map(|event| {
                fields([
                    ("event_id", told(event.event_id)),
                    ("attempt", told(event.attempt)),
                    ("dead", told(event.dead)),
                ])
            });
            Ok(rows(nacked.collect()))
        }
        "outbox.extend" => batch.extend(session, None).await.map(nothing),
        _ => panic!("no such call with a batch: {call}"),
    }
}

async fn dead(session: &Session, with: &With) -> Result<Said, Error> {
    let dead = with.subscriber().dead(session, 100).await?;
    let letters = dead.into_iter().map(|dead| {
        fields([
            ("event_id", told(dead.event_id)),
            ("attempts", told(dead.attempts)),
            ("kind", Some(dead.kind)),
            ("error", dead.error),
            ("payload", told(dead.payload)),
            ("headers", dead.headers.map(Json::into_string)),
        ])
    });
    Ok(rows(letters.collect()))
}

async fn accept(session: &Session, with: &With) -> Result<Said, Error> {
    let inbox = Inbox::new(with.text("scope"));
    let accepted = inbox.accept(session, with.text("message_id")).await?;
    Ok(match accepted {
        Accepted::New => row([("accepted", told(true))]),
        Accepted::Duplicate { verdict } => row([
            ("accepted", told(false)),
            ("verdict", verdict.map(Json::into_string)),
        ]),
    })
}
