//! The releases as they were: their install scripts, put where the server looks, and databases made from them.

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::playground::{Playground, cluster};

/// The install script of 0.1.0.
pub const SCRIPT: &str = include_str!("../../upgrade/pg_once--0.1.0.sql");

/// The C symbols that it names.
pub const SYMBOLS: &str = include_str!("../../upgrade/symbols-0.1.0.txt");

pub const UPDATE: &str = "alter extension pg_once update";

/// Puts the script of 0.1.0 beside the present one, in the private server's directory.
fn put_old_script() {
    static PUT: Once = Once::new();
    PUT.call_once(|| {
        let share = cluster().run("pg_config", &["--sharedir"]).unwrap().stdout;
        let directory = Path::new(share.trim()).join("extension");
        let script = directory.join("pg_once--0.1.0.sql");
        if std::fs::read_to_string(&script).is_ok_and(|text| text == SCRIPT) {
            return;
        }
        // Another test program may do the same: a rename is seen whole or not at all.
        let new = directory.join(format!("pg_once.{}", std::process::id()));
        std::fs::write(&new, SCRIPT).unwrap_or_else(|error| panic!("{}: {error}", new.display()));
        std::fs::rename(&new, &script).unwrap();
    });
}

/// A session of a superuser in a database of its own with 0.1.0.
pub async fn old() -> Playground {
    let play = empty().await;
    create_old(&play).await;
    play
}

/// Creates 0.1.0 in a database that has nothing yet.
pub async fn create_old(play: &Playground) {
    put_old_script();
    play.show("create extension pg_once version '0.1.0'").await;
    assert_eq!(version(play).await, "0.1.0");
}

/// A session of a superuser in a new database without the extension.
pub async fn empty() -> Playground {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("upgrade_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let admin = cluster().connect("postgres").await.unwrap();
    let create = format!("create database {name}");
    admin.batch_execute(&create).await.unwrap();
    Playground::on(cluster(), &name).await
}

/// `ALTER EXTENSION pg_once UPDATE`, from a session that has not used the extension before, as a DBA would.
pub async fn update(play: &Playground) {
    cluster().psql(&play.database.name, UPDATE).unwrap();
    assert_eq!(version(play).await, env!("CARGO_PKG_VERSION"));
}

/// The version that the database has.
pub async fn version(play: &Playground) -> String {
    play.show("select extversion from pg_extension where extname = 'pg_once'")
        .await
}
