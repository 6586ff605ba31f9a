//! What the SQL tests of one binary share: one cluster, a fresh database with the extension for each
//! test, SQL in and plain text out.
//!
//! A row is shown as its columns joined by `|` and NULL as `~`, so that an expectation is one literal.
//! Time is moved with `once.fake_now`, never by sleeping.
//!
//! With PG_ONCE_POOLER=1 every session goes through PgBouncer in transaction mode and brings its settings along in each
//! transaction (`Carried`), in the binary's cluster (`open`) and in a test's own (`on`). A test that needs a session of
//! its own says so and why: `directly`, or `of`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation is how a test fails"
)]

use std::io::Write as _;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::runtime;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::cluster::BROKEN;
use crate::{Carried, Cluster, pages, through_pooler};

/// Where pretended time begins in these tests.
const EPOCH: &str = "2030-01-01 00:00:00+00";

/// The binary's cluster; the harness's leash removes it when the program ends.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let builder = Cluster::builder().setting("max_connections", "400");
        let cluster = builder.launch().unwrap();
        cluster.psql("postgres", "create database model").unwrap();
        cluster.psql("model", "create extension pg_once").unwrap();
        cluster
    })
}

/// A connection to the binary's cluster.
async fn connect(role: &str, name: &str, directly: bool) -> Client {
    let client = if directly {
        cluster().connect_as(role, name).await
    } else {
        cluster().enter_as(role, name).await
    };
    client.unwrap()
}

/// A database that a test has for itself, a copy of the model's files. When the test has passed, the database is
/// checked and dropped.
pub struct Database {
    /// As the server knows it.
    pub name: String,
    /// Made here, not by a test that wanted another database.
    plain: bool,
    /// The test has damaged the extension's tables by hand.
    damaged: AtomicBool,
}

impl Database {
    fn new(name: String, plain: bool) -> Database {
        let damaged = AtomicBool::new(false);
        Database {
            name,
            plain,
            damaged,
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.plain && !thread::panicking() {
            let is_whole = !self.damaged.load(Ordering::Relaxed);
            let test = thread::current().name().map(str::to_owned);
            let test = test.filter(|_| is_whole).unwrap_or_default();
            drop_later(std::mem::take(&mut self.name), test);
        }
    }
}

/// Ends the test program if the database is broken; a database without the extension is not broken.
async fn ensure_whole(name: &str, test: &str) {
    let Ok(client) = cluster().connect(name).await else {
        return;
    };
    let broken = match client.query_one(BROKEN, &[]).await {
        Ok(row) => row.get::<_, Option<String>>(0),
        // The test has dropped the extension: no such schema or function.
        Err(error)
            if error
                .code()
                .is_some_and(|c| ["3F000", "42883"].contains(&c.code())) =>
        {
            None
        }
        Err(error) => Some(format!("{error:?}")),
    };
    let broken = match broken {
        None if pages::are_checked() => damaged(&client).await,
        other => other,
    };
    if let Some(broken) = broken {
        let told = format!("test {test} leaves a database that is not whole: {broken}\n");
        // Written past the test harness, which shows only what failed tests print, and nothing of other threads.
        let _ = std::io::stderr().write_all(told.as_bytes());
        std::process::exit(101);
    }
}

/// What is wrong with the files of a database.
async fn damaged(client: &Client) -> Option<String> {
    for sql in [pages::MODULES, pages::SOUND] {
        if let Err(error) = client.batch_execute(sql).await {
            return Some(format!("{error:?}"));
        }
    }
    None
}

const END_SESSIONS: &str =
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = $1";

/// Drops a database in a thread of its own while the tests go on: the DROP waits for each backend of the cluster, and a
/// test may have stopped one.
fn drop_later(name: String, test: String) {
    static DROPPED: OnceLock<Sender<(String, String, Sender<()>)>> = OnceLock::new();
    let dropped = DROPPED.get_or_init(|| {
        let (sender, names) = mpsc::channel::<(String, String, Sender<()>)>();
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let admin = cluster().connect("postgres").await.unwrap();
                for (name, test, checked) in names {
                    if pages::are_checked() {
                        // The checks would wait for the locks of these sessions, and the test's thread waits for this
                        // thread.
                        admin.execute(END_SESSIONS, &[&name]).await.unwrap();
                    }
                    if !test.is_empty() {
                        ensure_whole(&name, &test).await;
                    }
                    drop(checked);
                    let sql = format!("drop database {name} with (force)");
                    admin.batch_execute(&sql).await.unwrap();
                }
            });
        });
        sender
    });
    let (checked, is_checked) = mpsc::channel();
    dropped.send((name, test, checked)).unwrap();
    if pages::are_checked() {
        // Waits for the check, because the program ends with its last test. The dropped sender is the answer.
        let _ = is_checked.recv();
    }
}

