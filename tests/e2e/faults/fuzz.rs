//! Sessions that call every function of the extension by chance, in transactions of all kinds, whatever happens to
//! them. Each code that a caller sees has to be one that the docs name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use crate::victim::Chance;

/// How long a statement may run, and how long a server may be away: whatever is longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const CALLS: &str = include_str!("calls.sql");
const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

/// Not there for a caller: triggers, and what nobody calls beside clients (`end.rs` does).
const FUNCTIONS: &str = "select distinct proname from pg_proc
     where pronamespace = 'once'::regnamespace and prorettype <> 'trigger'::regtype and proname <> 'incarnation_renew'";

/// SQLSTATEs that the docs name (DESIGN 4.7), and those with which a server sends a client away or cancels its call.
const NAMED: [&str; 19] = [
    "ON001", "ON002", "ON003", "ON004", "ON005", "ON006", "ON007", "22023", "42704", "42501",
    "40001", "55006", "55P03", "25006", "40P01", "57014", "57P01", "57P02", "57P03",
];
/// The fuzz's own refusal.
const OURS: &str = "FZ001";

/// What a statement came to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    Done,
    Refused,
    Gone,
}

/// All sessions of one run.
pub struct Fuzz {
    pub url: String,
    calls: Vec<&'static str>,
    /// Codes that are seen while a fault is on.
    pub also: Mutex<Vec<&'static str>>,
    closed: AtomicBool,
    transactions: AtomicU64,
    calls_done: AtomicU64,
    pub codes: Mutex<BTreeMap<String, u64>>,
}

/// Names of functions in a line of SQL.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("once.").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// The calls of which the functions are there. Fails where a function of the extension is in none.
pub async fn calls(client: &Client) -> Vec<&'static str> {
    let rows = client.query(FUNCTIONS, &[]).await.unwrap();
    let there: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let lines = CALLS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("--"));
    let (calls, absent): (Vec<_>, Vec<_>) =
        lines.partition(|line| named(line).all(|name| there.contains(name)));
    let called: BTreeSet<&str> = calls.iter().flat_map(|line| named(line)).collect();
    // What the helpers of world.sql call.
    let helped = ["action_finish", "outbox_take", "outbox_ack"];
    let without: Vec<_> = there
        .iter()
        .filter(|name| !called.contains(name.as_str()) && !helped.contains(&name.as_str()))
        .collect();
    assert!(without.is_empty(), "calls.sql has no call of {without:?}");
    println!(
        "{} functions, {} calls; not there yet: {}",
        there.len(),
        calls.len(),
        absent.len()
    );
    calls
}

