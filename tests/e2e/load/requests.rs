//! Keyed requests in phases: claim, a charge at the bank, the order's row, the answer. Every fifth is declined
//! and aborted, and every seventh client never comes back; the completer finishes what it began. Some are parked first,
//! until the judge has ended that, and some given back for a moment. Some are claimed by a hash of their own, some
//! are charged under a second derived key because the bank refuses the first, and some take their time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Load;
use super::door::{Fault, Row, Session, text};

/// Answers that clients were given, by key: code and body.
#[derive(Default)]
pub struct Answers(Mutex<BTreeMap<String, String>>);

impl Answers {
    fn note(&self, key: &str, answer: String) {
        let mut answers = self.0.lock().unwrap();
        let first = answers
            .entry(key.to_owned())
            .or_insert_with(|| answer.clone());
        assert_eq!(*first, answer, "two answers for {key}");
    }

    pub fn all(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap().clone()
    }
}

/// A key that somebody has claimed.
struct Claimed {
    n: usize,
    key: String,
    token: i64,
    recovery_point: String,
}

impl Claimed {
    /// The first arguments of every call about it.
    fn of(&self) -> String {
        format!("'requests', '{}', {}", self.key, self.token)
    }
}

/// The claim of the request of this number, as a table; `rest` are its other arguments.
pub fn claim(n: usize, rest: &str) -> String {
    let declined = declined(n);
    if hashed(n) {
        return format!(
            "once.key_claim('requests', 'r{n}', fingerprint => sha256('{n} {declined}'){rest})"
        );
    }
    format!("once.key_claim('requests', 'r{n}', '{{\"n\": {n}, \"declined\": {declined}}}'{rest})")
}

/// Whether its client hashes it.
pub fn hashed(n: usize) -> bool {
    n % 6 == 5
}

/// Whether the bank refuses it under the first derived key.
fn refused(n: usize) -> bool {
    n % 13 == 5
}

/// Whether its holder needs more time on the way.
fn lingers(n: usize) -> bool {
    n % 3 == 1
}

/// Whether the request of this number is declined.
fn declined(n: usize) -> bool {
    n % 5 == 4
}

fn gives_up(n: usize) -> bool {
    n % 7 == 3
}

/// What the first attempt does instead, after which everybody tries again.
fn hesitates(n: usize, of: &str) -> Option<String> {
    match n % 11 {
        6 => Some(format!("select once.key_park({of}, 'nobody knows')")),
        8 => Some(format!(
            "select once.key_release({of}, 'not now', '100 ms')"
        )),
        _ => None,
    }
}

/// A client that sends one request after the other, each until it has its answer.
pub async fn client(load: Arc<Load>, who: usize, of: usize) {
    let mut session = load.door.enter().await;
    for n in (who..).step_by(of) {
        if load.door.is_quiet() {
            return;
        }
        request(&load, &mut session, n).await;
    }
}

async fn request(load: &Load, session: &mut Session<'_>, n: usize) {
    let key = format!("r{n}");
    let mut attempt = 0;
    while !load.door.is_closed() {
        let holder = format!("{key}-{attempt}");
        let fault = match one_attempt(load, session, n, &holder).await {
            Ok(true) => return,
            Ok(false) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                attempt += 1;
                continue;
            }
            Err(fault) => fault,
        };
        // Whose answer was lost asks again under the same name and has its lease back at once.
        attempt += usize::from(!matches!(fault, Fault::Gone));
        session.recover(&fault).await;
    }
}

/// True: answered, or the client does not come back.
async fn one_attempt(
    load: &Load,
    session: &Session<'_>,
    n: usize,
    holder: &str,
) -> Result<bool, Fault> {
    let key = format!("r{n}");
    let claim = format!(
        "select outcome, token, recovery_point, response_code, response_body from {}",
        claim(n, &format!(", lease => '2 s', holder => '{holder}'"))
    );
    let row = session.row(&claim).await?;
    match text(&row, 0) {
        "replayed" => {
            let answer = format!("{} {}", text(&row, 3), text(&row, 4));
            load.answers.note(&key, answer);
            return Ok(true);
        }
        "in_progress" | "parked" => return Ok(false),
        "claimed" | "resumed" => {}
        other => panic!("{key}: {other}"),
    }
    let claimed = Claimed {
        token: text(&row, 1).parse().unwrap(),
        recovery_point: text(&row, 2).to_owned(),
        n,
        key,
    };
    let what = format!("key {}", claimed.key);
    load.receiver.saw_token(&what, claimed.token, holder);
    let hesitates = hesitates(n, &claimed.of());
    if let Some(call) = hesitates.filter(|_| text(&row, 0) == "claimed") {
        session.rows(&call).await?;
        return Ok(false);
    }
    carry_on(load, session, &claimed, gives_up(n)).await?;
    Ok(gives_up(n))
}

