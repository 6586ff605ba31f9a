//! Owns the shared parts of the tests: connections, fresh keys and topics, batch jobs with their machine, a handler
//! that stalls, and sessions whose clock is a year ahead.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::Manager;
use pg_once::{
    Abandoned, Acked, Action, ActionClaim, ActionOptions, Args, Autocommit, Backoff, Batch, Begin,
    Claim, ClaimOptions, Complete, Completion, Deliver, Done, Error, Event, Executor, Failure, Key,
    Lease, Machine, MachineRow, OpenTransaction, Row, Scope, Subscriber, TestMode, Topic,
    TopicOptions, Undelivered,
};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::sync::Notify;
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, NoTls};

/// Short waits, because tests should be quick; a long timeout, because the machine may be busy.
pub const QUICK: Backoff = Backoff {
    base: Duration::from_millis(5),
    cap: Duration::from_millis(50),
    tries: 5,
    call_timeout: Duration::from_secs(20),
};

/// If `PG_ONCE_URL` leads through a pooler in transaction mode, this variable names the same database directly.
const DIRECT: &str = "PG_ONCE_DIRECT_URL";

pub fn config() -> Config {
    let url = std::env::var("PG_ONCE_URL");
    let url =
        url.expect("PG_ONCE_URL names no database with pg_once in it; `make test` starts one");
    url.parse().expect("PG_ONCE_URL is a connection string")
}

pub fn through_pooler() -> bool {
    std::env::var_os(DIRECT).is_some()
}

/// The connection parameters without the pooler, for a test that needs a session of its own; `_why` is the reason.
pub fn directly(_why: &str) -> Config {
    match std::env::var(DIRECT) {
        Ok(url) => url
            .parse()
            .expect("PG_ONCE_DIRECT_URL is a connection string"),
        Err(_) => config(),
    }
}

pub fn pool() -> Pool {
    pool_to(config())
}

pub fn pool_to(config: Config) -> Pool {
    let sqlx = over_sqlx().then(|| sqlx_pool_to(&config));
    let own = deadpool_postgres::Pool::builder(Manager::new(config, NoTls));
    let own = own.build().unwrap();
    Pool { own, sqlx }
}

/// A pool: calls of the extension use the driver that `PG_ONCE_DRIVER` names; a test's own statements and transactions
/// use tokio-postgres.
#[derive(Clone, Debug)]
pub struct Pool {
    own: deadpool_postgres::Pool,
    sqlx: Option<PgPool>,
}

impl Deref for Pool {
    type Target = deadpool_postgres::Pool;

    fn deref(&self) -> &Self::Target {
        &self.own
    }
}

impl Executor for Pool {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>, Error> {
        match &self.sqlx {
            Some(pool) => pool.query(sql, args).await,
            None => self.own.query(sql, args).await,
        }
    }
}

impl Autocommit for Pool {}

impl Begin for Pool {
    async fn begin(&self) -> Result<OpenTransaction, Error> {
        self.own.begin().await
    }
}

pub fn over_sqlx() -> bool {
    std::env::var("PG_ONCE_DRIVER").is_ok_and(|driver| driver == "sqlx")
}

pub fn sqlx_pool_to(config: &Config) -> PgPool {
    let patience = Duration::from_secs(5);
    let options = PgPoolOptions::new().acquire_timeout(patience);
    options.connect_lazy_with(sqlx_options(config))
}

/// Converts connection parameters for sqlx.
pub fn sqlx_options(config: &Config) -> PgConnectOptions {
    let mut options = PgConnectOptions::new_without_pgpass();
    options = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => options.host(host),
        Some(Host::Unix(directory)) => options.socket(directory),
        None => options,
    };
    if let Some(port) = config.get_ports().first() {
        options = options.port(*port);
    }
    let user = config.get_user().unwrap_or("postgres");
    let options = options
        .username(user)
        .database(config.get_dbname().unwrap_or(user));
    let options =
        options.password(std::str::from_utf8(config.get_password().unwrap_or_default()).unwrap());
    let options = options.application_name(config.get_application_name().unwrap_or_default());
    match config.get_options() {
        Some(level) => options.options([level.trim_start_matches("-c ").split_once('=').unwrap()]),
        None => options,
    }
}

/// Begins a transaction, and wraps its connection in test mode.
pub async fn begun(pool: &Pool) -> TestMode<Arc<deadpool_postgres::Client>> {
    let client = pool.get().await.unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    TestMode(Arc::new(client))
}

pub async fn connect() -> tokio_postgres::Client {
    connect_to(config()).await
}

