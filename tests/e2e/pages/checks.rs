//! Whether what lies on disk is sound, as the server's own modules see it.

use tokio_postgres::Client;

use crate::janitor::{show, until};

/// The tables of the extension and of its user, and those of their out-of-line values.
const TABLES: &str = "create view stored as
    select c.oid as id, c.oid::regclass as name from pg_class c
     where c.relkind in ('r', 't')
       and exists (select from pg_class o join pg_namespace n on n.oid = o.relnamespace
                    where n.nspname in ('once', 'public', 'fz') and c.oid in (o.oid, o.reltoastrelid))";

/// Each shows what is wrong with them: no row, where nothing is.
const FINDINGS: [&str; 3] = [
    "select name, f.* from stored, lateral verify_heapam(id, check_toast => true) f",
    "select name, f from stored, lateral pg_check_frozen(id) f",
    "select name, f from stored, lateral pg_check_visible(id) f",
];

/// Raises what is wrong with an index of them: that it is damaged, or lacks a row of its table.
const INDEXES: &str =
    "select count(bt_index_check(indexrelid, heapallindexed => true)) > 0 from stored, pg_index
    where indrelid = id and indisvalid";

/// Whether the modules of contrib that look at files could be installed.
pub async fn has_checkers(client: &Client) -> bool {
    let available =
        "select count(*) from pg_available_extensions where name in ('amcheck', 'pg_visibility')";
    if show(client, available).await != "2" {
        eprintln!("NOT TESTED: amcheck and pg_visibility are not there; Debian's server has them");
        return false;
    }
    show(
        client,
        "create extension amcheck; create extension pg_visibility",
    )
    .await;
    show(client, TABLES).await;
    true
}

/// Fails at the first finding.
pub async fn check(client: &Client, has_checkers: bool) {
    assert_ne!(show(client, "select count(*) from once.key").await, "0");
    if !has_checkers {
        return;
    }
    for findings in FINDINGS {
        // What is wrong stays wrong. pg_check_visible sees too much where another database has an open transaction.
        until(client, findings, "").await;
    }
    assert_eq!(show(client, INDEXES).await, "t");
}
