//! The ledger of the world outside: one append-only file of JSON lines.
//!
//! Invariant: a line is on disk (fsync) before anybody hears of it. One thread owns the file and
//! the index of keys, so "is this key known?" and "write the line" are one act; requests that arrive
//! while the disk is busy are written together with one fsync. A process killed while it wrote
//! leaves at most a torn last line, of which nobody has heard: it is cut off at the next start.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tokio::sync::oneshot;

use crate::line::{Fate, Kind, Line, Request};

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Posted {
    /// It happened now.
    New(Line),
    /// It happened when this key came first; nothing happened now.
    Again(Line),
    /// This key was used for something else.
    OtherRequest,
    /// The reference was reversed before.
    Closed,
}

/// What a caller wants done with a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Make,
    Reverse,
}

/// A request with all that decides about it.
pub struct Order {
    pub want: Want,
    pub request: Request,
    pub key: Option<String>,
    pub fate: Fate,
}

enum Call {
    Post(Order, oneshot::Sender<Posted>),
    Look(String, oneshot::Sender<Vec<Line>>),
}

/// The way in; clones share the one ledger.
#[derive(Clone)]
pub struct Ledger {
    calls: mpsc::Sender<Call>,
}

impl Ledger {
    /// Reads what is there and starts the thread that owns it.
    pub fn open(path: &Path, dedupe: bool) -> Result<Self> {
        let book = Book::load(path, dedupe)?;
        let (calls, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || book.serve(&inbox))?;
        Ok(Self { calls })
    }

    pub async fn post(&self, order: Order) -> Result<Posted> {
        let (answer, posted) = oneshot::channel();
        self.calls.send(Call::Post(order, answer))?;
        posted.await.context("the ledger's thread has ended")
    }

    /// What was made for this reference.
    pub async fn look(&self, reference: String) -> Result<Vec<Line>> {
        let (answer, lines) = oneshot::channel();
        self.calls.send(Call::Look(reference, answer))?;
        lines.await.context("the ledger's thread has ended")
    }
}

struct Book {
    file: File,
    lines: Vec<Line>,
    by_key: HashMap<String, usize>,
    by_reference: HashMap<String, Vec<usize>>,
    closed: HashSet<String>,
    dedupe: bool,
}

impl Book {
    fn load(path: &Path, dedupe: bool) -> Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open the ledger {}", path.display()))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        file.set_len(whole as u64)?;
        let mut book = Self {
            file,
            lines: Vec::new(),
            by_key: HashMap::new(),
            by_reference: HashMap::new(),
            closed: HashSet::new(),
            dedupe,
        };
        for line in text.get(..whole).unwrap_or_default().lines() {
            book.remember(serde_json::from_str(line)?);
        }
        Ok(book)
    }

    fn remember(&mut self, line: Line) {
        let at = self.lines.len();
        if let (Kind::Made | Kind::Reversed, Some(key)) = (line.kind, &line.idempotency_key) {
            self.by_key.entry(key.clone()).or_insert(at);
        }
        let reference = &line.request.reference;
        match line.kind {
            Kind::Made => {
                let made = self.by_reference.entry(reference.clone()).or_default();
                made.push(at);
            }
            Kind::Reversed => {
                self.closed.insert(reference.clone());
            }
            Kind::Again | Kind::Looked => {}
        }
        self.lines.push(line);
    }

    /// Takes what has arrived, decides each, writes once, then answers.
    fn serve(mut self, inbox: &mpsc::Receiver<Call>) {
        while let Ok(first) = inbox.recv() {
            let mut text = Vec::new();
            let mut answers: Vec<Box<dyn FnOnce()>> = Vec::new();
            for call in std::iter::once(first).chain(inbox.try_iter()) {
                // A caller that went away does not need its answer.
                answers.push(match call {
                    Call::Post(order, answer) => {
                        let posted = self.decide(order, &mut text);
                        Box::new(move || drop(answer.send(posted)))
                    }
                    Call::Look(reference, answer) => {
                        let lines = self.find(reference, &mut text);
                        Box::new(move || drop(answer.send(lines)))
                    }
                });
            }
            if let Err(error) = self.write(&text) {
                eprintln!("the ledger cannot be written: {error}");
                std::process::exit(1);
            }
            answers.into_iter().for_each(|answer| answer());
        }
    }

    fn decide(&mut self, order: Order, text: &mut Vec<u8>) -> Posted {
        let Order {
            want,
            mut request,
            key,
            fate,
        } = order;
        let known = key
            .as_ref()
            .filter(|_| self.dedupe)
            .and_then(|key| self.by_key.get(key));
        if let Some(earlier) = known.and_then(|at| self.lines.get(*at)).cloned() {
            let same = earlier.request.reference == request.reference
                && (want == Want::Reverse || earlier.request == request);
            if !same {
                return Posted::OtherRequest;
            }
            self.append(request, key, Kind::Again, fate, text);
            return Posted::Again(earlier);
        }
        let made = self.by_reference.get(&request.reference);
        let kind = match want {
            Want::Make if self.closed.contains(&request.reference) => return Posted::Closed,
            Want::Make => Kind::Made,
            Want::Reverse => {
                let made = made.and_then(|made| self.lines.get(*made.first()?));
                request.amount_cents = made.map_or(0, |made| -made.request.amount_cents);
                Kind::Reversed
            }
        };
        Posted::New(self.append(request, key, kind, fate, text))
    }

    fn append(
        &mut self,
        request: Request,
        idempotency_key: Option<String>,
        kind: Kind,
        fate: Fate,
        text: &mut Vec<u8>,
    ) -> Line {
        let line = Line {
            charge_id: format!("ch_{:07}", self.lines.len() + 1),
            idempotency_key,
            request,
            kind,
            fate,
            at_micros: micros_now(),
        };
        if let Ok(json) = serde_json::to_vec(&line) {
            text.extend(json);
            text.push(b'\n');
        }
        self.remember(line.clone());
        line
    }

    fn write(&mut self, text: &[u8]) -> std::io::Result<()> {
        self.file.write_all(text)?;
        self.file.sync_data()
    }

    fn find(&mut self, reference: String, text: &mut Vec<u8>) -> Vec<Line> {
        let made = self.by_reference.get(&reference).into_iter().flatten();
        let lines = made.filter_map(|at| self.lines.get(*at).cloned()).collect();
        let request = Request {
            reference,
            ..Request::default()
        };
        self.append(request, None, Kind::Looked, Fate::Answered, text);
        lines
    }
}

