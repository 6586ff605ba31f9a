//! The databases of the demo: one for each run, all in one private cluster.
//!
//! Invariant: the services connect as a role that may use `once` and write its own tables, and
//! nothing else; what the proof needs is loaded beside it by the owner, after the run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use futures_util::SinkExt;
use hyper::body::Bytes;
use pg_once_tests::Cluster;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_postgres::Client;

use crate::ground::Ground;
use crate::journal::{Attempt, Journal, What};
use crate::supervisor::Program;

/// The role of the services.
pub const SERVICE_ROLE: &str = "shop";
/// The role that sweeps and tears down.
pub const JANITOR_ROLE: &str = "janitor";

/// Every answer that a client got.
pub const SAW: &str = "\
create table saw (key text, client text, asked_cents bigint, sent_s float8, answered_s float8,
                  outcome text, status int, final boolean, body text);
create index on saw (key);";

/// Makes the roles that the services use in every database.
pub async fn create_roles(cluster: &Cluster) -> Result<()> {
    let admin = cluster.connect("postgres").await?;
    admin
        .batch_execute(&format!(
            "create role {SERVICE_ROLE} login; create role {JANITOR_ROLE} login"
        ))
        .await?;
    Ok(())
}

/// A database, with the extension and the rights to it if the service needs it.
pub async fn create(cluster: &Cluster, name: &str, extension: bool) -> Result<Client> {
    if extension {
        let client = cluster.create_database_with_extension(name).await?;
        for (role, kind) in [(SERVICE_ROLE, "use"), (JANITOR_ROLE, "operate")] {
            client
                .execute(
                    "select once.grant_role($1::text::regrole, $2)",
                    &[&role, &kind],
                )
                .await?;
        }
        return Ok(client);
    }
    let admin = cluster.connect("postgres").await?;
    admin
        .batch_execute(&format!("create database {name}"))
        .await?;
    cluster.connect(name).await
}

/// A process of the services whose effects leave the database, in a role of it; `outside` is where the
/// world outside listens.
pub fn effects_program(
    ground: &Ground<'_>,
    database: &str,
    user: &str,
    role: &str,
    how: &str,
    outside: &[SocketAddr],
) -> Program {
    let mut arguments = vec![
        format!("--database-url={}", ground.cluster.url_as(user, database)),
        format!("--role={role}"),
        format!("--how={how}"),
        format!("--lease-ms={}", ground.settings.lease_ms),
    ];
    arguments.extend(
        outside
            .first()
            .map(|at| format!("--outside-url=http://{at}")),
    );
    Program {
        path: ground.paths.effects.clone(),
        arguments,
        directory: ground.work.to_owned(),
    }
}

/// Loads the clients' journal into `saw`.
pub async fn load_saw(client: &Client, attempts: &[Attempt]) -> Result<()> {
    client.batch_execute(SAW).await?;
    let attempts = attempts.iter().map(|attempt| {
        [
            Some(attempt.key.clone()),
            Some(attempt.client.to_owned()),
            Some(attempt.asked_cents.to_string()),
            Some((attempt.sent_ms / 1000.0).to_string()),
            Some((attempt.answered_ms / 1000.0).to_string()),
            Some(attempt.outcome.name().to_owned()),
            attempt.status.map(|status| status.to_string()),
            Some(attempt.outcome.is_final().to_string()),
            attempt.body.clone(),
        ]
    });
    copy(client, "saw", attempts).await
}

/// COPY in CSV: unquoted and empty is NULL, everything else is quoted.
pub async fn copy<const N: usize>(
    client: &Client,
    table: &str,
    rows: impl Iterator<Item = [Option<String>; N]>,
) -> Result<()> {
    let mut text = String::new();
    for row in rows {
        for (at, field) in row.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            if let Some(field) = field {
                text.push('"');
                text.push_str(&field.replace('"', "\"\""));
                text.push('"');
            }
        }
        text.push('\n');
    }
    let sink = client
        .copy_in(&format!("copy {table} from stdin (format csv)"))
        .await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from(text)).await?;
    sink.finish().await?;
    Ok(())
}

const TERMINATE_ONE: &str = "\
select pg_terminate_backend(pid) from pg_stat_activity
where datname = $1 and usename = any (array['shop', 'janitor']) order by random() limit 1";

/// Terminates a random backend of the services, again and again.
pub async fn terminate_backends(
    cluster: &Cluster,
    database: &str,
    seed: u64,
    journal: &Journal,
) -> Result<()> {
    let admin = cluster.connect("postgres").await?;
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(400..1200))).await;
        if !admin.query(TERMINATE_ONE, &[&database]).await?.is_empty() {
            journal.event(What::BackendTerminated);
        }
    }
}
