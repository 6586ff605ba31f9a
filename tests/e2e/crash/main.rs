//! Crashes, backups and dumps: what was committed goes on where it was, and no token ever comes twice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dump;
mod strangers;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use pg_once_tests::{Cluster, StopMode, playground, race};
use playground::Playground;

async fn on(cluster: &Cluster, database: &str) -> Playground {
    Playground::on(cluster, database).await
}

async fn with_shop(cluster: &Cluster) -> Playground {
    cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    on(cluster, "shop").await
}

/// Claims so many keys one by one, each in its own transaction, and adds the tokens to `seen`.
async fn claim(play: &Playground, prefix: &str, count: usize, seen: &mut BTreeSet<i64>) {
    for i in 0..count {
        let token = play.token(&format!("{prefix}{i}"), "").await;
        assert!(seen.insert(token), "token {token} was handed out before");
    }
}

#[tokio::test]
async fn no_token_comes_twice_after_kill_9_with_asynchronous_commit() {
    let mut cluster = Cluster::builder()
        .setting("synchronous_commit", "off")
        .setting("wal_writer_delay", "10s")
        .launch()
        .unwrap();
    let play = with_shop(&cluster).await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": null}')"#)
        .await;
    play.show("checkpoint").await;
    drop(play);
    let (mut seen, mut lost) = (BTreeSet::new(), 0);
    for round in 0..20 {
        let play = on(&cluster, "shop").await;
        for key in 0..40 {
            let claim = format!(
                "select outcome, token from once.key_claim('s', 'k{key}', lease => '1 microsecond')"
            );
            let shown = play.show(&claim).await;
            let (outcome, token) = shown.split_once('|').unwrap();
            assert!(
                seen.insert(token.parse::<i64>().unwrap()),
                "token {token} came before"
            );
            lost += usize::from(outcome == "claimed" && round > 0);
        }
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
        if round >= 2 && lost > 0 {
            return;
        }
    }
    panic!("no commit was lost, so nothing was tested");
}

#[tokio::test]
async fn a_superseded_holder_from_before_a_crash_cannot_write_to_the_claim_after_it() {
    let mut cluster = Cluster::builder()
        .setting("synchronous_commit", "off")
        .setting("wal_writer_delay", "10s")
        .launch()
        .unwrap();
    let play = with_shop(&cluster).await;
    play.show("set synchronous_commit = on; create table fence (id int)")
        .await;
    drop(play);
    let mut vanished = 0;
    for round in 0..20 {
        let play = on(&cluster, "shop").await;
        let key = format!("k{round}");
        let before = play.token(&key, "").await;
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
        let play = on(&cluster, "shop").await;
        if play.claim(&key, "").await == "in_progress" {
            continue;
        }
        // The commit was lost and the key claimed anew: the old token is worth nothing.
        vanished += 1;
        for call in [
            "key_complete('s', K, 200)",
            "key_extend('s', K)",
            "key_step('s', K, 'pay')",
        ] {
            let sql = format!(
                "select once.{}",
                call.replace("K", &format!("'{key}', {before}"))
            );
            assert_eq!(play.code(&sql).await, "ON001");
        }
        if vanished == 3 {
            return;
        }
    }
    panic!("no commit was lost, so nothing was tested");
}

#[tokio::test]
async fn synchronously_committed_answers_survive_kill_9() {
    let mut cluster = Cluster::builder().fsync(true).launch().unwrap();
    let play = with_shop(&cluster).await;
    let mut held = Vec::new();
    for round in 0..3 {
        let play = on(&cluster, "shop").await;
        for i in 0..20 {
            let key = format!("k{round}-{i}");
            let token = play.token(&key, ", '1'").await;
            if i % 2 == 0 {
                play.show(&format!(
                    "select once.key_complete('s', '{key}', {token}, {i}, '\"{key}\"')"
                ))
                .await;
            } else {
                play.show(&format!(
                    "select once.key_advance('s', '{key}', {token}, 'paid', '{i}')"
                ))
                .await;
                play.show(&format!(
                    "select once.key_step('s', '{key}', {token}, 'ship')"
                ))
                .await;
                held.push((key, token));
            }
        }
        cluster.kill_9().unwrap();
        cluster.start().unwrap();
    }
    drop(play);
    let play = on(&cluster, "shop").await;
    for round in 0..3 {
        for i in (0..20).step_by(2) {
            let key = format!("k{round}-{i}");
            let shown = play
                .show(&format!(
                    "select outcome, response_code, response_body from once.key_claim('s', '{key}', '1')"
                ))
                .await;
            assert_eq!(shown, format!("replayed|{i}|\"{key}\""));
        }
    }
    for (key, token) in held {
        let sql = format!("select attempted from once.key_step('s', '{key}', {token}, 'ship')");
        assert_eq!(play.show(&sql).await, "0");
        play.show(&format!(
            "select once.key_complete('s', '{key}', {token}, 200)"
        ))
        .await;
    }
}

