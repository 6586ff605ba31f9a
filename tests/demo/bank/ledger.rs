//! The bank's ledger: one append-only file of JSON lines.
//!
//! Invariant: a charge is on disk (fsync) before anybody hears of it. One thread owns the file and
//! the index of keys, so "is this key known?" and "write the charge" are one act; charges that
//! arrive while the disk is busy are written together with one fsync.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// What a caller wants to charge.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct ChargeRequest {
    pub amount_cents: i64,
    pub customer: String,
    pub reference: String,
}

/// A line of the ledger.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Charge {
    pub charge_id: String,
    pub idempotency_key: Option<String>,
    #[serde(flatten)]
    pub request: ChargeRequest,
    pub at_micros: u64,
}

/// What became of a request to charge.
#[derive(Clone, Debug)]
pub enum Posted {
    /// Money moved now.
    New(Charge),
    /// This key was charged before; no money moved.
    Again(Charge),
    /// This key was used for another charge.
    OtherRequest,
}

enum Order {
    Charge {
        request: ChargeRequest,
        key: Option<String>,
        answer: oneshot::Sender<Posted>,
    },
    List {
        reference: Option<String>,
        answer: oneshot::Sender<Vec<Charge>>,
    },
}

/// The way in; clones share the one ledger.
#[derive(Clone)]
pub struct Ledger {
    orders: mpsc::Sender<Order>,
}

impl Ledger {
    /// Reads what is there and starts the thread that owns it.
    pub fn open(path: &Path, dedupe: bool) -> Result<Self> {
        let book = Book::load(path, dedupe)?;
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || book.serve(&inbox))?;
        Ok(Self { orders })
    }

    pub async fn charge(&self, request: ChargeRequest, key: Option<String>) -> Result<Posted> {
        let (answer, posted) = oneshot::channel();
        self.orders.send(Order::Charge {
            request,
            key,
            answer,
        })?;
        posted.await.context("the ledger's thread has ended")
    }

    /// The charges with this reference, or all of them.
    pub async fn list(&self, reference: Option<String>) -> Result<Vec<Charge>> {
        let (answer, charges) = oneshot::channel();
        self.orders.send(Order::List { reference, answer })?;
        charges.await.context("the ledger's thread has ended")
    }
}

struct Book {
    file: File,
    charges: Vec<Charge>,
    by_key: HashMap<String, usize>,
    by_reference: HashMap<String, Vec<usize>>,
    dedupe: bool,
}

impl Book {
    fn load(path: &Path, dedupe: bool) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open the ledger {}", path.display()))?;
        let mut book = Self {
            file: file.try_clone()?,
            charges: Vec::new(),
            by_key: HashMap::new(),
            by_reference: HashMap::new(),
            dedupe,
        };
        for line in BufReader::new(file).lines() {
            book.remember(serde_json::from_str(&line?)?);
        }
        Ok(book)
    }

    fn remember(&mut self, charge: Charge) {
        let at = self.charges.len();
        if let Some(key) = &charge.idempotency_key {
            self.by_key.entry(key.clone()).or_insert(at);
        }
        self.by_reference
            .entry(charge.request.reference.clone())
            .or_default()
            .push(at);
        self.charges.push(charge);
    }

    /// Takes what has arrived, decides each, writes once, then answers.
    fn serve(mut self, inbox: &mpsc::Receiver<Order>) {
        while let Ok(first) = inbox.recv() {
            let mut lines = Vec::new();
            let mut answers = Vec::new();
            for order in std::iter::once(first).chain(inbox.try_iter()) {
                match order {
                    Order::Charge {
                        request,
                        key,
                        answer,
                    } => {
                        answers.push((answer, self.decide(request, key, &mut lines)));
                    }
                    Order::List { reference, answer } => {
                        // A caller that went away does not need its answer.
                        let _ = answer.send(self.list(reference.as_deref()));
                    }
                }
            }
            if let Err(error) = self.write(&lines) {
                eprintln!("bank: the ledger cannot be written: {error}");
                std::process::exit(1);
            }
            for (answer, posted) in answers {
                let _ = answer.send(posted);
            }
        }
    }

    fn decide(
        &mut self,
        request: ChargeRequest,
        key: Option<String>,
        lines: &mut Vec<u8>,
    ) -> Posted {
        let known = key
            .as_ref()
            .filter(|_| self.dedupe)
            .and_then(|key| self.by_key.get(key));
        if let Some(earlier) = known.and_then(|at| self.charges.get(*at)) {
            return if earlier.request == request {
                Posted::Again(earlier.clone())
            } else {
                Posted::OtherRequest
            };
        }
        let charge = Charge {
            charge_id: format!("ch_{:07}", self.charges.len() + 1),
            idempotency_key: key,
            request,
            at_micros: micros_now(),
        };
        if let Ok(line) = serde_json::to_vec(&charge) {
            lines.extend(line);
            lines.push(b'\n');
        }
        self.remember(charge.clone());
        Posted::New(charge)
    }

    fn write(&mut self, lines: &[u8]) -> std::io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.file.write_all(lines)?;
        self.file.sync_data()
    }

    fn list(&self, reference: Option<&str>) -> Vec<Charge> {
        match reference {
            None => self.charges.clone(),
            Some(reference) => self
                .by_reference
                .get(reference)
                .into_iter()
                .flatten()
                .filter_map(|at| self.charges.get(*at).cloned())
                .collect(),
        }
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

    fn request(amount_cents: i64) -> ChargeRequest {
        ChargeRequest {
            amount_cents,
            customer: "ann".into(),
            reference: "order 1".into(),
        }
    }

    fn place(name: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("pg_once_ledger_{name}_{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[tokio::test]
    async fn the_same_key_is_charged_once_also_after_a_restart() {
        let path = place("dedupe");
        let key = Some("k".to_owned());
        let first = Ledger::open(&path, true).unwrap();
        let Posted::New(charge) = first.charge(request(5), key.clone()).await.unwrap() else {
            panic!("not new")
        };
        let second = Ledger::open(&path, true).unwrap();
        let Posted::Again(again) = second.charge(request(5), key.clone()).await.unwrap() else {
            panic!("not again")
        };
        assert_eq!(again.charge_id, charge.charge_id);
        assert!(matches!(
            second.charge(request(6), key).await.unwrap(),
            Posted::OtherRequest
        ));
        assert_eq!(second.list(None).await.unwrap().len(), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_bank_that_does_not_dedupe_charges_every_time() {
        let path = place("forgetful");
        let ledger = Ledger::open(&path, false).unwrap();
        for _ in 0..2 {
            assert!(matches!(
                ledger.charge(request(5), Some("k".into())).await.unwrap(),
                Posted::New(_)
            ));
        }
        assert_eq!(ledger.list(Some("order 1".into())).await.unwrap().len(), 2);
        assert!(
            ledger
                .list(Some("order 2".into()))
                .await
                .unwrap()
                .is_empty()
        );
        std::fs::remove_file(path).unwrap();
    }
}