impl Fuzz {
    pub async fn prepare(url: String) -> Fuzz {
        let client = connect(&url).await.unwrap();
        client
            .batch_execute(include_str!("../../../sql/examples/batch_job.sql"))
            .await
            .unwrap();
        client
            .batch_execute(include_str!("world.sql"))
            .await
            .unwrap();
        let options = "select once.topic_set(t, '{\"subscribers\": [\"default\", \"other\"]}') from unnest(array['one', 'two']) as t;
             select once.subscriber_set(t, s, '{\"max_attempts\": 3, \"backoff_base\": \"10 ms\", \"backoff_cap\": \"100 ms\"}')
               from unnest(array['one', 'two']) as t, unnest(array['default', 'other']) as s;
             select once.topic_set('side')";
        client.batch_execute(options).await.unwrap();
        client
            .batch_execute(&format!("select once.machine_define($m${MACHINE}$m$)"))
            .await
            .unwrap();
        client
            .batch_execute("select once.machine_guard('batch_job', true)")
            .await
            .unwrap();
        Fuzz {
            calls: calls(&client).await,
            url,
            also: Mutex::default(),
            closed: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
            calls_done: AtomicU64::new(0),
            codes: Mutex::default(),
        }
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    pub fn progress(&self) -> String {
        let codes = self.codes.lock().unwrap();
        format!(
            "{} transactions, {} calls done; {codes:?}",
            self.transactions(),
            self.calls_done.load(Ordering::Relaxed)
        )
    }

    /// Forgets the codes that were seen so far, and allows some more, or fewer.
    pub fn allow(&self, codes: &[&'static str]) {
        *self.also.lock().unwrap() = codes.to_vec();
        self.codes.lock().unwrap().clear();
    }

    pub fn seen(&self, code: &str) -> u64 {
        self.codes.lock().unwrap().get(code).copied().unwrap_or(0)
    }

    async fn enter(&self) -> Client {
        let begin = Instant::now();
        loop {
            if let Some(client) = connect(&self.url).await {
                let settings = "set lock_timeout = '2 s'; set deadlock_timeout = '200 ms'; set application_name = 'fuzz'; set client_min_messages = error";
                if client.batch_execute(settings).await.is_ok() {
                    return client;
                }
            }
            assert!(begin.elapsed() < PATIENCE, "the server is gone for good");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// One session, until the fuzz is closed.
    pub async fn session(&self, who: usize, mut chance: Chance) {
        let mut client = self.enter().await;
        while !self.is_closed() {
            let number = self.transactions.fetch_add(1, Ordering::Relaxed);
            let mut transaction = Transaction {
                fuzz: self,
                client: &client,
                number,
                chance: &mut chance,
            };
            let mut answer = transaction.run(who).await;
            // A rollback may be cancelled, too.
            while answer == Answer::Refused {
                answer = transaction.send("rollback").await;
            }
            if answer == Answer::Gone || client.is_closed() {
                client = self.enter().await;
            }
        }
    }

    /// Sends it; ends the test where the code is none that the docs name.
    async fn send(&self, client: &Client, sql: &str) -> Answer {
        let Ok(answer) = timeout(PATIENCE, client.simple_query(sql)).await else {
            panic!("no answer within {PATIENCE:?}: {sql}");
        };
        let Err(error) = answer else {
            self.calls_done.fetch_add(1, Ordering::Relaxed);
            return Answer::Done;
        };
        let Some(refusal) = error.as_db_error() else {
            return Answer::Gone;
        };
        let code = refusal.code().code();
        *self
            .codes
            .lock()
            .unwrap()
            .entry(code.to_owned())
            .or_default() += 1;
        let allowed =
            NAMED.contains(&code) || code == OURS || self.also.lock().unwrap().contains(&code);
        assert!(
            allowed,
            "{code} {} ({:?})\n{sql}",
            refusal.message(),
            refusal.where_()
        );
        match code {
            "57P01" | "57P02" | "57P03" => Answer::Gone,
            _ => Answer::Refused,
        }
    }
}

struct Transaction<'a> {
    fuzz: &'a Fuzz,
    client: &'a Client,
    number: u64,
    chance: &'a mut Chance,
}

impl Transaction<'_> {
    /// One transaction, to whatever end.
    async fn run(&mut self, who: usize) -> Answer {
        let begin = match self.chance.below(20) {
            0 => "begin isolation level repeatable read",
            1 => "begin isolation level serializable",
            2 => "begin read only",
            3..6 => {
                let call = self.call();
                let call = call.strip_prefix("alone: ").unwrap_or(&call);
                return self.send(call).await;
            }
            _ => "begin",
        };
        let mut answer = self.send(begin).await;
        for _ in 0..=self.chance.below(4) {
            if answer != Answer::Done {
                break;
            }
            answer = self.step().await;
        }
        if answer != Answer::Done {
            return answer;
        }
        match self.chance.below(20) {
            0..3 => self.send("rollback").await,
            3..5 => {
                let prepared = self
                    .send(&format!("prepare transaction 'fuzz {who} {}'", self.number))
                    .await;
                match (prepared, self.chance.below(3)) {
                    (Answer::Done, 0) => {
                        self.send(&format!("commit prepared 'fuzz {who} {}'", self.number))
                            .await
                    }
                    (answer, _) => answer,
                }
            }
            _ => self.send("commit").await,
        }
    }

    /// One call in the transaction, in a savepoint or not.
    async fn step(&mut self) -> Answer {
        let call = self.call();
        if call.starts_with("alone: ") {
            return Answer::Done;
        }
        if self.chance.below(3) != 0 {
            return self.send(&call).await;
        }
        let savepoint = self.send("savepoint s").await;
        if savepoint != Answer::Done {
            return savepoint;
        }
        match self.send(&call).await {
            Answer::Refused => self.send("rollback to s").await,
            Answer::Done if self.chance.below(3) == 0 => {
                self.send("rollback to s; release s").await
            }
            Answer::Done => self.send("release s").await,
            Answer::Gone => Answer::Gone,
        }
    }

    async fn send(&self, sql: &str) -> Answer {
        self.fuzz.send(self.client, sql).await
    }

    fn call(&mut self) -> String {
        let mut line = self.fuzz.calls[self.chance.below(self.fuzz.calls.len())].to_owned();
        while let Some(word) = word_in_braces(&line) {
            // One call names one thing throughout.
            let value = self.value(&word);
            line = line.replace(&format!("{{{word}}}"), &value);
        }
        line
    }

    fn value(&mut self, word: &str) -> String {
        let recent = usize::try_from(self.number).unwrap() / 20;
        let mut one = |of: &[&str]| of[self.chance.below(of.len())].to_owned();
        match word {
            "scope" => one(&["'a'", "'b'", "'é'"]),
            "key" => format!("'k{}'", self.chance.below(12)),
            "order" => format!("'o{}'", recent.saturating_sub(self.chance.below(8))),
            "json" => one(&[
                "null",
                "'{\"a\": 1}'",
                "'[1.0, \"x\"]'",
                "'{\"b\": {\"c\": null}}'",
            ]),
            "lease" => one(&["'50 ms'", "'1 s'", "'5 s'", "'1 min'", "null"]),
            // What everybody waits for at the end.
            "brief" => one(&["'50 ms'", "'1 s'", "'3 s'"]),
            "holder" => one(&["null", "'h1'", "'h2'"]),
            "point" => one(&["'paid'", "'sent'", "'other'"]),
            "verdict" => one(&["'retry'", "'retry'", "'complete'", "'abort'"]),
            "step" => one(&["'charge'", "'ship'"]),
            "off" => one(&["0", "0", "0", "0", "0", "1"]),
            "small" => (1 + self.chance.below(10)).to_string(),
            "nth" => self.chance.below(3).to_string(),
            "job" => format!("fz.job({})", self.chance.below(8)),
            "pass" => one(&["1", "2"]),
            "status" => one(&["'queued'", "'running'", "'done'", "'cancelled'"]),
            "definition" => format!(
                "$m${}$m$",
                MACHINE.split_whitespace().collect::<Vec<_>>().join(" ")
            ),
            "topic" => one(&["'one'", "'two'"]),
            "sub" => one(&["'default'", "'other'"]),
            "kind" => one(&["'error'", "'never'", "'released'"]),
            "scratch" => one(&["'scratch1'", "'scratch2'"]),
            "task" => one(&[
                "'key_abandon'",
                "'key_reap'",
                "'key_tombstone'",
                "'outbox_requeue'",
                "'outbox_retire'",
                "'inbox_reap'",
                "'dedupe_reap'",
                "'dead_reap'",
                "'history_reap'",
            ]),
            "role" => one(&["'fz_one'", "'fz_two'"]),
            "right" => one(&["'use'", "'operate'", "'observe'"]),
            other => panic!("calls.sql: {{{other}}}"),
        }
    }
}

/// The first; JSON has no letter behind its brace.
fn word_in_braces(line: &str) -> Option<String> {
    let mut parts = line.split('{').skip(1);
    let part = parts.find(|part| part.starts_with(|c: char| c.is_ascii_lowercase()))?;
    part.split_once('}').map(|(word, _)| word.to_owned())
}

/// None: not now.
pub async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = timeout(PATIENCE, tokio_postgres::connect(url, NoTls))
        .await
        .unwrap()
        .ok()?;
    tokio::spawn(async move {
        // The client's own calls report what goes wrong.
        let _ = connection.await;
    });
    Some(client)
}
