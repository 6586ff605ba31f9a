//! pg_upgrade from PostgreSQL 15 to the server under test, by copying and by links, of a database with everything
//! at once: the new cluster has another identity, the same transaction ids and the same role numbers.
//!
//! PG_ONCE_OLD_PG_CONFIG names the old server's pg_config (`make test` sets it); without it both are of one version.

use std::path::PathBuf;

use pg_once_tests::{Builder, Cluster, Programs};

use crate::incarnation::{NAMES, rename_team};
use crate::{DATABASE, content, janitor, on, with_everything};

/// Late minor releases of the old branches mark each column with an attribute option (catalog/README.attver.md)
/// that an 18 built before them neither leaves out of its dump nor takes; one plain table is enough to see it.
const UNMARK: &str =
    "update pg_attribute set attoptions = null where attoptions::text like '%pg\\_attver%'";

/// The old server: an older one, or the same, which pg_upgrade takes too.
fn old_programs() -> Programs {
    let path = std::env::var_os("PG_ONCE_OLD_PG_CONFIG");
    match path.map(PathBuf::from) {
        Some(path) => Programs::of(&path).unwrap(),
        None => Programs::from_env().unwrap(),
    }
}

/// For the new cluster: newer servers count checksums by default, and pg_upgrade wants both alike.
fn unchecked(builder: Builder) -> Builder {
    match Programs::from_env().unwrap().version() {
        18.. => builder.initdb("--no-data-checksums"),
        _ => builder,
    }
}

async fn upgrade_by(mode: &[&str]) {
    let mut old = Cluster::builder()
        .programs(old_programs())
        .launch()
        .unwrap();
    let (play, tokens) = with_everything(&old).await;
    let before = content::stored(&play).await;
    play.show(UNMARK).await;
    drop(play);
    let mut new = unchecked(Cluster::builder()).launch().unwrap();
    new.upgrade_from(&mut old, mode).unwrap();
    let play = on(&new, DATABASE, "").await;
    assert_eq!(content::stored(&play).await, before);
    content::goes_on(&tokens, async |role: &str| on(&new, DATABASE, role).await).await;
}

#[tokio::test]
async fn what_a_renamed_role_owns_is_his_after_an_upgrade_and_not_of_the_next_of_that_name() {
    let mut old = Cluster::builder()
        .programs(old_programs())
        .launch()
        .unwrap();
    let (play, _) = with_everything(&old).await;
    play.show(UNMARK).await;
    rename_team(&play).await;
    play.show("select count(*) from once.sweep()").await;
    let names = play.show(NAMES).await;
    assert!(
        names.contains("scope crew") && names.contains("topic crew"),
        "{names}"
    );
    drop(play);
    let mut new = unchecked(Cluster::builder()).launch().unwrap();
    new.upgrade_from(&mut old, &[]).unwrap();
    let play = on(&new, DATABASE, "").await;
    assert_eq!(play.show(NAMES).await, names);
    play.show(
        "alter role team login; alter role guest login; grant usage on schema once to team, guest",
    )
    .await;
    play.show("select once.grant_role('team', 'use')").await;
    // The worker is a member of the crew.
    for (role, scope, answer) in [
        ("worker", "team", "in_progress"),
        ("team", "team", "42501"),
        ("team", "another", "claimed"),
        ("guest", "a third", "claimed"),
        ("stranger", "a third", "42501"),
    ] {
        let claim = format!("select outcome from once.key_claim('{scope}', 'k', '{{}}')");
        let claimed = on(&new, DATABASE, role).await.attempt(&claim).await;
        let claimed = claimed.unwrap_or_else(|refusal| refusal.code);
        assert_eq!(claimed, answer, "{role}: {scope}");
    }
}

#[tokio::test]
async fn an_upgrade_by_copying_goes_on_where_it_was() {
    upgrade_by(&[]).await;
}

#[tokio::test]
async fn an_upgrade_by_links_goes_on_where_it_was() {
    upgrade_by(&["--link"]).await;
}

/// Both servers begin with the library, and would serve databases that pg_upgrade drops and makes anew. Its log shows
/// what they start; the nap is so long that only a worker that begins sweeps.
fn with_workers() -> Builder {
    janitor::preloaded("served, postgres")
        .setting("once.janitor_naptime", "5min")
        .setting("log_min_messages", "debug1")
}

#[tokio::test]
async fn an_upgrade_of_preloading_servers_starts_no_worker_until_it_is_over() {
    let mut old = with_workers().programs(old_programs()).launch().unwrap();
    let client = old.create_database_with_extension("served").await.unwrap();
    janitor::show(&client, janitor::JOBS).await;
    janitor::show(&client, UNMARK).await;
    // As soon as the launcher has looked at the databases anew, which it does when its settings are read again. A look
    // may come before the server has counted this session's commits: then again.
    let passed = "select bool_and(last_end is not null) or pg_reload_conf() is null
                    from once.janitor_status() where machine is null";
    janitor::until(&client, passed, "t").await;
    // Overdue from now on, whoever looks.
    janitor::claim(&client, 1, 100, "1 us").await;
    let status = "select distinct status from job";
    assert_eq!(janitor::show(&client, status).await, "running");
    drop(client);

    let mut new = unchecked(with_workers()).launch().unwrap();
    let said = new.upgrade_from(&mut old, &[]).unwrap();
    let starts = |name: &str| {
        let start = |line: &&str| line.contains("background worker") && line.contains(name);
        said.lines().filter(start).count()
    };
    // The old server's own one is there in this mode, too: the log does tell.
    assert!(starts("logical replication launcher") > 0, "{said}");
    assert_eq!(starts("pg_once"), 0, "{said}");

    let client = new.connect("served").await.unwrap();
    janitor::until(&client, status, "ready").await;
    let noted = "select done, failed, served_by from once.janitor_status() where machine = 'job'";
    let expected = format!("100|0|{}", janitor::WORKER);
    janitor::until(&client, noted, &expected).await;
    assert!(
        janitor::logged(&new, "pg_once launcher") > 0,
        "the log would not have told"
    );
}