/// A session of a superuser in a database of its own, and what a test says in it.
pub struct Playground {
    /// The connection, for calls with parameters or types.
    pub client: Client,
    /// Shared with the other sessions in the database.
    pub database: Arc<Database>,
    /// The settings that the session carries along; None: it has a server session of its own.
    carried: Option<Carried>,
}

/// What a refused statement told.
#[derive(Debug)]
pub struct Refusal {
    /// The SQLSTATE.
    pub code: String,
    /// The first line.
    pub message: String,
    /// The next step; empty where there is none.
    pub hint: String,
    /// Empty where there is none.
    pub detail: String,
}

impl Refusal {
    /// Asserts the SQLSTATE, words of the message, and that it says what to do next; `what` was refused.
    #[track_caller]
    pub fn tells(&self, code: &str, words: &[&str], what: &str) {
        let told = words.iter().all(|word| self.message.contains(word));
        let is_right = self.code == code && told && !self.hint.is_empty();
        assert!(is_right, "{what}: not {code} with {words:?}: {self:?}");
    }
}

impl Playground {
    /// A database with the extension that nobody else has, and a session in it.
    pub async fn open() -> Playground {
        Playground::open_as(false).await
    }

    /// Like `open`, with sessions of its own, never through a pooler. `_why` says what a pooler in transaction mode
    /// cannot do for this test.
    pub async fn directly(_why: &str) -> Playground {
        Playground::open_as(true).await
    }

    async fn open_as(directly: bool) -> Playground {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("play_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let admin = cluster().connect("postgres").await.unwrap();
        // Copying files takes about half as long as writing pages to the log.
        let create = format!("create database {name} template model strategy file_copy");
        admin.batch_execute(&create).await.unwrap();
        let client = connect("postgres", &name, directly).await;
        let database = Arc::new(Database::new(name, true));
        Playground {
            client,
            database,
            carried: (!directly && through_pooler()).then(Carried::default),
        }
    }

    /// Makes a role of the cluster (a name and its rights) unless another test has made the role, or makes it right
    /// now.
    pub async fn ensure_role(&self, role: &str) {
        self.show(&format!(
            "do $$ begin create role {role}; exception when duplicate_object or unique_violation then null; end $$"
        ))
        .await;
    }

    /// A superuser's session in a database that a test has made in a cluster of its own.
    pub async fn on(cluster: &Cluster, database: &str) -> Playground {
        Playground::on_as(cluster, "postgres", database).await
    }

    /// Like `on`, for another role.
    pub async fn on_as(cluster: &Cluster, role: &str, database: &str) -> Playground {
        let client = cluster.enter_as(role, database).await.unwrap();
        let mut play = Playground::of(client, database);
        play.carried = through_pooler().then(Carried::default);
        play
    }

    /// A session that is connected already, in a database that a test made for itself.
    pub fn of(client: Client, database: &str) -> Playground {
        let name = database.to_owned();
        let database = Arc::new(Database::new(name, false));
        Playground {
            client,
            database,
            carried: None,
        }
    }

    /// This test damages the extension's tables by hand: `once.verify` would find the damage at the end.
    pub fn expect_damage(&self) {
        self.database.damaged.store(true, Ordering::Relaxed);
    }

    /// Another session in the same database.
    pub async fn another(&self) -> Playground {
        self.another_as("postgres").await
    }

    /// Another session in the same database, of another role.
    pub async fn another_as(&self, role: &str) -> Playground {
        let pooled = self.carried.is_some();
        Playground {
            client: connect(role, &self.database.name, !pooled).await,
            database: Arc::clone(&self.database),
            carried: pooled.then(Carried::default),
        }
    }

    /// Another session in the same database that is its own, never through a pooler; `_why` as for `directly`.
    pub async fn another_directly(&self, role: &str, _why: &str) -> Playground {
        Playground {
            client: connect(role, &self.database.name, true).await,
            database: Arc::clone(&self.database),
            carried: None,
        }
    }

    /// A session that looks at the other sessions while this session is in a transaction. In a transaction the server
    /// repeats its first answer on who is connected, and behind a pooler that changes. None where sessions are their
    /// own.
    pub async fn aside(&self) -> Option<Client> {
        self.carried.as_ref()?;
        Some(connect("postgres", &self.database.name, true).await)
    }

    /// The rows of the last statement in `sql`, one per line.
    pub async fn show(&self, sql: &str) -> String {
        match self.attempt(sql).await {
            Ok(rows) => rows,
            Err(refusal) => panic!("{sql}\n{refusal:?}"),
        }
    }

    /// As `show`, where the statement may be refused.
    pub async fn attempt(&self, sql: &str) -> Result<String, Refusal> {
        match self.send(sql).await {
            Ok(messages) => Ok(shown(&messages)),
            Err(error) => {
                let error = error
                    .as_db_error()
                    .unwrap_or_else(|| panic!("{sql}\n{error}"));
                Err(Refusal {
                    code: error.code().code().to_owned(),
                    message: error.message().to_owned(),
                    hint: error.hint().unwrap_or_default().to_owned(),
                    detail: error.detail().unwrap_or_default().to_owned(),
                })
            }
        }
    }

    /// The server's whole answer.
    pub async fn send(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        let Some(carried) = &self.carried else {
            return self.ended(sql).await;
        };
        let sent = carried.send(sql);
        let answer = self.ended(&sent.sql).await;
        match &answer {
            Ok(messages) => carried.done(sent, &answers(messages)),
            Err(_) => carried.failed(&sent),
        }
        answer
    }

    /// The answer to `sql` once its transaction is over: the server tells an error before it rolls back, and until then
    /// another session sees locks that are about to go. The server answers an empty query after the rollback.
    async fn ended(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        let answer = self.client.simple_query(sql).await;
        if answer.is_err() && !self.client.is_closed() {
            // A session that was ended reports that to the next query.
            let _ = self.client.simple_query("").await;
        }
        answer
    }

    /// Why the statement was refused.
    pub async fn refused(&self, sql: &str) -> Refusal {
        match self.attempt(sql).await {
            Ok(rows) => panic!("not refused: {sql}\n{rows}"),
            Err(refusal) => refusal,
        }
    }

    /// The SQLSTATE of a refused statement.
    pub async fn code(&self, sql: &str) -> String {
        self.refused(sql).await.code
    }

    /// A statement whose answer is known: `play.ask("select 1").is("1").await`.
    pub fn ask<'a>(&'a self, sql: &'a str) -> Question<'a> {
        Question { play: self, sql }
    }

    /// Claims a key that is free or abandoned and returns its token; `more` are further arguments.
    pub async fn token(&self, key: &str, more: &str) -> i64 {
        let claim = format!("select outcome, token from once.key_claim('s', '{key}'{more})");
        let shown = self.show(&claim).await;
        let (outcome, token) = shown.split_once('|').unwrap();
        assert!(matches!(outcome, "claimed" | "resumed"), "{claim}: {shown}");
        token.parse().unwrap()
    }

    /// The outcome of a claim in scope s.
    pub async fn claim(&self, key: &str, more: &str) -> String {
        self.show(&format!(
            "select outcome from once.key_claim('s', '{key}'{more})"
        ))
        .await
    }

    /// Pretends, in this session, that the time `since` has passed since the tests' epoch.
    pub async fn clock(&self, since: &str) {
        let sql = format!(
            "select set_config('once.fake_now', (timestamptz '{EPOCH}' + interval '{since}')::text, false)"
        );
        self.show(&sql).await;
    }

    /// Everything that the extension has stored.
    pub async fn stored(&self) -> String {
        self.show(
            "select coalesce(string_agg(r, ';' order by r), '') from (
                select 'k' || k::text from once.key k union all
                select 's' || s::text from once.key_step s union all
                select 'o' || o::text from once.scope o union all
                select 'g' || g::text from once.role_grant g) rows(r)",
        )
        .await
    }
}