pub async fn connect_to(config: Config) -> tokio_postgres::Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The process id of the session that serves the client at the moment.
pub async fn backend_pid(client: &tokio_postgres::Client) -> i32 {
    let asked = client.query_typed_one("SELECT pg_backend_pid()", &[]);
    asked.await.unwrap().get(0)
}

/// Terminates the session with this process id.
pub async fn terminate(pid: i32) {
    let admin = connect().await;
    let sql = "SELECT pg_terminate_backend($1, 10000)";
    let ended = admin.query_typed_one(sql, &[(&pid, Type::INT4)]).await;
    assert!(ended.unwrap().get::<_, bool>(0));
}

pub fn fresh_key() -> Key {
    Scope::new("client.tests").key(&uuid::Uuid::new_v4().to_string())
}

/// Makes a fresh topic with the subscriber `default`.
pub async fn fresh_topic() -> Topic {
    let topic = Topic::new(&format!("client tests {}", uuid::Uuid::new_v4()));
    topic.set(&pool(), &TopicOptions::new()).await.unwrap();
    topic
}

pub async fn claimed(key: &Key, pool: &Pool) -> Lease {
    match key.claim(pool, &ClaimOptions::new()).await.unwrap() {
        Claim::Claimed(lease) => lease,
        other => panic!("a fresh key is claimed, not {other:?}"),
    }
}

/// Takes the key over in a session whose clock is a year ahead, so that every lease has expired.
pub async fn take_over(key: &Key, options: &ClaimOptions) -> Lease {
    let later = a_year_later().await;
    match QUICK.retry(|| key.claim(&later, options)).await.unwrap() {
        Claim::Resumed(lease) => lease,
        other => panic!("an abandoned key is resumed, not {other:?}"),
    }
}

include!("../support/machine.rs");

/// The tables and the machine of the batch jobs, with a job of three items and a wallet of 100.
pub struct Jobs {
    pub pool: Pool,
    pub machine: Machine,
    pub job: MachineRow,
    pub id: i64,
}

impl Jobs {
    pub async fn new() -> Self {
        let (_, machine, id) = make_machine(config()).await.unwrap();
        let (pool, job) = (
            pool_to(config().user(machine.as_str()).clone()),
            machine.row(id),
        );
        Self {
            pool,
            machine,
            job,
            id,
        }
    }

    pub async fn begun(&self) -> TestMode<Arc<deadpool_postgres::Client>> {
        begun(&self.pool).await
    }

    /// Like `new`, with the guard on, which refuses undeclared writes.
    pub async fn guarded() -> Self {
        let jobs = Self::new().await;
        jobs.machine.guard(&jobs.pool, true).await.unwrap();
        jobs
    }

    /// Another job of three items, with a wallet of its own.
    pub async fn another(&self, customer: &str) -> i64 {
        let sql = "WITH wallet AS (INSERT INTO wallet VALUES ($1, 100)), \
            job AS (INSERT INTO batch_job (customer) VALUES ($1) RETURNING id), \
            items AS (INSERT INTO batch_item (job_id, input, points, artifact) \
                SELECT job.id, 'page ' || n, 10, 'item-' || n FROM job, generate_series(1, 3) n) \
            SELECT id FROM job";
        let client = self.pool.get().await.unwrap();
        let made = client
            .query_typed_one(sql, &[(&customer, Type::TEXT)])
            .await;
        made.unwrap().get(0)
    }

    /// A pool to the same tables through another server address, such as a proxy's.
    pub fn through(&self, mut config: Config) -> Pool {
        config.user(self.machine.as_str());
        pool_to(config)
    }

    /// A session that has the wallets locked, until it is dropped.
    pub async fn lock_wallet(&self) -> tokio_postgres::Client {
        let client = connect().await;
        let schema = self.machine.as_str();
        let lock = format!("BEGIN; SELECT FROM {schema}.wallet FOR UPDATE");
        client.batch_execute(&lock).await.unwrap();
        client
    }

    pub async fn execute(&self, sql: &str) -> u64 {
        let client = self.pool.get().await.unwrap();
        client.execute_typed(sql, &[]).await.unwrap()
    }

    pub async fn text(&self, sql: &str) -> String {
        let client = self.pool.get().await.unwrap();
        client.query_typed_one(sql, &[]).await.unwrap().get(0)
    }

    pub async fn status(&self) -> String {
        let id = self.id;
        self.text(&format!("SELECT status FROM batch_job WHERE id = {id}"))
            .await
    }

    /// Asserts that the refunds equal the sums of the marked items.
    pub async fn assert_audited(&self) {
        let mismatches = self.machine.cancel_audit(&self.pool).await.unwrap();
        assert!(mismatches.is_empty(), "{mismatches:?}");
    }

