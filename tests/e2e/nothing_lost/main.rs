//! Nothing that was committed is lost by a dump, a restore, an upgrade of the server, a failover or DROP EXTENSION;
//! and where the database is afterwards, everybody goes on where he was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod content;
mod dropped;
mod incarnation;
#[path = "../janitor/world.rs"]
mod janitor;
mod large;
#[path = "../load/mod.rs"]
mod load;
mod logical;
mod promotion;
mod published;
mod upgrade;

use pg_once_tests::{Cluster, playground};
use playground::Playground;

const DATABASE: &str = "shop";

/// A session of a role; of a superuser where the name is empty.
async fn on(cluster: &Cluster, database: &str, role: &str) -> Playground {
    let role = if role.is_empty() { "postgres" } else { role };
    Playground::on_as(cluster, role, database).await
}

/// Everything at once in a database of this cluster.
async fn with_everything(cluster: &Cluster) -> (Playground, content::Tokens) {
    cluster.psql("postgres", content::ROLES).unwrap();
    cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let play = on(cluster, DATABASE, "").await;
    play.show(content::JOBS).await;
    let tokens = content::a_working_day(&play).await;
    (play, tokens)
}
