//! metrics() and doctor(): the numbers are right, cost the same at any depth, and every problem is found while it
//! is there, and only then; what is wired to them (sql/monitoring/) works with the real programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backlog;
mod counters;
mod depth;
mod doctor;
mod doctor_machines;
mod doctor_past;
mod doctor_server;
mod files;
mod leases;
mod many;
mod monitoring;
mod over;
mod verify;

use std::sync::OnceLock;

use pg_once_tests::{Builder, Cluster, history, playground};
use playground::Playground;

/// A cluster whose server has loaded the library from the beginning.
fn preloaded() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let builder = Cluster::builder();
        builder
            .setting("shared_preload_libraries", "pg_once")
            .launch()
            .unwrap()
    })
}

/// A database of that cluster.
async fn counted(name: &str) -> Playground {
    preloaded()
        .create_database_with_extension(name)
        .await
        .unwrap();
    Playground::on(preloaded(), name).await
}

/// A cluster of a test's own, with a database.
async fn shop(builder: Builder) -> (Cluster, Playground) {
    let cluster = builder.launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "shop").await;
    (cluster, play)
}

/// One number; an empty text where there is no such row.
async fn value(play: &Playground, name: &str, labels: &str) -> String {
    play.show(&format!(
        "select value from once.metrics() where name = '{name}' and labels = '{labels}'"
    ))
    .await
}

/// Everything that is worse than good to know.
async fn problems(play: &Playground) -> String {
    play.show("select level, problem from once.doctor() where level <> 'info' order by 1, 2")
        .await
}

/// A machine over `orders`, with a row 1 in status new.
async fn orders(play: &Playground) {
    play.show(
        "create table orders (id int primary key, status text not null);
         insert into orders values (1, 'new');
         select once.machine_define('{\"machine\": \"orders\", \"table\": \"orders\", \"id\": \"id\", \"status\": \"status\",
             \"status_types\": [\"new\", \"paying\", \"paid\"],
             \"steps\": [{\"step_key\": \"pay\", \"status\": \"new\", \"claim_state\": {\"*\": [\"paying\", \"new\"]},
                        \"successful_state\": {\"*\": \"paid\"}}]}')",
    )
    .await;
}
