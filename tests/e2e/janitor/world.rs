//! A cluster of a test's own with the background worker, and what the tests ask of it.
//!
//! Sessions here go directly in any case: they look at the worker, which has no pooler either, and at its server's end.
#![allow(dead_code, reason = "each test binary uses its part")]

use pg_once_tests::race::{poll_async, wait_until_waiting};
use pg_once_tests::{Builder, Cluster};
use tokio_postgres::{Client, SimpleQueryMessage};

/// A machine with one claim state, over a table of a hundred jobs.
pub const JOBS: &str = r#"
create table job (id bigint primary key, status text not null default 'ready', version bigint not null default 0);
insert into job select g from generate_series(1, 100) as g;
select once.machine_define('{
  "machine": "job", "table": "job", "id": "id", "status": "status", "version": "version",
  "status_types": ["ready", "running", "done"], "terminal": ["done"], "transitions": [],
  "steps": [{"step_key": "run", "status": "ready", "claim_state": {"*": ["running", "ready"]},
             "successful_state": {"*": "done"}}]}')"#;

/// Who the worker says it is.
pub const WORKER: &str = "pg_once janitor";

/// A cluster whose launcher looks every 200 ms; `databases` as in the setting.
pub fn preloaded(databases: &str) -> Builder {
    Cluster::builder()
        .setting("shared_preload_libraries", "pg_once")
        .setting("once.janitor_databases", databases)
        .setting("once.janitor_naptime", "200ms")
}

pub fn launch(databases: &str) -> Cluster {
    preloaded(databases).launch().unwrap()
}

/// The rows of the last statement, one per line, columns joined by `|`, NULL as `~`.
pub async fn show(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await;
    let messages = messages.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    let mut lines = Vec::new();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let columns = (0..row.len()).map(|i| row.get(i).unwrap_or("~"));
                lines.push(columns.collect::<Vec<_>>().join("|"));
            }
            SimpleQueryMessage::RowDescription(_) => lines.clear(),
            _ => {}
        }
    }
    lines.join("\n")
}

/// Waits until a query shows this.
pub async fn until(client: &Client, sql: &str, wanted: &str) {
    let mut seen = String::new();
    let came = poll_async(sql, async || {
        seen = show(client, sql).await;
        Ok((seen == wanted).then_some(()))
    })
    .await;
    assert!(came.is_ok(), "{sql}: {seen}, not {wanted}");
}

/// The worker of a database in a lock wait, where it does not end by itself, as the worker of a pass before it does.
pub async fn worker(admin: &Client, database: &str) -> i32 {
    let sql = format!(
        "select pid from pg_stat_activity where backend_type = '{WORKER}' and datname = '{database}' and wait_event_type = 'Lock'"
    );
    let mut pid = None;
    poll_async(&format!("a worker in {database}"), async || {
        pid = show(admin, &sql).await.parse().ok();
        Ok(pid)
    })
    .await
    .unwrap()
}

/// A session that keeps the worker of its database in the middle of a pass, until its rollback. The worker must wait for
/// locks: [`PATIENT`].
pub async fn hold_a_worker(cluster: &Cluster, database: &str) -> (Client, i32) {
    let holder = cluster.connect(database).await.unwrap();
    let lock = "begin; lock table once.inbox in access exclusive mode";
    show(&holder, lock).await;
    // The holder itself would see the sessions as they were first, to the end of its transaction.
    let admin = cluster.connect(database).await.unwrap();
    show(&admin, WRITE).await;
    let pid = worker(&admin, database).await;
    wait_until_waiting(&admin, pid).await.unwrap();
    (holder, pid)
}

/// The setting with which [`hold_a_worker`] holds it.
pub const PATIENT: (&str, &str) = ("once.sweep_lock_timeout", "60s");

/// After it the database is due.
pub const WRITE: &str =
    "create temp table if not exists written (); insert into written default values";

/// The next pass has begun and ended after this call: the worker found nothing the matter.
pub async fn until_swept(client: &Client) {
    show(client, "update once.janitor set last_end = null").await;
    show(client, WRITE).await;
    let sql = "select bool_and(last_end is not null and served_by = 'pg_once janitor') from once.janitor_status()
                where machine is null";
    poll_async("a pass of the worker", async || {
        Ok((show(client, sql).await == "t").then_some(()))
    })
    .await
    .unwrap();
}

/// While another database has passes, this one has none.
pub async fn until_left_alone(client: &Client, other: &Client) {
    poll_async("passes of the other database alone", async || {
        show(client, "update once.janitor set last_end = null").await;
        until_swept(other).await;
        until_swept(other).await;
        let seen = show(client, "select count(last_end) from once.janitor").await;
        Ok((seen == "0").then_some(()))
    })
    .await
    .unwrap();
}

/// Lines of the server's log that say this; that the server takes autovacuum away from a table is no matter.
pub fn logged(cluster: &Cluster, what: &str) -> usize {
    let path = cluster.directory().join("server.log");
    let log = std::fs::read(path).unwrap();
    let log = String::from_utf8_lossy(&log);
    log.lines()
        .filter(|line| line.contains(what) && !line.contains("canceling autovacuum task"))
        .count()
}

/// Waits until the log says this.
pub async fn until_logged(cluster: &Cluster, what: &str) {
    poll_async(&format!("the log to say {what}"), async || {
        Ok((logged(cluster, what) > 0).then_some(()))
    })
    .await
    .unwrap();
}

/// Jobs that are claimed for so long, as of now.
pub async fn claim(client: &Client, first: i64, last: i64, lease: &str) {
    let sql = format!(
        "select count(*) filter (where outcome = 'claimed') from generate_series({first}, {last}) as g,
            lateral once.action_claim('job', g::text, 'run', lease => '{lease}')"
    );
    assert_eq!(show(client, &sql).await, (last - first + 1).to_string());
}