/// The phases that are still to be done. The answer is not noted here: the next claim replays it.
async fn carry_on(
    load: &Load,
    session: &Session<'_>,
    claimed: &Claimed,
    leaves: bool,
) -> Result<(), Fault> {
    let Claimed { n, key, token, .. } = claimed;
    let of = claimed.of();
    let undo = format!("{{\"topic\": \"undo\", \"payload\": {{\"event\": \"undo {key}\"}}}}");
    let step =
        format!("select done, result, derived_key from once.key_step({of}, 'pay', '{undo}')");
    let mut row = session.row(&step).await?;
    if lingers(*n) {
        let extend = format!(
            "select lease_left > '1 s' and lease_left <= '2 s' from once.key_extend({of}, '2 s')"
        );
        assert_eq!(session.text(&extend).await?, "t", "{key}");
    }
    if refused(*n) && text(&row, 0) == "f" && load.bank.refuses(text(&row, 2), key) {
        let rotate = format!("select once.key_rotate({of}, 'pay', 1)");
        assert_eq!(session.text(&rotate).await?, "2", "{key}");
        row = session.row(&step).await?;
        assert!(
            !load.bank.refuses(text(&row, 2), key),
            "{key}: still its first derived key"
        );
    }
    let charge = if text(&row, 0) == "t" {
        text(&row, 1).to_owned()
    } else {
        let charge = load.bank.charge(text(&row, 2), key).to_string();
        if leaves {
            // The bank has it, and this client will never tell.
            return Ok(());
        }
        let paid = format!("{{\"topic\": \"paid\", \"payload\": {{\"event\": \"paid {key}\"}}}}");
        session
            .rows(&format!(
                "select once.key_step_done({of}, 'pay', '{charge}', on_complete => '{paid}')"
            ))
            .await?;
        charge
    };
    if declined(*n) {
        let abort = format!("select once.key_abort({of}, 402, '{{\"declined\": \"{key}\"}}')");
        session.rows(&abort).await?;
        return Ok(());
    }
    if claimed.recovery_point != "ordered" {
        session
            .rows(&format!(
                "begin; select once.key_advance({of}, 'ordered');
                 insert into ordered values ('{key}', {charge}, {token}); commit"
            ))
            .await?;
    }
    session
        .rows(&format!(
            "select once.key_complete({of}, 201, '{{\"charge\": {charge}}}')"
        ))
        .await?;
    Ok(())
}

/// Finishes what clients left; the same holder after a lost answer, a new one after each batch.
pub async fn completer(load: Arc<Load>, who: usize) {
    let mut session = load.door.enter().await;
    let mut batch = 0;
    while !load.door.is_closed() {
        let holder = format!("completer {who}-{batch}");
        match complete(&load, &session, &holder).await {
            Ok(0) => tokio::time::sleep(Duration::from_millis(100)).await,
            Ok(_) => batch += 1,
            Err(fault) => {
                batch += usize::from(!matches!(fault, Fault::Gone));
                session.recover(&fault).await;
            }
        }
    }
}

async fn complete(load: &Load, session: &Session<'_>, holder: &str) -> Result<usize, Fault> {
    let take = format!(
        "select key, token, recovery_point, request ->> 'declined'
           from once.key_take_abandoned('requests', 3, '2 s', '{holder}')"
    );
    let taken: Vec<Row> = session.rows(&take).await?;
    for row in &taken {
        let key = text(row, 0).to_owned();
        let n = key[1..].parse().unwrap();
        // A hash is all that is known of some.
        let told = (!hashed(n)).then(|| declined(n).to_string());
        assert_eq!(row[3], told, "{key}");
        let claimed = Claimed {
            token: text(row, 1).parse().unwrap(),
            recovery_point: text(row, 2).to_owned(),
            n,
            key,
        };
        let what = format!("key {}", claimed.key);
        load.receiver.saw_token(&what, claimed.token, holder);
        match carry_on(load, session, &claimed, false).await {
            Ok(()) => {}
            // The lease of one that came late in the batch is over; the others are not its business.
            Err(Fault::Lost) => {
                session.rows("rollback").await?;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(taken.len())
}

/// Ends every parking: try again.
pub async fn judge(load: Arc<Load>) {
    const RESOLVE: &str = "
        select once.key_resolve('requests', key, attempt, 'retry') from once.key where scope = 'requests' and status = 'p'";
    let mut session = load.door.enter().await;
    while !load.door.is_closed() {
        match session.rows(RESOLVE).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(fault) => session.recover(&fault).await,
        }
    }
}
