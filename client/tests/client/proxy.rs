//! Owns the bad network: a proxy in front of the real server.
//!
//! It can lose one answer: it carries a chosen request to the server, waits until the server has
//! done it (ReadyForQuery), and closes the connection without a word of that to the client. It can
//! also fall silent: connections stay open and nothing passes, on those that are open, or on new ones too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::support::config;

/// `Z`, length 5, and `I`: the server is ready, and no transaction is open.
const READY_AND_IDLE: &[u8] = b"Z\0\0\0\x05I";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

#[derive(Default)]
struct Trouble {
    lose: Mutex<Option<Vec<u8>>>,
    lost: AtomicUsize,
    opened: AtomicUsize,
    /// Nothing passes on the connections before this one.
    silent: AtomicUsize,
}

pub struct Proxy {
    port: u16,
    trouble: Arc<Trouble>,
}

impl Proxy {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trouble = Arc::new(Trouble::default());
        let shared = Arc::clone(&trouble);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, Arc::clone(&shared)));
            }
        });
        Self { port, trouble }
    }

    /// The same database, through this proxy.
    pub fn config(&self) -> Config {
        let direct = config();
        let mut through = Config::new();
        through.host("127.0.0.1").port(self.port);
        through.user(direct.get_user().unwrap_or("postgres"));
        through.dbname(direct.get_dbname().unwrap_or("postgres"));
        if let Some(password) = direct.get_password() {
            through.password(password);
        }
        through
    }

    /// The answer to the next request that contains this text is lost.
    pub fn lose_answer_to(&self, text: &str) {
        *self.trouble.lose.lock().unwrap() = Some(text.into());
    }

    pub fn lost(&self) -> usize {
        self.trouble.lost.load(Ordering::SeqCst)
    }

    pub fn fall_silent(&self) {
        self.trouble.silent.store(usize::MAX, Ordering::SeqCst);
    }

    /// The open connections lead nowhere any more, and nobody says so.
    pub fn fall_silent_on_open_connections(&self) {
        let opened = self.trouble.opened.load(Ordering::SeqCst);
        self.trouble.silent.store(opened, Ordering::SeqCst);
    }
}

async fn server() -> Box<dyn Stream> {
    let config = config();
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

async fn carry(client: TcpStream, trouble: Arc<Trouble>) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server().await);
    let losing = Arc::new(AtomicBool::new(false));
    let number = trouble.opened.fetch_add(1, Ordering::SeqCst);

    let (told, requests) = (Arc::clone(&losing), Arc::clone(&trouble));
    let upward = async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
            let request = &bytes[..read];
            if requests.is_to_be_lost(request) {
                told.store(true, Ordering::SeqCst);
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
            if losing.load(Ordering::SeqCst) {
                if answer.ends_with(READY_AND_IDLE) {
                    trouble.lost.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                continue;
            }
            if to_client.write_all(answer).await.is_err() {
                break;
            }
        }
    };
    // Whichever ends first takes the connection with it.
    tokio::select! { () = upward => {}, () = downward => {} }
}

impl Trouble {
    fn is_to_be_lost(&self, request: &[u8]) -> bool {
        let mut lose = self.lose.lock().unwrap();
        let found = lose
            .as_ref()
            .is_some_and(|text| request.windows(text.len()).any(|part| part == text));
        if found {
            *lose = None;
        }
        found
    }

    async fn hold_if_silent(&self, connection: usize) {
        if connection < self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}
