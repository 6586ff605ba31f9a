//! Owns waking workers in other processes: one NOTIFY for many commits, from a session of its own.
//!
//! Invariant: no emitter waits for it. A NOTIFY in an emitting transaction would make all commits of the
//! server wait for one another; here emitters poke a [`Bell`] in memory after their commit, and one task of
//! the process sends at most one NOTIFY in each pause. Nothing depends on it: a wake-up that is lost (the
//! connection is cut, a listener is away) costs its event one poll.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_postgres::{AsyncMessage, Config, Error, NoTls};

const RING: &str = "SELECT pg_notify($1, '')";
/// The wait before a new connection.
const AGAIN: Duration = Duration::from_millis(500);

/// Of the process that emits. Clones are the same bell.
#[derive(Clone)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Rings on this channel, at most once in this time: many pokes meanwhile are one.
    pub fn hang(config: Config, channel: String, pause: Duration) -> Self {
        let pokes = Arc::new(Notify::new());
        tokio::spawn(ring(config, channel, pause, Arc::clone(&pokes)));
        Self(pokes)
    }

    /// Call it after the commit that emitted. Costs an atomic write.
    pub fn poke(&self) {
        self.0.notify_one();
    }
}

/// For ever.
async fn ring(config: Config, channel: String, pause: Duration, pokes: Arc<Notify>) {
    loop {
        if let Err(error) = ring_on(&config, &channel, pause, &pokes).await {
            tracing::info!(%error, "the bell's connection is gone");
            // The last poke may not have been sent.
            pokes.notify_one();
        }
        sleep(AGAIN).await;
    }
}

async fn ring_on(
    config: &Config,
    channel: &str,
    pause: Duration,
    pokes: &Notify,
) -> Result<(), Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    loop {
        pokes.notified().await;
        client.execute(RING, &[&channel]).await?;
        sleep(pause).await;
    }
}

/// Of the process that works: hears each ring, for ever; `heard` wakes its worker. Not through a pooler that
/// shares connections between transactions: LISTEN needs a session.
pub async fn listen(config: Config, channel: String, heard: impl Fn()) {
    loop {
        if let Err(error) = listen_on(&config, &channel, &heard).await {
            tracing::info!(%error, "the listener's connection is gone");
        }
        sleep(AGAIN).await;
    }
}

async fn listen_on(config: &Config, channel: &str, heard: impl Fn()) -> Result<(), Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let listen = format!("LISTEN \"{channel}\"");
    let hear = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(_) = message? {
                heard();
            }
        }
        Ok(())
    };
    let begin = async {
        client.batch_execute(&listen).await?;
        // A ring while nobody listened was not heard, so look once.
        heard();
        pending().await
    };
    tokio::select! {
        ended = hear => ended,
        failed = begin => failed,
    }
}
