//! The harness itself, on a real server without our extension: if these fail, no other result of
//! the end-to-end tests can be trusted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test fails"
)]

use std::process::{Command, Stdio};

use pg_once_tests::{Cluster, Lsn, PoolMode, StopMode, race};

/// What the child of the `kill -9` test is told by.
const CHILD: &str = "PG_ONCE_HARNESS_CHILD";

fn alive(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok()
}

#[tokio::test]
async fn a_killed_cluster_starts_again_with_what_was_committed() {
    let mut cluster = Cluster::launch().unwrap();
    let client = cluster.connect("postgres").await.unwrap();
    client
        .batch_execute("create table t (id int); insert into t values (7)")
        .await
        .unwrap();
    let port = cluster.port();
    let before = cluster.processes();
    assert!(
        before.len() > 3,
        "postmaster, backend and helpers: {before:?}"
    );

    cluster.kill_9().unwrap();
    assert!(
        !before.iter().any(|pid| alive(*pid)),
        "somebody outlived kill_9"
    );
    assert!(client.query("select 1", &[]).await.is_err());

    cluster.start().unwrap();
    assert_eq!(cluster.port(), port);
    assert_eq!(cluster.psql("postgres", "select id from t").unwrap(), "7");
    cluster.restart().unwrap();
    cluster.stop(StopMode::Immediate).unwrap();
    assert!(!cluster.is_running());
    cluster.start().unwrap();
    assert_eq!(cluster.psql("postgres", "select id from t").unwrap(), "7");
}

/// The server's segment of shared memory, of which a machine has a few thousand in all.
fn segment_of(cluster: &Cluster) -> String {
    let pid_file = cluster.data_directory().join("postmaster.pid");
    let lines = std::fs::read_to_string(pid_file).unwrap();
    let key_and_id = lines.lines().nth(6).unwrap();
    key_and_id.split_whitespace().nth(1).unwrap().to_owned()
}

fn is_there(segment: &str) -> bool {
    let all = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let ids = all.lines().map(|line| line.split_whitespace().nth(1));
    ids.flatten().any(|id| id == segment)
}

#[tokio::test]
async fn a_dropped_cluster_leaves_nothing_behind() {
    let cluster = Cluster::launch().unwrap();
    let directory = cluster.directory().to_owned();
    let (processes, segment) = (cluster.processes(), segment_of(&cluster));
    assert!(is_there(&segment));
    drop(cluster);
    assert!(!directory.exists());
    assert!(!processes.iter().any(|pid| alive(*pid)));
    assert!(!is_there(&segment));
}

