//! Shared by the examples: a schema for each run, a foreign service that fails when asked to, and worker processes that
//! are killed.

pub mod foreign;
pub mod http;
pub mod worker;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use deadpool_postgres::{Manager, Pool};
use pg_once::{Deliver, Delivered, Subscriber, SubscriberOptions, Topic, TopicOptions};
use tokio_postgres::NoTls;

/// The lease: after this time another worker can go on with the work of a dead worker.
pub const LEASE: Duration = Duration::from_secs(2);

/// Logs to standard error what `RUST_LOG` selects.
pub fn log() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
}

/// One run of an example, with a schema and topics of its own.
#[derive(Clone)]
pub struct Story {
    pub url: String,
    pub name: String,
    pub pool: Pool,
}

impl Story {
    /// Begins a run: makes its schema with these tables.
    pub async fn begin(url: &str, title: &str, tables: &str) -> Result<Self> {
        let name = format!("{title}_{}", uuid::Uuid::new_v4().simple());
        let story = Self::open(url, &name)?;
        let client = story.pool.get().await?;
        client
            .batch_execute(&format!("CREATE SCHEMA {name}"))
            .await?;
        client.batch_execute(tables).await?;
        Ok(story)
    }

    /// Opens a run by its name, as a worker process does.
    pub fn open(url: &str, name: &str) -> Result<Self> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.options(format!("-c search_path={name}"));
        Ok(Self {
            url: url.to_owned(),
            name: name.to_owned(),
            pool: Pool::builder(Manager::new(config, NoTls)).build()?,
        })
    }

    /// A topic of this run.
    pub fn topic(&self, title: &str) -> Topic {
        Topic::new(&format!("{title} of {}", self.name))
    }

    /// Declares a topic whose events are dead after five attempts with short waits between them. In
    /// production use the default of ten attempts within nine minutes, or more attempts.
    pub async fn declare(&self, title: &str) -> Result<Topic> {
        let topic = self.topic(title);
        topic.set(&self.pool, &TopicOptions::new()).await?;
        let soon = SubscriberOptions::new()
            .max_attempts(5)
            .backoff_base(Duration::from_millis(50))
            .backoff_cap(Duration::from_millis(100));
        let subscriber = topic.default_subscriber();
        subscriber.set(&self.pool, &soon).await?;
        Ok(topic)
    }

    /// Waits until a query of one boolean answers true; fails after half a minute.
    pub async fn until(&self, condition: &str) -> Result<()> {
        let client = self.pool.get().await?;
        for _ in 0..1500 {
            if client.query_one(condition, &[]).await?.try_get(0)? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("never: {condition}")
    }

    /// Waits until a topic has this number of dead letters.
    pub async fn until_dead(&self, topic: &Topic, letters: i64) -> Result<()> {
        let topic = topic.as_str();
        self.until(&format!(
            "SELECT count(*) = {letters} FROM once.outbox_dead('{topic}', 'default')"
        ))
        .await
    }

    /// Delivers a topic's events until `enough` completes.
    pub async fn work<H: Deliver>(
        &self,
        topic: &Topic,
        handler: H,
        enough: impl Future<Output = Result<()>>,
    ) -> Result<Delivered> {
        let mut met = Ok(());
        let worker = self.worker(&topic.default_subscriber());
        let until = async { met = enough.await };
        let delivered = worker.run(until, handler).await?;
        met?;
        Ok(delivered)
    }

    /// Delivers a topic's events until this process is killed.
    pub async fn work_until_killed<H: Deliver>(&self, title: &str, handler: H) -> Result<()> {
        let subscriber = self.topic(title).default_subscriber();
        let worker = self.worker(&subscriber);
        let delivered = worker.run(std::future::pending(), handler).await?;
        bail!("not killed, but {delivered:?}")
    }

    /// A worker with a short lease and frequent polls. In production use the defaults, and stop the worker on SIGTERM.
    pub fn worker(&self, subscriber: &Subscriber) -> pg_once::OutboxWorker {
        subscriber
            .worker(&self.pool)
            .lease(LEASE)
            .poll_every(Duration::from_millis(50))
    }

    /// Runs a query that returns one number.
    pub async fn count(&self, query: &str) -> Result<i64> {
        Ok(self
            .pool
            .get()
            .await?
            .query_one(query, &[])
            .await?
            .try_get(0)?)
    }

    /// Fails if an event of these topics is due; otherwise drops their subscribers and the schema.
    pub async fn end(self, topics: &[Topic]) -> Result<()> {
        for topic in topics {
            let subscriber = topic.default_subscriber();
            let left = subscriber.take(&self.pool, 10, None).await?;
            ensure!(left.is_none(), "{topic:?}: {left:?} is left");
            subscriber.drop(&self.pool).await?;
        }
        let schema = format!("DROP SCHEMA {} CASCADE", self.name);
        Ok(self.pool.get().await?.batch_execute(&schema).await?)
    }
}

/// Waits until the condition holds; fails after half a minute.
pub async fn until(mut condition: impl FnMut() -> bool) -> Result<()> {
    for _ in 0..1500 {
        if condition() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("the condition never held")
}

/// Prints `found`, and fails unless it equals `expected`.
pub fn expect<T: PartialEq + std::fmt::Debug>(part: &str, found: T, expected: T) -> Result<()> {
    println!("{part}: {found:?}");
    ensure!(found == expected, "{part}: expected {expected:?}");
    Ok(())
}
