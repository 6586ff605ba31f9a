//! Servers as people add them by hand: `hash % servers`, rows copied, and a configuration that reaches one instance of
//! the service after the other.
//!
//! It is the measuring stick, so it is careful: rows are copied before the first instance looks for them, and once more
//! after the last one, so that no order is lost. A server is a database here.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;

use super::case::{Lanes, PATIENCE, Servers};
use super::database::found;
use crate::database::{SERVICE_ROLE, create};
use crate::ground::Ground;
use crate::modulo::server_of;
use crate::orders::bank_process::Bank;
use crate::orders::database::ORDERS;
use crate::supervisor::Program;

const SERVERS: usize = 3;
/// Between two instances, as a rolling deployment waits.
const NEXT_INSTANCE: Duration = Duration::from_secs(1);

const ROWS: &str = "select customer, to_json(o)::text from orders o";
const INSERT: &str = "\
insert into orders select * from json_populate_record(null::orders, $1::text::json) on conflict do nothing";

pub struct ByHand {
    servers: Vec<Client>,
    /// Where each instance reads how many servers there are.
    configurations: Vec<PathBuf>,
    urls: Vec<String>,
}

impl ByHand {
    pub async fn build(ground: &Ground<'_>, name: &str) -> Result<Self> {
        let (mut servers, mut urls) = (Vec::new(), Vec::new());
        for number in 1..=SERVERS {
            let database = format!("{name}_{number}");
            let server = create(ground.cluster, &database, false).await?;
            server.batch_execute(ORDERS).await?;
            servers.push(server);
            urls.push(ground.cluster.url_as(SERVICE_ROLE, &database));
        }
        let files = 1..=ground.settings.services;
        let file = |instance| ground.work.join(format!("{name}.{instance}.servers"));
        let configurations: Vec<PathBuf> = files.map(file).collect();
        let by_hand = Self {
            servers,
            configurations,
            urls,
        };
        for file in &by_hand.configurations {
            configure(file, 1)?;
        }
        Ok(by_hand)
    }

    /// Copies every row that has another home among this number of servers and is not there yet.
    async fn copy_rows(&self, servers: usize) -> Result<()> {
        for (at, from) in self.servers.iter().enumerate().take(servers) {
            for row in from.query(ROWS, &[]).await? {
                let home = server_of(row.get(0), servers);
                if let Some(to) = self.servers.get(home).filter(|_| home != at) {
                    to.execute(INSERT, &[&row.get::<_, &str>(1)]).await?;
                }
            }
        }
        Ok(())
    }
}

/// In one step: an instance reads the old file or the new one.
fn configure(file: &PathBuf, servers: usize) -> Result<()> {
    let coming = file.with_extension("coming");
    std::fs::write(&coming, servers.to_string())?;
    std::fs::rename(&coming, file)?;
    Ok(())
}

impl Servers for ByHand {
    const SHARDS: usize = 1;
    const LANES: &[&'static str] = &[
        "server 1",
        "server 2",
        "server 3",
        "1 becomes 2",
        "2 become 3",
    ];

    fn programs(&self, ground: &Ground<'_>, bank: &Bank) -> Result<Vec<(String, Program)>> {
        let of = |(at, file): (usize, &PathBuf)| {
            let urls = self.urls.iter().map(|url| format!("--database-url={url}"));
            let mut arguments: Vec<String> = urls.collect();
            arguments.push(format!("--servers={}", file.display()));
            arguments.push(format!("--bank-url={}", bank.url()));
            arguments.push(PATIENCE.to_owned());
            let program = Program {
                path: ground.paths.naive.clone(),
                arguments,
                directory: ground.work.to_owned(),
            };
            (format!("service {}", at + 1), program)
        };
        Ok(self.configurations.iter().enumerate().map(of).collect())
    }

    async fn grow(self, lanes: Lanes, window: Duration) -> Result<Self> {
        lanes.up(0);
        for servers in 2..=SERVERS {
            tokio::time::sleep(window / 6).await;
            let change = SERVERS + servers - 2;
            lanes.up(change);
            self.copy_rows(servers).await?;
            lanes.up(servers - 1);
            for file in &self.configurations {
                configure(file, servers)?;
                tokio::time::sleep(NEXT_INSTANCE).await;
            }
            self.copy_rows(servers).await?;
            lanes.ended(change);
        }
        Ok(self)
    }

    async fn collect(&self, owner: &Client, _keys: &[String]) -> Result<()> {
        for (number, server) in (1..).zip(&self.servers) {
            found(owner, number, server).await?;
        }
        Ok(())
    }
}
