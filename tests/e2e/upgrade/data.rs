//! What was stored before the update is there after it, and everybody goes on where he was; and so in dumps, one of the
//! old version that is restored into the next one, and one of an upgraded database.

use std::cell::RefCell;
use std::process::Stdio;

use crate::content::{self, Tokens};
use crate::next::{fresh, old, update};
use crate::playground::{Playground, cluster};

/// A database with everything at once, half-way, in the present version.
async fn with_everything() -> (Playground, Tokens) {
    let play = old().await;
    for role in content::ROLES.split(';') {
        let name = role.trim().trim_start_matches("create role ");
        play.ensure_role(name).await;
    }
    play.show(content::JOBS).await;
    let tokens = content::a_working_day(&play).await;
    (play, tokens)
}

/// These rows with the column that the update adds.
fn grown(stored: &str) -> String {
    let grown = |line: &str| match line.strip_prefix("scope ") {
        Some(row) => format!("scope {},)", row.trim_end_matches(')')),
        None => line.to_owned(),
    };
    stored.lines().map(grown).collect::<Vec<_>>().join("\n")
}

/// Restores a dump of the database `from` into a new one of the same cluster that has the next version.
async fn dump_and_restore(from: &Playground) -> Playground {
    let to = fresh().await;
    let mut dump = cluster()
        .command("pg_dump")
        .args(["-d", &from.database.name])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let restored = cluster()
        .command("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &to.database.name])
        // The extension is there already.
        .env("PGOPTIONS", "-c client_min_messages=warning")
        .stdin(dump.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(dump.wait().unwrap().success());
    let complaints = String::from_utf8_lossy(&restored.stderr);
    assert!(
        restored.status.success() && complaints.is_empty(),
        "{complaints}"
    );
    to
}

#[tokio::test]
async fn what_was_stored_goes_on_after_the_update_in_old_and_new_sessions() {
    let (play, tokens) = with_everything().await;
    let before = content::stored(&play).await;
    update(&play).await;
    assert_eq!(content::stored(&play).await, grown(&before));
    // The session that did all that goes on; the others are new.
    let (other, play) = (play.another().await, RefCell::new(Some(play)));
    content::goes_on(&tokens, async |role: &str| match role {
        "" => play.take().unwrap(),
        role => other.another_as(role).await,
    })
    .await;
}

#[tokio::test]
async fn a_dump_of_the_old_version_is_restored_into_the_next_one() {
    let (play, tokens) = with_everything().await;
    let before = content::stored(&play).await;
    let restored = dump_and_restore(&play).await;
    assert_eq!(content::stored(&restored).await, grown(&before));
    content::goes_on(&tokens, async |role: &str| match role {
        "" => restored.another().await,
        role => restored.another_as(role).await,
    })
    .await;
}

#[tokio::test]
async fn a_dump_of_an_upgraded_database_keeps_what_the_update_granted() {
    let play = old().await;
    play.ensure_role("upgrade_kept login").await;
    play.show("select once.grant_role('upgrade_kept', 'use')")
        .await;
    update(&play).await;
    play.ensure_role("upgrade_later login").await;
    play.show(
        "select once.grant_role('upgrade_later', 'use'); update once.scope set remark = 'kept'",
    )
    .await;
    let rights = "select p.oid::regprocedure::text, r.rolname from pg_proc p, pg_roles r
                   where p.pronamespace = 'once'::regnamespace and r.rolname in ('upgrade_kept', 'upgrade_later')
                     and has_function_privilege(r.oid, p.oid, 'execute') order by 1, 2";
    let before = play.show(rights).await;
    let granted = "once.key_next(text,text,text)|upgrade_kept";
    assert!(before.contains(granted), "{before}");
    let restored = dump_and_restore(&play).await;
    assert_eq!(restored.show(rights).await, before);
    for role in ["upgrade_kept", "upgrade_later"] {
        let session = restored.another_as(role).await;
        session.show("select once.key_next('s', 'k', 'x')").await;
    }
}
