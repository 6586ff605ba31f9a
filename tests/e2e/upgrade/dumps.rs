//! Dumps around an upgrade: one of 0.1.0 is restored into a server that has only the present version, and one of
//! an upgraded database brings back its data and every right, those that the update gave included.

use std::process::Stdio;

use crate::catalog::rows_except;
use crate::playground::{Playground, cluster};
use crate::released::{create_old, empty, old, update, version};
use crate::tour::tour;

/// Dumps the database of `from` and restores it into a new, empty one of the same cluster.
async fn dump_and_restore(from: &Playground) -> Playground {
    let to = empty().await;
    let mut dump = cluster()
        .command("pg_dump")
        .args(["-d", &from.database.name])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let restored = cluster()
        .command("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &to.database.name])
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
async fn a_dump_of_the_old_version_is_restored_into_the_present_one() {
    let play = old().await;
    play.show(
        "create role upgrade_dumped login; select once.grant_role('upgrade_dumped', 'observe')",
    )
    .await;
    tour(&play, "before the dump").await;
    play.show("select once.key_claim('s', 'live', holder => 'h'); select * from once.sweep()")
        .await;
    // Those that have more columns now.
    let grown = ["janitor", "batch"];
    let in_them = "select sum(done), sum(failed), count(*),
            (select string_agg((to_jsonb(b) - 'failures')::text, '; ' order by subscriber_id, token, lane) from once.batch b)
        from once.janitor";
    let (stored, swept) = (rows_except(&play, &grown).await, play.show(in_them).await);
    let restored = dump_and_restore(&play).await;
    assert_eq!(version(&restored).await, env!("CARGO_PKG_VERSION"));
    let new_tables = "select count(*) from once.role_function where kind = 'observe' and function_name = 'machine_check'";
    assert_eq!(restored.show(new_tables).await, "1");
    assert_eq!(restored.show(in_them).await, swept);
    // Tables that 0.1.0 did not have, and the functions of the kinds, are the present version's.
    let restored_now = rows_except(&restored, &grown).await;
    for table in stored
        .lines()
        .filter(|line| !line.starts_with("role_function: "))
    {
        assert!(restored_now.contains(table), "{table}\n{restored_now}");
    }
    let resumed = "select outcome from once.key_claim('s', 'live', holder => 'h')";
    assert_eq!(restored.show(resumed).await, "claimed");
    tour(&restored, "after the restore").await;
    let watcher = restored.another_as("upgrade_dumped").await;
    watcher.show("select * from once.machine_check()").await;
}

#[tokio::test]
async fn a_dump_of_an_upgraded_database_keeps_what_the_update_granted() {
    let play = empty().await;
    create_old(&play).await;
    play.show("create role upgrade_kept login; select once.grant_role('upgrade_kept', 'operate')")
        .await;
    update(&play).await;
    play.show(
        "create role upgrade_later login; select once.grant_role('upgrade_later', 'operate')",
    )
    .await;
    let rights = "select p.oid::regprocedure::text, r.rolname from pg_proc p, pg_roles r
                   where p.pronamespace = 'once'::regnamespace and r.rolname in ('upgrade_kept', 'upgrade_later')
                     and has_function_privilege(r.oid, p.oid, 'execute') order by 1, 2";
    let before = play.show(rights).await;
    assert!(
        before.contains("once.sweep_all(integer)|upgrade_kept"),
        "{before}"
    );
    let restored = dump_and_restore(&play).await;
    assert_eq!(restored.show(rights).await, before);
    for role in ["upgrade_kept", "upgrade_later"] {
        let session = restored.another_as(role).await;
        session.show("select * from once.metrics()").await;
        session.show("call once.sweep_all()").await;
    }
}