/// Copies a stopped cluster's files, owners and all.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(done.success());
}

#[tokio::test]
async fn no_token_from_after_a_backup_matches_one_from_after_its_restore() {
    let mut cluster = Cluster::launch().unwrap();
    let play = with_shop(&cluster).await;
    let mut seen = BTreeSet::new();
    let kept = play.token("kept", "").await;
    claim(&play, "before", 20, &mut seen).await;
    drop(play);
    cluster.stop(StopMode::Fast).unwrap();
    let (data, backup) = (cluster.data_directory(), cluster.directory().join("backup"));
    copy(&data, &backup);
    for round in 0..2 {
        cluster.start().unwrap();
        let play = on(&cluster, "shop").await;
        claim(&play, "after", 50, &mut seen).await;
        // A claim that the restore will forget; its holder lives on.
        let forgotten = play.token(&format!("other{round}"), "").await;
        drop(play);
        cluster.kill_9().unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&backup, &data);
        cluster.start().unwrap();
        let play = on(&cluster, "shop").await;
        assert!(seen.insert(play.token(&format!("other{round}"), "").await));
        let late = format!("select once.key_complete('s', 'other{round}', {forgotten}, 200)");
        assert_eq!(play.code(&late).await, "ON001");
        claim(&play, "after", 50, &mut seen).await;
        play.show(&format!("select once.key_extend('s', 'kept', {kept})"))
            .await;
        drop(play);
        cluster.kill_9().unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&backup, &data);
    }
}

#[tokio::test]
async fn a_killed_client_process_leaves_its_key_to_the_next() {
    let cluster = Cluster::launch().unwrap();
    let play = with_shop(&cluster).await;
    for (round, key) in ["new", "lost"].iter().enumerate() {
        if round == 1 {
            play.token(key, ", lease => '1 microsecond'").await;
        }
        let mut client = cluster
            .command("psql")
            .args(["-X", "-q", "-A", "-t", "-d", "shop"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let claim = format!("begin; select outcome from once.key_claim('s', '{key}');\n");
        client
            .stdin
            .as_mut()
            .unwrap()
            .write_all(claim.as_bytes())
            .unwrap();
        let mut outcome = String::new();
        BufReader::new(client.stdout.take().unwrap())
            .read_line(&mut outcome)
            .unwrap();
        assert_eq!(
            outcome.trim(),
            if round == 0 { "claimed" } else { "resumed" }
        );
        assert_eq!(play.claim(key, "").await, "in_progress");
        client.kill().unwrap();
        client.wait().unwrap();
        let free = race::poll_async("the key to be free", async || {
            let outcome = play.claim(key, "").await;
            Ok((outcome != "in_progress").then_some(outcome))
        });
        assert_eq!(free.await.unwrap(), outcome.trim());
    }
}

#[tokio::test]
async fn a_terminated_backend_and_a_killed_one_leave_the_key_to_the_next() {
    let cluster = Cluster::launch().unwrap();
    let play = with_shop(&cluster).await;
    let victim = on(&cluster, "shop").await;
    victim.show("begin").await;
    victim.token("k", "").await;
    let pid = race::backend_pid(&victim.client).await.unwrap();
    play.show(&format!("select pg_terminate_backend({pid}, 10000)"))
        .await;
    let free = race::poll_async("the key to be free", async || {
        Ok((play.claim("k", ", lease => '1 microsecond'").await == "claimed").then_some(()))
    });
    free.await.unwrap();

    let victim = on(&cluster, "shop").await;
    victim.show("begin").await;
    assert_eq!(victim.claim("k", "").await, "resumed");
    assert_eq!(play.claim("k", "").await, "in_progress");
    let pid = race::backend_pid(&victim.client).await.unwrap();
    let witness = cluster.connect("shop").await.unwrap();
    // A backend that dies so takes all others along; the postmaster then starts over by itself.
    let killed = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    race::poll_async("the server to come back", async || {
        let over = witness.is_closed() && cluster.connect("shop").await.is_ok();
        Ok(over.then_some(()))
    })
    .await
    .unwrap();
    let play = on(&cluster, "shop").await;
    assert_eq!(play.claim("k", "").await, "resumed");
}

#[tokio::test]
async fn a_prepared_transaction_holds_its_key_over_a_crash() {
    let mut cluster = Cluster::launch().unwrap();
    let play = with_shop(&cluster).await;
    play.show("begin").await;
    let token = play.token("k", "").await;
    play.show("prepare transaction 'p'").await;
    assert_eq!(play.claim("k", "").await, "in_progress");
    drop(play);
    cluster.kill_9().unwrap();
    cluster.start().unwrap();
    let play = on(&cluster, "shop").await;
    assert_eq!(play.claim("k", "").await, "in_progress");
    play.show("commit prepared 'p'").await;
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    assert_eq!(play.claim("k", "").await, "replayed");
}
