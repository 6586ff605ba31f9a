//! The harness of the end-to-end tests, the benchmarks and the demo: private PostgreSQL
//! clusters that start in a second, can be killed at any moment, and never outlive the program.
//!
//! A table of contents; each noun has its file.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use pg_once_tests::Cluster;
//!
//! let mut cluster = Cluster::launch()?;
//! let client = cluster.create_database_with_extension("shop").await?;
//! client.execute("create table orders (id text primary key)", &[]).await?;
//! cluster.kill_9()?;
//! cluster.start()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod bad_input;
mod builder;
mod carried;
mod cluster;
mod front;
pub mod history;
mod leash;
pub mod machine;
mod moving;
mod os_user;
pub mod pages;
mod place;
pub mod playground;
mod pooler;
mod programs;
pub mod race;
pub mod random_json;
pub mod script;
mod shards;
pub mod stage;
mod standby;
mod template;
pub mod waiting;

pub use builder::Builder;
pub use carried::{Carried, Sent};
pub use cluster::{Cluster, StopMode};
pub use front::through_pooler;
pub use leash::Leash;
pub use os_user::OsUser;
pub use place::free_port;
pub use pooler::{PgBouncer, PoolMode};
pub use programs::{Output, Programs};
pub use race::Lsn;

/// The top of the clone.
#[must_use]
pub fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether the long form of a test is asked for: `make test-long` sets PG_ONCE_LONG=1.
pub fn is_long() -> bool {
    std::env::var_os("PG_ONCE_LONG").is_some_and(|value| value != "0")
}