/// See [`Playground::ask`]; a failed test names the line that asked.
pub struct Question<'a> {
    play: &'a Playground,
    sql: &'a str,
}

impl<'a> Question<'a> {
    /// Asserts the rows of the last statement, as `show` shows them.
    #[track_caller]
    pub fn is(self, expected: &'a str) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        async move {
            let rows = self.play.show(self.sql).await;
            assert_eq!(rows, expected, "{place}: {}", self.sql);
        }
    }

    /// Asserts how the rows begin.
    #[track_caller]
    pub fn begins(self, expected: &'a str) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        async move {
            let rows = self.play.show(self.sql).await;
            assert!(rows.starts_with(expected), "{place}: {}: {rows}", self.sql);
        }
    }

    /// Asserts that the statement is refused with this SQLSTATE.
    #[track_caller]
    pub fn fails(self, expected: &'a str) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        async move {
            let refusal = self.play.refused(self.sql).await;
            assert_eq!(refusal.code, expected, "{place}: {}: {refusal:?}", self.sql);
        }
    }
}

/// The rows of the last statement.
fn shown(messages: &[SimpleQueryMessage]) -> String {
    answers(messages).pop().unwrap_or_default()
}

/// The rows of each statement.
fn answers(messages: &[SimpleQueryMessage]) -> Vec<String> {
    let (mut answers, mut rows) = (Vec::new(), Vec::<String>::new());
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let columns = (0..row.len()).map(|i| row.get(i).unwrap_or("~"));
                rows.push(columns.collect::<Vec<_>>().join("|"));
            }
            SimpleQueryMessage::CommandComplete(_) => {
                answers.push(std::mem::take(&mut rows).join("\n"));
            }
            _ => {}
        }
    }
    answers
}
