//! kill -9 of a handler, its backend and the server; dump and restore.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::{Cluster, race};

use crate::playground::{Playground, cluster};
use crate::waiting::Waiting;
use crate::{accept, barrier, record};

async fn shop(cluster: &Cluster) -> Playground {
    Playground::on(cluster, "shop").await
}

#[tokio::test]
async fn a_handler_whose_connection_is_gone_gives_its_message_to_who_waits() {
    let play = Playground::open().await;
    let (handler, other) = (play.another().await, play.another().await);
    handler.show("begin").await;
    handler.show(&accept("m")).await;
    handler.show(&record("m", "1")).await;
    let pid = race::backend_pid(&handler.client).await.unwrap();
    let waiting = Waiting::begin(&play, other, &accept("m")).await;
    play.show(&format!("select pg_terminate_backend({pid})"))
        .await;
    assert_eq!(waiting.end().await.1.unwrap(), "t|~");
}

#[tokio::test]
async fn a_handler_killed_with_sigkill_gives_its_message_to_who_waits() {
    let play = Playground::open().await;
    let other = play.another().await;
    let mut handler = cluster()
        .command("psql")
        .args(["-X", "-q", "-d", &play.database.name])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let handle = format!("begin; {}; {};\n", accept("m"), record("m", "1"));
    let mut input = handler.stdin.take().unwrap();
    input.write_all(handle.as_bytes()).unwrap();
    input.flush().unwrap();
    race::poll_async("the handler to be at work", async || {
        let at_work = play
            .show(
                "select count(*) from pg_stat_activity
                  where application_name = 'psql' and datname = current_database()
                    and state = 'idle in transaction' and query ~ 'inbox_record'",
            )
            .await;
        Ok((at_work == "1").then_some(()))
    })
    .await
    .unwrap();
    let waiting = Waiting::begin(&play, other, &accept("m")).await;
    handler.kill().unwrap();
    handler.wait().unwrap();
    assert_eq!(waiting.end().await.1.unwrap(), "t|~");
}

#[tokio::test]
async fn after_kill_9_of_a_backend_or_the_server_only_committed_messages_are_duplicates() {
    let mut cluster = Cluster::builder().fsync(true).launch().unwrap();
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    for round in 0..4 {
        let play = shop(&cluster).await;
        let message = format!("committed{round}");
        play.show(&format!("begin; {}", accept(&message))).await;
        play.show(&format!("{}; commit", record(&message, "1")))
            .await;
        play.show(&barrier(&format!("acted{round}"), "action"))
            .await;
        let open = shop(&cluster).await;
        open.show("begin").await;
        open.show(&accept(&format!("open{round}"))).await;
        open.show(&barrier(&format!("open{round}"), "action")).await;
        if round % 2 == 0 {
            cluster.kill_9().unwrap();
            cluster.start().unwrap();
        } else {
            // A crash of one backend restarts all of them.
            let pid = race::backend_pid(&open.client).await.unwrap();
            let witness = cluster.connect("shop").await.unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            race::poll_async("the server to let clients in again", async || {
                // The old sessions end first; who comes before that is thrown out, too.
                let over = witness.is_closed() && cluster.connect("shop").await.is_ok();
                Ok(over.then_some(()))
            })
            .await
            .unwrap();
        }
        let play = shop(&cluster).await;
        for seen in 0..=round {
            assert_eq!(play.show(&accept(&format!("committed{seen}"))).await, "f|1");
            let acted = play.show(&barrier(&format!("acted{seen}"), "action")).await;
            assert_eq!(acted, "duplicate");
        }
        assert_eq!(play.show(&accept(&format!("open{round}"))).await, "t|~");
        let step = format!("open{round}");
        assert_eq!(play.show(&barrier(&step, "compensation")).await, "skipped");
    }
}
