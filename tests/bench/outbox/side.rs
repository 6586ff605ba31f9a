//! The two queues that are measured: pg_once's outbox and pgmq, behind the same few calls.
//!
//! Invariant: both do the same work through the calls that their documents name: every row of a
//! batch reaches the client with all its columns before the batch is acked (deleted), and each call
//! is a transaction of its own.

use anyhow::{Context, Result, ensure};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::pgbench::REQUEST;

/// Events of one transaction of a fill.
const TOGETHER: u64 = 100;
/// What "with order keys" means.
pub const KEYS: i64 = 10_000;

/// One of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    Once,
    Pgmq,
}

/// Whether events have an order key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keyed {
    Yes,
    No,
}

const ONCE_EMIT: &str =
    "SELECT count(once.outbox_emit($1, $2::text::json)) FROM generate_series(1, $3::bigint)";
/// Neighbours have different keys; each key comes equally often.
const ONCE_EMIT_KEYED: &str = "SELECT count(once.outbox_emit($1, $2::text::json, \
    order_key => 'customer ' || (i * 7919 + $4::bigint) % $5::bigint)) FROM generate_series(1, $3::bigint) i";
const PGMQ_SEND: &str = "SELECT count(*) FROM pgmq.send_batch($1, array_fill($2::text::jsonb, ARRAY[$3::bigint::integer]))";

impl Side {
    pub const BOTH: [Self; 2] = [Self::Once, Self::Pgmq];

    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "pg_once",
            Self::Pgmq => "pgmq",
        }
    }

    /// Makes a topic with one subscriber, or a queue.
    pub async fn make(self, client: &Client, queue: &str) -> Result<()> {
        let make = match self {
            Self::Once => format!("SELECT once.topic_set('{queue}', '{{}}')"),
            Self::Pgmq => format!("SELECT pgmq.create('{queue}')"),
        };
        client.batch_execute(&make).await.context(make)
    }

    /// Discards it with what is in it.
    pub async fn discard(self, client: &Client, queue: &str) -> Result<()> {
        let discard = match self {
            Self::Once => format!("SELECT once.subscriber_drop('{queue}', 'default')"),
            Self::Pgmq => format!("SELECT pgmq.drop_queue('{queue}')"),
        };
        client.batch_execute(&discard).await.context(discard)
    }

    /// Emits that many events, in transactions of a hundred.
    pub async fn fill(self, client: &Client, queue: &str, events: u64, keyed: Keyed) -> Result<()> {
        let producer = Producer::new(self, client, queue, keyed).await?;
        let mut emitted = 0;
        while emitted < events {
            let count = TOGETHER.min(events - emitted);
            producer.emit(client, count).await?;
            emitted += count;
        }
        // The queues of services are vacuumed and analyzed now and then.
        let tables = match self {
            Self::Once => "once.event_0, once.event_1, once.event_2, once.event_3".to_owned(),
            Self::Pgmq => format!("pgmq.q_{queue}"),
        };
        let vacuum = format!("VACUUM ANALYZE {tables}");
        client.batch_execute(&vacuum).await.context(vacuum)
    }
}

/// Emits batches in one statement, as a producer of many events would.
#[derive(Debug)]
pub struct Producer {
    queue: String,
    keyed: Keyed,
    emit: Statement,
}

impl Producer {
    pub async fn new(side: Side, client: &Client, queue: &str, keyed: Keyed) -> Result<Self> {
        let emit = match (side, keyed) {
            (Side::Once, Keyed::No) => ONCE_EMIT,
            (Side::Once, Keyed::Yes) => ONCE_EMIT_KEYED,
            (Side::Pgmq, _) => PGMQ_SEND,
        };
        Ok(Self {
            queue: queue.to_owned(),
            keyed,
            emit: client.prepare(emit).await.context(emit)?,
        })
    }