/// Where the first state is copied, too; what is restored or upgraded tells clusters by it.
#[test]
fn each_cluster_has_an_identity_of_its_own() {
    let mut seen = Vec::new();
    for cluster in [(); 3].map(|()| Cluster::launch().unwrap()) {
        let identity = "select system_identifier from pg_control_system()";
        seen.push(cluster.psql("postgres", identity).unwrap());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

/// One that is gone already cannot give its shared memory back.
#[tokio::test]
async fn a_cluster_that_is_dropped_after_it_was_killed_leaves_no_segment_behind() {
    let mut cluster = Cluster::launch().unwrap();
    let segment = segment_of(&cluster);
    cluster.kill_9().unwrap();
    assert!(is_there(&segment));
    drop(cluster);
    assert!(!is_there(&segment));
}

/// Runs only as the child of the next test: starts a cluster, says so, and waits to be killed.
#[test]
fn child_that_gets_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let cluster = Cluster::launch().unwrap();
    println!(
        "\ncluster {} {} {:?}",
        cluster.directory().display(),
        segment_of(&cluster),
        cluster.processes()
    );
    loop {
        std::thread::park();
    }
}

#[test]
fn a_program_killed_with_sigkill_leaves_no_server_behind() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_gets_killed", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("cluster "))
        .expect("the child reports its cluster");
    let mut words = line.splitn(4, ' ').skip(1);
    let directory = std::path::PathBuf::from(words.next().unwrap());
    let segment = words.next().unwrap().to_owned();
    let pids: Vec<i32> = words
        .next()
        .unwrap()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    assert!(directory.exists() && pids.iter().all(|pid| alive(*pid)));

    child.kill().unwrap();
    child.wait().unwrap();
    let begin = std::time::Instant::now();
    while directory.exists() || pids.iter().any(|pid| alive(*pid)) {
        assert!(
            begin.elapsed().as_secs() < 20,
            "the leash did not clean {}",
            directory.display()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!is_there(&segment));
}

#[tokio::test]
async fn a_lock_wait_is_seen_and_ends_when_the_holder_lets_go() {
    let cluster = Cluster::launch().unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    admin
        .batch_execute("create table t (id int); insert into t values (1)")
        .await
        .unwrap();
    let mut holder = cluster.connect("postgres").await.unwrap();
    let waiter = cluster.connect("postgres").await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.execute("update t set id = 2", &[]).await.unwrap();

    let pid = race::backend_pid(&waiter).await.unwrap();
    let waiting = tokio::spawn(async move { waiter.execute("update t set id = 3", &[]).await });
    race::wait_until_waiting(&admin, pid).await.unwrap();
    assert!(!waiting.is_finished());
    held.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn reads_are_told_from_writes_and_codes_are_read() {
    // Nothing in the background may write while this test looks at the log's position.
    let cluster = Cluster::builder()
        .setting("autovacuum", "off")
        .launch()
        .unwrap();
    let mut client = cluster.connect("postgres").await.unwrap();
    client
        .batch_execute("create table t (id int primary key)")
        .await
        .unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.query("select * from t", &[]).await.unwrap();
    assert!(race::xid_unassigned(&transaction).await.unwrap());
    transaction
        .execute("insert into t values (1)", &[])
        .await
        .unwrap();
    assert!(!race::xid_unassigned(&transaction).await.unwrap());
    transaction.commit().await.unwrap();

    let before = Lsn::inserted(&client).await.unwrap();
    let twice = client.execute("insert into t values (1)", &[]).await;
    assert_eq!(race::sqlstate(&twice), "23505");
    assert_eq!(race::sqlstate(&client.execute("select 1", &[]).await), "");
    assert!(Lsn::inserted(&client).await.unwrap().bytes_since(before) > 0);
}

#[tokio::test]
async fn a_standby_follows_refuses_writes_and_can_take_over() {
    let cluster = Cluster::launch().unwrap();
    let client = cluster.connect("postgres").await.unwrap();
    let standby = cluster.standby().unwrap();
    client
        .batch_execute("set synchronous_commit = off; create table t as select 1 as id")
        .await
        .unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    let there = standby.connect("postgres").await.unwrap();
    let id: i32 = there
        .query_one("select id from t", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(id, 1);
    assert_eq!(
        race::sqlstate(&there.execute("insert into t values (2)", &[]).await),
        "25006"
    );
    drop(cluster);
    standby.promote().await.unwrap();
    assert_eq!(
        there
            .execute("insert into t values (2)", &[])
            .await
            .unwrap(),
        1
    );
}

#[tokio::test]
async fn dump_and_restore_run_with_the_servers_own_programs() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .psql("postgres", "create table t as select 'it''s' as word")
        .unwrap();
    cluster.psql("postgres", "create database copy").unwrap();
    cluster
        .run("pg_dump", &["-d", "postgres", "-Fc", "-f", "dump"])
        .unwrap();
    cluster
        .run("pg_restore", &["-d", "copy", "--exit-on-error", "dump"])
        .unwrap();
    assert_eq!(cluster.psql("copy", "select word from t").unwrap(), "it's");
    let error = cluster
        .psql("copy", "select * from nowhere")
        .unwrap_err()
        .to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_shares_one_server_connection() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .psql("postgres", "create role teller login")
        .unwrap();
    let pooler = match cluster.pgbouncer(PoolMode::Transaction, 1, &["teller"]) {
        Ok(pooler) => pooler,
        // Where nobody promised a complete machine, this part is left out, and says so.
        Err(error) if std::env::var_os("CI").is_none() && error.to_string().contains("apt-get") => {
            eprintln!("NOT TESTED: {error}");
            return;
        }
        Err(error) => panic!("{error:?}"),
    };
    let mut pids = Vec::new();
    for _ in 0..2 {
        let client = pooler.connect("postgres").await.unwrap();
        let answer = client
            .simple_query("select pg_backend_pid()")
            .await
            .unwrap();
        let pid = answer.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        pids.push(pid.unwrap());
    }
    assert_eq!(pids[0], pids[1]);
    assert!(pooler.url_as("teller", "postgres").contains("teller@"));
}
