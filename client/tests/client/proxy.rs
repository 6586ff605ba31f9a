//! Simulates a bad network: a proxy in front of the real server.
//!
//! The proxy can cut a connection at a chosen statement ([`Cut`]): before the server gets the statement, or after the
//! server has run it (ReadyForQuery), without sending the answer to the client. It can also fall silent on its
//! present connections, or on its present and future connections. A silent connection stays open and carries nothing.
//! The proxy can also close the connection at each of the next n requests, as if the server were restarting.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::support::config;

/// ReadyForQuery without its last byte: `Z` and the length 5. The server sends it when it has run the request.
const READY: &[u8] = b"Z\0\0\0\x05";

/// Execute: runs the unnamed portal, without a limit of rows.
const EXECUTE: &str = "E\0\0\0\x09\0\0\0\0\0";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Where a connection is cut.
pub struct Cut {
    /// The cut is at the nth statement that contains this text.
    pub text: &'static str,
    pub nth: usize,
    /// Whether the server gets the statement, so that only the answer is lost.
    pub arrives: bool,
    /// Whether the connection stays open, so that the client waits.
    pub hold: bool,
}

#[derive(Default)]
struct Trouble {
    cut: Mutex<Option<Cut>>,
    lost: AtomicUsize,
    opened: AtomicUsize,
    /// How many connections, counted from the first one, carry nothing.
    silent: AtomicUsize,
    /// How many of the next requests close their connection.
    away: AtomicUsize,
}

pub struct Proxy {
    port: u16,
    server: Config,
    trouble: Arc<Trouble>,
}

impl Proxy {
    pub async fn start() -> Self {
        Self::in_front_of(config()).await
    }

    pub async fn in_front_of(server: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trouble = Arc::new(Trouble::default());
        let (shared, to) = (Arc::clone(&trouble), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, to.clone(), Arc::clone(&shared)));
            }
        });
        Self {
            port,
            server,
            trouble,
        }
    }

    /// The connection parameters for the same database through this proxy.
    pub fn config(&self) -> Config {
        self.url().parse().unwrap()
    }

    pub fn url(&self) -> String {
        let (user, database) = (self.server.get_user(), self.server.get_dbname());
        let password = self.server.get_password().unwrap_or_default();
        format!(
            "host=127.0.0.1 port={} user='{}' dbname='{}' password='{}'",
            self.port,
            user.unwrap_or("postgres"),
            database.unwrap_or("postgres"),
            String::from_utf8_lossy(password)
        )
    }

    /// Loses the answer to the next request that contains this text.
    pub fn lose_answer_to(&self, text: &'static str) {
        self.cut(Cut {
            text,
            nth: 1,
            arrives: true,
            hold: false,
        });
    }

    pub fn cut(&self, cut: Cut) {
        *self.trouble.cut.lock().unwrap() = Some(cut);
    }

    pub fn lost(&self) -> usize {
        self.trouble.lost.load(Ordering::SeqCst)
    }

    /// Closes the connection at each of the next `requests` requests. A connection's first message is a request, too.
    pub fn be_away_for(&self, requests: u32) {
        let requests = usize::try_from(requests).unwrap();
        self.trouble.away.store(requests, Ordering::SeqCst);
    }

    pub fn fall_silent(&self) {
        self.trouble.silent.store(usize::MAX, Ordering::SeqCst);
    }

    /// From now on the open connections carry nothing, and report no error.
    pub fn fall_silent_on_open_connections(&self) {
        let opened = self.trouble.opened.load(Ordering::SeqCst);
        self.trouble.silent.store(opened, Ordering::SeqCst);
    }
}

async fn connect(config: &Config) -> Box<dyn Stream> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Unix(directory)) => {
            let socket = directory.join(format!(".s.PGSQL.{port}"));
            Box::new(UnixStream::connect(socket).await.unwrap())
        }
        Some(Host::Tcp(host)) => Box::new(TcpStream::connect((host.as_str(), port)).await.unwrap()),
        None => panic!("PG_ONCE_URL names no host"),
    }
}

async fn carry(client: TcpStream, server: Config, trouble: Arc<Trouble>) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(connect(&server).await);
    let losing = Arc::new(Mutex::new(None::<Cut>));
    let number = trouble.opened.fetch_add(1, Ordering::SeqCst);

    let (told, requests) = (Arc::clone(&losing), Arc::clone(&trouble));
    let upward = async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
            let request = &bytes[..read];
            if let Some(cut) = requests.cut_of(request) {
                if !cut.arrives {
                    requests.lost.fetch_add(1, Ordering::SeqCst);
                    while cut.hold && matches!(from_client.read(&mut bytes).await, Ok(1..)) {}
                    break;
                }
                *told.lock().unwrap() = Some(cut);
            }
            if requests.is_away() {
                break;
            }
            requests.hold_if_silent(number).await;
            if to_server.write_all(request).await.is_err() {
                break;
            }
        }
    };
    let downward = async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
            let answer = &bytes[..read];
            trouble.hold_if_silent(number).await;
            let hold = losing.lock().unwrap().as_ref().map(|cut| cut.hold);
            if let Some(hold) = hold {
                if !answer[..read - 1].ends_with(READY) {
                    continue;
                }
                trouble.lost.fetch_add(1, Ordering::SeqCst);
                if hold {
                    // Waits until the client hangs up.
                    std::future::pending::<()>().await;
                }
                break;
            }
            if to_client.write_all(answer).await.is_err() {
                break;
            }
        }
    };
    // The connection is closed when one direction ends.
    tokio::select! { () = upward => {}, () = downward => {} }
}

impl Trouble {
    /// The cut, if it applies to this request.
    fn cut_of(&self, request: &[u8]) -> Option<Cut> {
        let has = |text: &str| {
            request
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        let mut next = self.cut.lock().unwrap();
        let cut = next
            .as_mut()
            .filter(|cut| cut.text.is_empty() || has(cut.text))?;
        // Counts Query, Parse, Bind and Close. A cut without a text counts no heartbeats, because their times vary.
        if !b"QPBC".contains(&request[0]) || cut.text.is_empty() && has("_extend(") {
            return None;
        }
        if cut.nth == 1 && request[0] == b'P' && !has(EXECUTE) {
            // sqlx prepares a statement in one request and runs it in the next; the cut must be at the second request.
            cut.text = EXECUTE;
            return None;
        }
        cut.nth -= 1;
        next.take_if(|cut| cut.nth == 0)
    }

    fn is_away(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let counted = self
            .away
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        counted.is_ok()
    }

    async fn hold_if_silent(&self, connection: usize) {
        if connection < self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}