fn micros_now() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]
    use super::*;

    fn order(want: Want, amount_cents: i64, key: Option<&str>) -> Order {
        Order {
            want,
            request: Request {
                amount_cents,
                customer: "ann".into(),
                reference: "order 1".into(),
                number: None,
            },
            key: key.map(str::to_owned),
            fate: Fate::Answered,
        }
    }

    fn place(name: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("pg_once_ledger_{name}_{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn lines(path: &Path) -> Vec<Line> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn the_same_key_happens_once_also_after_a_restart_and_a_torn_line() {
        let path = place("dedupe");
        let first = Ledger::open(&path, true).unwrap();
        let Posted::New(made) = first.post(order(Want::Make, 5, Some("k"))).await.unwrap() else {
            panic!("not new")
        };
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"charge_id\":\"ch_").unwrap();
        let second = Ledger::open(&path, true).unwrap();
        let Posted::Again(again) = second.post(order(Want::Make, 5, Some("k"))).await.unwrap()
        else {
            panic!("not again")
        };
        assert_eq!(again.charge_id, made.charge_id);
        assert!(matches!(
            second.post(order(Want::Make, 6, Some("k"))).await.unwrap(),
            Posted::OtherRequest
        ));
        let kinds: Vec<Kind> = lines(&path).iter().map(|line| line.kind).collect();
        assert_eq!(kinds, [Kind::Made, Kind::Again]);
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn one_that_does_not_dedupe_does_it_every_time() {
        let path = place("forgetful");
        let ledger = Ledger::open(&path, false).unwrap();
        for _ in 0..2 {
            let posted = ledger.post(order(Want::Make, 5, Some("k"))).await.unwrap();
            assert!(matches!(posted, Posted::New(_)));
        }
        assert_eq!(ledger.look("order 1".into()).await.unwrap().len(), 2);
        assert!(ledger.look("order 2".into()).await.unwrap().is_empty());
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_reversal_gives_back_what_is_there_and_closes_the_reference() {
        let path = place("reversal");
        let ledger = Ledger::open(&path, true).unwrap();
        ledger.post(order(Want::Make, 5, Some("k"))).await.unwrap();
        for _ in 0..2 {
            ledger
                .post(order(Want::Reverse, 0, Some("back")))
                .await
                .unwrap();
        }
        // Without a key nobody can tell that it is the same: it pays again.
        ledger.post(order(Want::Reverse, 0, None)).await.unwrap();
        let late = ledger.post(order(Want::Make, 5, None)).await.unwrap();
        assert!(matches!(late, Posted::Closed));
        let amounts: Vec<i64> = lines(&path)
            .iter()
            .filter(|line| line.kind == Kind::Reversed)
            .map(|line| line.request.amount_cents)
            .collect();
        assert_eq!(amounts, [-5, -5]);
        std::fs::remove_file(path).unwrap();
    }
}