    /// One transaction.
    pub async fn emit(&self, client: &Client, events: u64) -> Result<()> {
        let count = i64::try_from(events)?;
        let row = match self.keyed {
            Keyed::No => {
                client
                    .query_one(&self.emit, &[&self.queue, &REQUEST, &count])
                    .await?
            }
            Keyed::Yes => {
                let shift = i64::from(rand::random::<u16>());
                client
                    .query_one(&self.emit, &[&self.queue, &REQUEST, &count, &shift, &KEYS])
                    .await?
            }
        };
        let emitted: i64 = row.get(0);
        ensure!(emitted == count, "{emitted} of {count} events were emitted");
        Ok(())
    }
}

/// A consumer with a connection of its own.
pub struct Worker {
    client: Client,
    side: Side,
    queue: String,
    max: i32,
    take: Statement,
    ack: Statement,
}

impl Worker {
    pub async fn new(side: Side, client: Client, queue: &str, max: i32) -> Result<Self> {
        let (take, ack) = match side {
            Side::Once => (
                "SELECT * FROM once.outbox_take($1, 'default', $2)",
                "SELECT once.outbox_ack($1, 'default', $2)",
            ),
            Side::Pgmq => (
                "SELECT * FROM pgmq.read($1, 60, $2)",
                "SELECT * FROM pgmq.delete($1, $2::bigint[])",
            ),
        };
        Ok(Self {
            take: client.prepare(take).await.context(take)?,
            ack: client.prepare(ack).await.context(ack)?,
            client,
            side,
            queue: queue.to_owned(),
            max,
        })
    }

    /// Takes a batch and acks it: two transactions, or one where nothing is due. How many events.
    pub async fn take_and_ack(&self) -> Result<u64> {
        let rows = self
            .client
            .query(&self.take, &[&self.queue, &self.max])
            .await
            .context("take")?;
        let Some(first) = rows.first() else {
            return Ok(0);
        };
        let events = rows.len() as u64;
        let acked = match self.side {
            Side::Once => {
                let token: i64 = first.get("token");
                let row = self
                    .client
                    .query_one(&self.ack, &[&self.queue, &token])
                    .await
                    .context("ack")?;
                u64::try_from(row.get::<_, i32>(0))?
            }
            Side::Pgmq => {
                let ids: Vec<i64> = rows.iter().map(|row| row.get("msg_id")).collect();
                let deleted = self.client.query(&self.ack, &[&self.queue, &ids]).await?;
                deleted.len() as u64
            }
        };
        ensure!(
            acked == events,
            "{} took {events} events and acked {acked}",
            self.side.name()
        );
        let bytes: usize = rows.iter().map(bytes_of).sum();
        ensure!(
            bytes > rows.len() * REQUEST.len(),
            "{} sent {bytes} bytes for {events} events",
            self.side.name()
        );
        Ok(events)
    }

    /// Gives up a batch for good: it becomes dead letters. Only pg_once has them.
    pub async fn take_and_bury(&self) -> Result<u64> {
        let rows = self
            .client
            .query(&self.take, &[&self.queue, &self.max])
            .await?;
        let Some(first) = rows.first() else {
            return Ok(0);
        };
        let token: i64 = first.get("token");
        let ids: Vec<i64> = rows.iter().map(|row| row.get("event_id")).collect();
        let nack = "SELECT count(*) FROM once.outbox_nack($1, 'default', $2, $3, 'gone', 'never') WHERE dead";
        let row = self
            .client
            .query_one(nack, &[&self.queue, &token, &ids])
            .await
            .context(nack)?;
        let dead = u64::try_from(row.get::<_, i64>(0))?;
        ensure!(
            dead == rows.len() as u64,
            "{dead} of {} events are dead",
            rows.len()
        );
        Ok(dead)
    }
}

/// Of all columns: what came over the wire.
fn bytes_of(row: &Row) -> usize {
    let length = |at| {
        row.get::<_, Option<Length>>(at)
            .map_or(0, |length| length.0)
    };
    (0..row.len()).map(length).sum()
}

/// How many bytes a value of whatever type has on the wire.
struct Length(usize);

impl<'a> FromSql<'a> for Length {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.len()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