    /// The rows that wait for a teardown.
    pub async fn pending(&self) -> Vec<MachineRow> {
        let pending = self.machine.cancel_pending(&self.pool, 10).await.unwrap();
        pending.into_iter().map(|pending| pending.row).collect()
    }

    /// The points of the first job's customer.
    pub async fn points(&self) -> i64 {
        let sql = "SELECT points::text FROM wallet WHERE customer = 'ada'";
        self.text(sql).await.parse().unwrap()
    }

    /// Claims the job as a worker does. The machine's definition sets the length of the lease.
    pub async fn claimed(&self) -> Action {
        match self.job.claim(&self.pool, "run", &worker()).await.unwrap() {
            ActionClaim::Claimed(action) => action,
            other => panic!("a queued job is claimed, not {other:?}"),
        }
    }

    /// Sweeps in a session whose clock is a year ahead, so that the holder of the lease has lost it.
    pub async fn swept_later(&self) {
        let later = a_year_later().await;
        let sweep = "SELECT done FROM once.sweep(1000, 'action_release', $1)";
        let name = self.machine.as_str();
        let done: i64 = later.query_one(sweep, &[&name]).await.unwrap().get(0);
        assert_eq!(done, 1, "the row is given back");
    }
}

pub fn worker() -> ActionOptions {
    ActionOptions::new().requester("worker").fresh_holder()
}

/// A pool whose sessions have an `application_name` of their own, by which a test watches them.
pub fn named_pool() -> (String, Pool) {
    let name = uuid::Uuid::new_v4().to_string();
    let mut named = directly("its sessions are watched from outside");
    named.application_name(&name);
    (name, pool_to(named))
}

/// Waits until two polls of the worker with this name are two seconds or more apart; returns the time between them.
pub async fn until_idle(name: &str) -> Duration {
    let asked = "SELECT (extract(epoch FROM max(query_start)) * 1e6)::bigint FROM pg_stat_activity \
                 WHERE application_name = $1";
    let client = connect_to(directly("its statements are prepared")).await;
    let mut last: Option<i64> = None;
    loop {
        let now: Option<i64> = client.query_one(asked, &[&name]).await.unwrap().get(0);
        if let (Some(last), Some(now)) = (last, now) {
            let waited = Duration::from_micros(now.abs_diff(last));
            if waited >= Duration::from_secs(2) {
                return waited;
            }
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the condition, at most 90 seconds.
pub async fn until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < Duration::from_secs(90),
            "it did not come to that"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sets its flag when it is dropped.
pub struct OnDrop(pub Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A handler that stalls until it is dropped, and then sets a flag.
#[derive(Clone, Default)]
pub struct Stalling {
    pub begun: Arc<Notify>,
    pub dropped: Arc<AtomicBool>,
    /// The number of events or keys whose lease was lost.
    pub lost: Arc<AtomicU64>,
}

impl Stalling {
    async fn stall<T>(&self) -> T {
        let _guard = OnDrop(Arc::clone(&self.dropped));
        self.begun.notify_one();
        std::future::pending().await
    }
}

impl Deliver for Stalling {
    async fn deliver(&self, _: &Event) -> Result<Acked, Undelivered> {
        self.stall().await
    }

    fn lost(&self, events: u64) {
        self.lost.fetch_add(events, Ordering::SeqCst);
    }
}

impl Complete for Stalling {
    async fn complete(&self, _: Abandoned) -> Result<Done, Failure> {
        self.stall().await
    }

    fn ended(&self, _: &Key, completion: &Completion) {
        if matches!(completion, Completion::LeaseLost) {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The SQLSTATE of a refusal.
pub fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().code().unwrap_or_default().to_owned()
}

/// A session whose clock is a year ahead.
pub async fn a_year_later() -> tokio_postgres::Client {
    let later = connect_to(directly("its clock is a setting of the session")).await;
    a_year_more(&later).await;
    later
}

/// Sets the session's clock one more year ahead.
pub async fn a_year_more(session: &tokio_postgres::Client) {
    let a_year = "SELECT set_config('once.fake_now', (coalesce(nullif(current_setting('once.fake_now', true), \
        '')::timestamptz, clock_timestamp()) + '1 year')::text, false)";
    session.query_one(a_year, &[]).await.unwrap();
}

/// Takes the leased events in a session whose clock is years ahead. The first take puts the expired batch's events into
/// once.retry; they are due when their backoff is over.
pub async fn take_over_batch(subscriber: &Subscriber) -> (tokio_postgres::Client, Batch) {
    let later = a_year_later().await;
    for _ in 0..3 {
        if let Some(batch) = subscriber.take(&later, 10, None).await.unwrap() {
            return (later, batch);
        }
        a_year_more(&later).await;
    }
    panic!("what was out comes again");
}
