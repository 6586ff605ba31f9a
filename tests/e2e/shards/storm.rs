//! Clients that send each request three times, each to the database of its tenant, through the pooler; and the proof
//! that every order was made once, in its shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_once_tests::PgBouncer;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::world::{play, shards};

const CLIENTS: usize = 9;
const TENANTS: usize = 64;
const DUPLICATES: usize = 3;

pub struct Storm {
    url: String,
    /// Of each tenant.
    homes: Vec<usize>,
    next: AtomicUsize,
    over: AtomicBool,
    /// The body of each key's first answer.
    answers: Mutex<HashMap<String, String>>,
    /// The longest that a client waited for the answer to one call since the last look.
    longest: Mutex<Duration>,
    errors: Mutex<Vec<String>>,
}

pub struct Running {
    pub storm: Arc<Storm>,
    clients: Vec<JoinHandle<()>>,
}

fn row(messages: Vec<SimpleQueryMessage>) -> Option<SimpleQueryRow> {
    messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

impl Storm {
    /// Starts it through the pooler; `port` is where the databases are now.
    pub async fn start(pooler: &PgBouncer, port: u16) -> Running {
        let numbers = format!(
            "select string_agg(once.shard_of('t' || g, {})::text, ' ' order by g) from generate_series(0, {}) as g",
            shards(),
            TENANTS - 1
        );
        let homes = play(port, "postgres", "shop_0").await.show(&numbers).await;
        let storm = Arc::new(Storm {
            url: pooler.url(""),
            homes: homes.split(' ').map(|home| home.parse().unwrap()).collect(),
            next: AtomicUsize::default(),
            over: AtomicBool::default(),
            answers: Mutex::default(),
            longest: Mutex::default(),
            errors: Mutex::default(),
        });
        let client = |n| tokio::spawn(Arc::clone(&storm).client(n));
        let clients = (0..CLIENTS).map(client).collect();
        Running { storm, clients }
    }

    /// A tenant of the shard.
    pub fn tenant_of(&self, shard: usize) -> String {
        let n = self.homes.iter().position(|home| *home == shard).unwrap();
        format!("t{n}")
    }

    /// The longest wait for one answer since the last look.
    pub fn longest_wait(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }

    pub fn errors(&self) -> Vec<String> {
        std::mem::take(&mut *self.errors.lock().unwrap())
    }

    async fn client(self: Arc<Self>, number: usize) {
        let mut sessions: HashMap<usize, Client> = HashMap::new();
        let mut sent = 0;
        while !self.over.load(Ordering::Relaxed) {
            let mut n = self.next.fetch_add(1, Ordering::Relaxed) / DUPLICATES;
            sent += 1;
            if sent % 7 == 0 {
                // A retry that comes late.
                n /= 2;
            }
            self.until_answered(&mut sessions, n, &format!("{number}-{sent}"))
                .await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_answered(&self, sessions: &mut HashMap<usize, Client>, n: usize, holder: &str) {
        let tenant = n % TENANTS;
        let (key, home) = (format!("t{tenant}/ada/{n}"), self.homes[tenant]);
        loop {
            let begin = Instant::now();
            let answer = match sessions.get(&home) {
                Some(session) => request(session, tenant, &key, holder).await,
                None => match self.enter(home).await {
                    Ok(session) => {
                        sessions.insert(home, session);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            self.waited(begin.elapsed());
            match answer {
                Ok(Some(body)) => return self.note(key, body),
                Ok(None) => {}
                Err(error) => {
                    let what = error
                        .as_db_error()
                        .map_or(error.to_string(), |e| format!("{e}"));
                    self.errors.lock().unwrap().push(format!("{key}: {what}"));
                    if error
                        .as_db_error()
                        .is_none_or(|e| e.code().code().starts_with(['0', '5']))
                    {
                        sessions.remove(&home);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn enter(&self, home: usize) -> Result<Client, Error> {
        let (client, connection) =
            tokio_postgres::connect(&format!("{}shop_{home}", self.url), NoTls).await?;
        tokio::spawn(async move {
            // The client's own calls report what goes wrong.
            let _ = connection.await;
        });
        Ok(client)
    }

    fn waited(&self, time: Duration) {
        let mut longest = self.longest.lock().unwrap();
        *longest = time.max(*longest);
    }

    fn note(&self, key: String, body: String) {
        let mut answers = self.answers.lock().unwrap();
        let first = answers.entry(key.clone()).or_insert_with(|| body.clone());
        assert_eq!(*first, body, "{key} was answered twice, and not alike");
    }
}

/// The body of the answer; none where another client is at it.
async fn request(
    session: &Client,
    tenant: usize,
    key: &str,
    holder: &str,
) -> Result<Option<String>, Error> {
    let claim = format!(
        "select outcome, token, response_body
           from once.key_claim('orders', '{key}', '{{\"item\": \"pen\"}}', holder => '{holder}')"
    );
    let claim = row(session.simple_query(&claim).await?).unwrap();
    match claim.get(0).unwrap() {
        "claimed" | "resumed" => {}
        "replayed" => return Ok(claim.get(2).map(str::to_owned)),
        "in_progress" => return Ok(None),
        other => panic!("{key}: {other}"),
    }
    let complete = format!(
        "with made as (insert into orders (key, tenant) values ('{key}', 't{tenant}') returning id)
         select id, once.key_complete('orders', '{key}', {}, 201, ('{{\"order\":  ' || id || '}}')::json) from made",
        claim.get(1).unwrap()
    );
    let made = row(session.simple_query(&complete).await?).unwrap();
    Ok(Some(format!("{{\"order\":  {}}}", made.get(0).unwrap())))
}

impl Running {
    /// Lets each client come to the end of its request.
    pub async fn end(self) -> Arc<Storm> {
        self.storm.over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
        self.storm
    }
}

/// Orders of a shard: how many, of how many keys, of foreign tenants, and what a retry of each key gets.
const PROOF: &str = "\
select o.key, o.id, once.shard_of(o.tenant, SHARDS), c.outcome, c.response_body
  from orders as o, once.key_claim('orders', o.key, '{\"item\": \"pen\"}') as c order by o.key";

impl Storm {
    /// Each key that was answered has one order, in its shard, and is replayed byte for byte at the shard's home.
    pub async fn prove(&self, home: impl Fn(usize) -> u16) -> usize {
        let mut answers = std::mem::take(&mut *self.answers.lock().unwrap());
        let all = answers.len();
        for shard in 0..shards() {
            let database = format!("shop_{shard}");
            let play = play(home(shard), "postgres", &database).await;
            let found = play
                .show(&PROOF.replace("SHARDS", &shards().to_string()))
                .await;
            for line in found.lines() {
                let (key, _) = line.split_once('|').unwrap();
                let body = answers.remove(key);
                let body = body.unwrap_or_else(|| panic!("twice, or never answered: {line}"));
                let (_, id) = body.trim_end_matches('}').rsplit_once(' ').unwrap();
                assert_eq!(line, format!("{key}|{id}|{shard}|replayed|{body}"));
            }
            let pending = "select count(*) from once.key where status <> 'c'";
            assert_eq!(play.show(pending).await, "0", "{database}");
        }
        assert!(answers.is_empty(), "lost: {answers:?}");
        all
    }
}
