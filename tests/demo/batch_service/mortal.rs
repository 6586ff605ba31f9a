//! Connections at which their process may die before and after certain calls: where a loop of the client
//! crate makes the calls, this service has no place of its own between them.
//!
//! Invariant: it dies after a call only when the server has said that its work is committed, and before
//! anybody here has heard of it.

use std::io::{ErrorKind, Result};
use std::pin::Pin;

use deadpool_postgres::Connect;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error, NoTls};

use crate::crash;

/// A function of `once` as it is called, and the name of the point at which to die.
pub type Point = (&'static str, &'static str);

/// More than a call of these services takes.
const ROOM: usize = 64 * 1024;
/// The server waits for the next call, and no transaction is open.
const READY: &[u8] = b"Z\0\0\0\x05I";
const ROW: u8 = b'D';

#[derive(Clone, Copy)]
pub struct Mortal {
    pub before: &'static [Point],
    /// Not where the call answered with no rows: then nothing has happened.
    pub after: &'static [Point],
}

type Connected<'a> =
    dyn Future<Output = std::result::Result<(Client, JoinHandle<()>), Error>> + Send + 'a;

impl Connect for Mortal {
    fn connect(&self, config: &Config) -> Pin<Box<Connected<'_>>> {
        let config = config.clone();
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(ROOM);
            tokio::spawn(self.carry(far, config.clone()));
            let (client, connection) = config.connect_raw(near, NoTls).await?;
            Ok((client, tokio::spawn(async { drop(connection.await) })))
        })
    }
}

impl Mortal {
    /// Carries calls to the server and answers back until one side ends; dropping both tells both.
    async fn carry(self, mut client: DuplexStream, config: Config) -> Result<()> {
        let mut server = connect(&config).await?;
        let (mut up, mut down) = (vec![0; ROOM], vec![0; ROOM]);
        let (mut call, mut answer) = (vec![], vec![]);
        loop {
            tokio::select! {
                length = client.read(&mut up) => {
                    call = up.get(..length?).unwrap_or_default().to_vec();
                    if call.is_empty() {
                        return Ok(());
                    }
                    answer.clear();
                    die(self.before, &call);
                    server.write_all(&call).await?;
                }
                length = server.read(&mut down) => {
                    let chunk = down.get(..length?).unwrap_or_default();
                    if chunk.is_empty() {
                        return Ok(());
                    }
                    answer.extend_from_slice(chunk);
                    if answer.ends_with(READY) && has_row(&answer) {
                        die(self.after, &call);
                    }
                    client.write_all(chunk).await?;
                }
            }
        }
    }
}

async fn connect(config: &Config) -> Result<TcpStream> {
    let (Some(Host::Tcp(host)), Some(port)) =
        (config.get_hosts().first(), config.get_ports().first())
    else {
        return Err(ErrorKind::Unsupported.into());
    };
    let server = TcpStream::connect((host.as_str(), *port)).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

fn die(points: &[Point], call: &[u8]) {
    let call = String::from_utf8_lossy(call);
    let here = points
        .iter()
        .filter(|(function, _)| call.contains(function));
    here.for_each(|(_, point)| crash::point(point));
}

/// Whether one of the server's messages is a row: each begins with its kind and its length.
fn has_row(mut answer: &[u8]) -> bool {
    while let [kind, a, b, c, d, ..] = *answer {
        if kind == ROW {
            return true;
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        answer = answer.get(1 + length..).unwrap_or_default();
    }
    false
}
