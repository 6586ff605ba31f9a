//! A database on a small disk that runs full under the fuzz. Its tables and indexes are on it and the server's log is
//! not: a PostgreSQL that cannot write its log stops, whatever extensions it has.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::{geteuid, mkdtemp};
use pg_once_tests::{OsUser, is_long, pages};
use tokio::time::sleep;

use crate::fuzz::Fuzz;
use crate::janitor::until;
use crate::victim::Chance;
use crate::{DATABASE, assert_alive, end, start};

const FULL: &str = "53100";
/// Too many prepared transactions: nobody ends them while the disk is full.
const TOO_MANY: &str = "53200";

/// How long a full disk may go unnoticed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tmpfs that is gone with us, however we went: a shell waits for the end of its input.
struct SmallDisk {
    directory: PathBuf,
    shell: Child,
}

impl SmallDisk {
    /// None: this machine does not let us mount one.
    fn mount(megabytes: u32) -> Option<SmallDisk> {
        if !geteuid().is_root() {
            return None;
        }
        let directory = mkdtemp("/tmp/pgo.disk.XXXXXX").unwrap();
        let shell = Command::new("/bin/sh")
            .args([
                "-c",
                "cat >/dev/null; umount -l \"$1\" 2>/dev/null; rmdir \"$1\"",
                "disk",
            ])
            .arg(&directory)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let disk = SmallDisk { directory, shell };
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "small"])
            .arg(&disk.directory);
        if !mount.status().is_ok_and(|status| status.success()) {
            return None;
        }
        OsUser::for_servers().unwrap().own(&disk.directory).unwrap();
        Some(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Writes to a file beside the tables until nothing goes in any more.
fn fill(filler: &mut File) {
    let mut bytes = 1 << 20;
    while bytes > 0 {
        match filler.write(&vec![b'x'; bytes]) {
            Ok(written) if written > 0 => {}
            _ => bytes /= 2,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "make test-long ARGS=faults"]
async fn a_disk_that_runs_full_costs_only_what_is_refused_meanwhile() {
    let Some(disk) = SmallDisk::mount(64) else {
        eprintln!("NOT TESTED: a full disk needs root, who may mount a tmpfs");
        return;
    };
    let cluster = crate::builder().launch().unwrap();
    let admin = cluster.connect("postgres").await.unwrap();
    let location = disk.directory.display();
    admin
        .batch_execute(&format!("create tablespace small location '{location}'"))
        .await
        .unwrap();
    admin
        .batch_execute(&format!("create database {DATABASE} tablespace small"))
        .await
        .unwrap();
    let client = cluster.connect(DATABASE).await.unwrap();
    client
        .batch_execute("create extension pg_once")
        .await
        .unwrap();
    let has_modules = pages::install(&client).await.unwrap();
    let fuzz = Arc::new(Fuzz::prepare(cluster.url(DATABASE)).await);
    let mut chance = Chance::new();
    let seed = chance.seed;
    let rounds = if is_long() { 20 } else { 1 };
    println!("a full disk: {rounds} times, seed {seed}");
    let tasks = start(&fuzz, &chance);
    for round in 1..=rounds {
        fuzz.allow(&[TOO_MANY]);
        sleep(Duration::from_secs(1)).await;
        println!("room, {round}: {}", fuzz.progress());
        fuzz.allow(&[FULL, TOO_MANY]);
        let path = disk.directory.join("filler");
        let mut filler = File::create(&path).unwrap();
        // Again and again: a vacuum finds some room.
        let begin = Instant::now();
        while fuzz.seen(FULL) < 5 {
            fill(&mut filler);
            sleep(Duration::from_millis(200)).await;
            assert_alive(&tasks, seed);
            assert!(begin.elapsed() < PATIENCE, "nobody meets the full disk");
        }
        println!("full, {round}: {}", fuzz.progress());
        std::fs::remove_file(&path).unwrap();
        drop(filler);
        // What was refused is on its way to its caller.
        sleep(Duration::from_millis(300)).await;
        // Nobody else ends them, and there is a most.
        crate::disturb::end_all_prepared(&client, &mut chance).await;
    }
    fuzz.allow(&[TOO_MANY]);
    sleep(Duration::from_secs(1)).await;
    assert_alive(&tasks, seed);
    fuzz.close();
    for task in tasks {
        task.await.unwrap();
    }
    crate::disturb::end_all_prepared(&client, &mut chance).await;
    end::drain(&client).await;
    // The sweeps have gone on, too: none of them still fails.
    until(
        &client,
        "select count(*) from once.doctor() where problem like 'the sweep task%'",
        "0",
    )
    .await;
    end::assert_whole(&client).await;
    if has_modules {
        pages::check(&client).await.unwrap();
    }
    end::assert_logs_are_clean(cluster.directory());
}
