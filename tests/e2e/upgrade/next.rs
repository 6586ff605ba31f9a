//! The made-up next version, put where the server looks, and databases with it and with the present one.

use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::playground::{Playground, cluster};

pub const PRESENT: &str = env!("CARGO_PKG_VERSION");
pub const NEXT: &str = "next";
pub const UPDATE: &str = "alter extension pg_once update to 'next'";

const SCRIPT: &str = include_str!("../../upgrade/next.sql");
/// The column as the upgrade script adds it, and where it stands in a new table.
const ALTER: &str = "ALTER TABLE once.scope ADD COLUMN remark text;\n";
const SCOPE: &str = "    owner_incarnation bigint\n);\nCOMMENT ON TABLE once.scope";
const RIGHTS: &str = "REVOKE ALL ON ALL ROUTINES IN SCHEMA once FROM PUBLIC;";

fn directory() -> PathBuf {
    let share = cluster().run("pg_config", &["--sharedir"]).unwrap().stdout;
    PathBuf::from(share.trim()).join("extension")
}

/// The present install script.
pub fn script() -> String {
    let path = directory().join(format!("pg_once--{PRESENT}.sql"));
    std::fs::read_to_string(path).unwrap()
}

/// The install script of the next version: as if its column and its function had always been there.
fn next_script() -> String {
    let replaced_once = |text: String, old: &str, new: &str| {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text.replace(old, new)
    };
    let (_, made) = SCRIPT.split_once(ALTER).unwrap();
    let (made, _) = made.split_once("-- role (").unwrap();
    let with_column = SCOPE.replace("bigint\n", "bigint,\n    remark text\n");
    let script = replaced_once(script(), SCOPE, &with_column);
    replaced_once(script, RIGHTS, &format!("{made}{RIGHTS}"))
}

/// Puts both scripts of the next version into the private server's directory.
pub fn put_scripts() {
    static PUT: Once = Once::new();
    PUT.call_once(|| {
        let put = |name: &str, text: &str| {
            // Seen whole or not at all.
            let new = directory().join(format!("pg_once.{}", std::process::id()));
            std::fs::write(&new, text).unwrap_or_else(|e| panic!("{}: {e}", new.display()));
            std::fs::rename(&new, directory().join(name)).unwrap();
        };
        put(&format!("pg_once--{PRESENT}--next.sql"), SCRIPT);
        put("pg_once--next.sql", &next_script());
    });
}

/// A session of a superuser in a new database without the extension.
pub async fn empty() -> Playground {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    put_scripts();
    let name = format!("upgrade_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let admin = cluster().connect("postgres").await.unwrap();
    let create = format!("create database {name}");
    admin.batch_execute(&create).await.unwrap();
    Playground::on(cluster(), &name).await
}

/// A session of a superuser in a new database that is to be updated.
pub async fn old() -> Playground {
    put_scripts();
    Playground::open().await
}

/// The same in one that was created as the next version.
pub async fn fresh() -> Playground {
    let play = empty().await;
    play.show("create extension pg_once version 'next'").await;
    play
}

/// Updates the database from a session of its own, as a DBA would.
pub async fn update(play: &Playground) {
    play.another().await.show(UPDATE).await;
    assert_eq!(version(play).await, NEXT);
}

/// The version that the database has.
pub async fn version(play: &Playground) -> String {
    play.show("select extversion from pg_extension where extname = 'pg_once'")
        .await
}
