//! pg_upgrade from PostgreSQL 15 to the server under test, by copying and by links, of a database with everything
//! at once: the new cluster has another identity, the same transaction ids and the same role numbers.
//!
//! PG_ONCE_OLD_PG_CONFIG names the old server's pg_config (`make test` sets it).

use std::path::PathBuf;

use pg_once_tests::{Cluster, Programs};

use crate::{DATABASE, content, on, with_everything};

/// Late minor releases of the old branches mark each column with an attribute option (catalog/README.attver.md)
/// that an 18 built before them neither leaves out of its dump nor takes; one plain table is enough to see it.
const UNMARK: &str =
    "update pg_attribute set attoptions = null where attoptions::text like '%pg\\_attver%'";

/// The old server; none where it is not older than the one under test, or nobody has named it.
fn old_programs() -> Option<Programs> {
    let new = Programs::from_env().unwrap();
    let Some(path) = std::env::var_os("PG_ONCE_OLD_PG_CONFIG") else {
        assert!(
            new.version() == 15 || std::env::var_os("CI").is_none(),
            "PG_ONCE_OLD_PG_CONFIG must name the old server's pg_config"
        );
        eprintln!("NOT TESTED: PG_ONCE_OLD_PG_CONFIG names no server to upgrade from");
        return None;
    };
    let old = Programs::of(&PathBuf::from(path)).unwrap();
    (old.version() < new.version()).then_some(old)
}

async fn upgrade_by(mode: &str) {
    let Some(programs) = old_programs() else {
        return;
    };
    let mut old = Cluster::builder().programs(programs).launch().unwrap();
    let (play, tokens) = with_everything(&old).await;
    let before = content::stored(&play).await;
    play.show(UNMARK).await;
    drop(play);
    // Newer servers count checksums by default, and pg_upgrade wants both alike.
    let mut builder = Cluster::builder();
    if Programs::from_env().unwrap().version() >= 18 {
        builder = builder.initdb("--no-data-checksums");
    }
    let mut new = builder.launch().unwrap();
    new.upgrade_from(&mut old, mode).unwrap();
    let play = on(&new, DATABASE, "").await;
    assert_eq!(content::stored(&play).await, before);
    content::goes_on(&tokens, async |role: &str| on(&new, DATABASE, role).await).await;
}

#[tokio::test]
async fn an_upgrade_by_copying_goes_on_where_it_was() {
    upgrade_by("--copy").await;
}

#[tokio::test]
async fn an_upgrade_by_links_goes_on_where_it_was() {
    upgrade_by("--link").await;
}
