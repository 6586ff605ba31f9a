//! The network between clients and services: a TCP proxy that loses answers.
//!
//! Invariant: an answer is lost only when the service has already sent it, so the work behind it
//! is done and only the client does not know. One front address stays while the process behind it
//! is killed and comes back on another port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::journal::{Journal, What};

/// Share of the answers of success that never arrive.
const CUT: f64 = 0.05;

pub struct Proxy {
    pub front: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    lane: usize,
    upstream: Mutex<Option<SocketAddr>>,
    rng: Mutex<StdRng>,
    journal: Arc<Journal>,
}

impl Proxy {
    pub async fn start(lane: usize, seed: u64, journal: Arc<Journal>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let front = listener.local_addr()?;
        let shared = Arc::new(Shared {
            lane,
            upstream: Mutex::new(None),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            journal,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self {
            front,
            shared,
            accepting,
        })
    }

    /// Where requests go from now on; None while the process is down.
    pub fn set_upstream(&self, address: Option<SocketAddr>) {
        *self
            .shared
            .upstream
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = address;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(connect(client, Arc::clone(&shared)));
    }
}

/// Carries bytes both ways until one side ends; dropping the sockets tells both.
async fn connect(client: TcpStream, shared: Arc<Shared>) {
    let upstream = *shared
        .upstream
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let Some(upstream) = upstream else { return };
    let Ok(service) = TcpStream::connect(upstream).await else {
        return;
    };
    // Not worth failing for: it only makes small answers quick.
    let _ = client.set_nodelay(true);
    let _ = service.set_nodelay(true);
    let (mut client_read, client_write) = client.into_split();
    let (service_read, mut service_write) = service.into_split();
    tokio::select! {
        _ = tokio::io::copy(&mut client_read, &mut service_write) => {}
        () = answers(service_read, client_write, &shared) => {}
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let chunk = buffer.get(..length).unwrap_or_default();
        if chunk.starts_with(b"HTTP/1.1 2") && shared.cuts() {
            shared.journal.event(What::AnswerCut { lane: shared.lane });
            return;
        }
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

impl Shared {
    fn cuts(&self) -> bool {
        self.rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random_bool(CUT)
    }
}
