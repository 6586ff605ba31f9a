//! A network between a client and the server that is cut once, at a chosen message. It carries simple queries only:
//! one message, and its answer up to ReadyForQuery.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How a message or its answer is lost; the connection ends with it, or nobody hears of the other any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cut {
    Request,
    HalfRequest,
    Answer,
    HalfAnswer,
    /// A black hole from before the request on.
    HoleBefore,
    /// The server has got the request.
    HoleBehind,
}

pub const CUTS: [Cut; 6] = [
    Cut::Request,
    Cut::HalfRequest,
    Cut::Answer,
    Cut::HalfAnswer,
    Cut::HoleBefore,
    Cut::HoleBehind,
];

/// How long the server still sees a client that is in a black hole.
const HOLE: Duration = Duration::from_secs(2);

struct Network {
    server: u16,
    cut: Option<(usize, Cut)>,
    messages: AtomicUsize,
    /// The message at which it was cut.
    at: Mutex<String>,
}

pub struct Proxy {
    port: u16,
    network: Arc<Network>,
}

impl Proxy {
    /// In front of the server at this port; cut at the message of this number, from 1.
    pub async fn start(server: u16, cut: Option<(usize, Cut)>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (messages, at) = (AtomicUsize::new(0), Mutex::default());
        let network = Arc::new(Network {
            server,
            cut,
            messages,
            at,
        });
        let shared = Arc::downgrade(&network);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(network) = shared.upgrade() else {
                    return;
                };
                // However it ends, the connection ends with it.
                tokio::spawn(async move { network.carry(client).await });
            }
        });
        Proxy { port, network }
    }

    pub fn url(&self, database: &str) -> String {
        format!(
            "postgresql://postgres@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    pub fn messages(&self) -> usize {
        self.network.messages.load(Ordering::SeqCst)
    }

    pub fn said(&self) -> String {
        format!(
            "cut {:?} at {}",
            self.network.cut,
            self.network.at.lock().unwrap()
        )
    }
}

/// A message with its type and length; None: the other side has gone.
async fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut whole = vec![0; 5];
    from.read_exact(&mut whole).await.ok()?;
    let length = u32::from_be_bytes([whole[1], whole[2], whole[3], whole[4]]);
    whole.resize(usize::try_from(length).ok()? + 1, 0);
    from.read_exact(&mut whole[5..]).await.ok()?;
    Some(whole)
}

/// Everything up to ReadyForQuery.
async fn answer(server: &mut TcpStream) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let part = message(server).await?;
        whole.extend_from_slice(&part);
        if part[0] == b'Z' {
            return Some(whole);
        }
    }
}

impl Network {
    async fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.server)).await?;
        // The first message has no type.
        let length = client.read_u32().await?;
        let mut startup = vec![0; length as usize - 4];
        client.read_exact(&mut startup).await?;
        server.write_u32(length).await?;
        server.write_all(&startup).await?;
        let Some(greeting) = answer(&mut server).await else {
            return Ok(());
        };
        client.write_all(&greeting).await?;
        while let Some(request) = message(&mut client).await {
            let number = self
                .messages
                .fetch_add(usize::from(request[0] == b'Q'), Ordering::SeqCst)
                + 1;
            match self.cut {
                Some((at, cut)) if at == number && request[0] == b'Q' => {
                    *self.at.lock().unwrap() = String::from_utf8_lossy(&request[5..]).into_owned();
                    return lose(cut, &request, &mut client, &mut server).await;
                }
                _ => server.write_all(&request).await?,
            }
            let Some(answer) = answer(&mut server).await else {
                return Ok(());
            };
            client.write_all(&answer).await?;
        }
        Ok(())
    }
}

async fn lose(
    cut: Cut,
    request: &[u8],
    client: &mut TcpStream,
    server: &mut TcpStream,
) -> io::Result<()> {
    match cut {
        Cut::Request => {}
        Cut::HalfRequest => server.write_all(&request[..request.len() / 2]).await?,
        Cut::Answer | Cut::HalfAnswer => {
            server.write_all(request).await?;
            let answer = answer(server).await.unwrap_or_default();
            if cut == Cut::HalfAnswer {
                client.write_all(&answer[..answer.len() / 2]).await?;
            }
        }
        Cut::HoleBefore => tokio::time::sleep(HOLE).await,
        Cut::HoleBehind => {
            server.write_all(request).await?;
            tokio::time::sleep(HOLE).await;
        }
    }
    Ok(())
}
