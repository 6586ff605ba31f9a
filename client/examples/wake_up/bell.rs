//! Wakes workers in other processes: one NOTIFY for many commits, sent by a separate session.
//!
//! Invariant: no emitter waits for a NOTIFY. Transactions that NOTIFY commit one at a time in the whole
//! server. So emitters poke a [`Bell`] in memory after their commit. One task of the process sends one NOTIFY for
//! all pokes so far, then sleeps before it sends the next. If a NOTIFY is lost (the connection is cut, the
//! listener is away), the events are delivered at the worker's next poll.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_postgres::{AsyncMessage, Config, Error, NoTls};

const RING: &str = "SELECT pg_notify($1, '')";
/// The wait before a new connection.
const AGAIN: Duration = Duration::from_millis(500);

/// The bell of a process that emits. Clones share it.
#[derive(Clone)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Starts the task that sends NOTIFY on `channel`. All pokes within one `pause` make one NOTIFY.
    pub fn hang(config: Config, channel: String, pause: Duration) -> Self {
        let pokes = Arc::new(Notify::new());
        tokio::spawn(ring(config, channel, pause, Arc::clone(&pokes)));
        Self(pokes)
    }

    /// Asks for a NOTIFY, without waiting for it. Call this after the commit of the emit.
    pub fn poke(&self) {
        self.0.notify_one();
    }
}

/// Rings for ever, on a new connection after each error.
async fn ring(config: Config, channel: String, pause: Duration, pokes: Arc<Notify>) {
    loop {
        if let Err(error) = ring_on(&config, &channel, pause, &pokes).await {
            tracing::info!(%error, "the bell's connection is gone");
            // Perhaps no NOTIFY was sent for the last poke.
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

/// Listens for ever in a process with a worker; `heard` is called at each NOTIFY, to wake the worker. LISTEN
/// needs a session, so it does not work through a pooler in transaction mode.
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
        // A NOTIFY from before this LISTEN is lost, so wake the worker once.
        heard();
        pending().await
    };
    tokio::select! {
        ended = hear => ended,
        failed = begin => failed,
    }
}
