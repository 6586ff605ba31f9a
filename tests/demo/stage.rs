//! The processes of a run, the network before them, and the trouble that they are in.
//!
//! Invariant: each process stands behind a proxy of its own, and is a lane of the picture; they start
//! in the order in which they were added, so what others need comes first.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::crashes::Crashes;
use crate::database::terminate_backends;
use crate::ground::Ground;
use crate::journal::{Journal, What};
use crate::progress::Progress;
use crate::proxy::Proxy;
use crate::supervisor::{Post, Program, Supervisor};

/// The processes that are to be.
pub struct Cast {
    journal: Arc<Journal>,
    seed: u64,
    posts: Vec<Post>,
    lanes: Vec<String>,
}

/// The processes at work.
pub struct Stage {
    supervisor: Supervisor,
    /// The processes' names.
    pub lanes: Vec<String>,
}

impl Cast {
    pub fn new(ground: &Ground<'_>, journal: &Arc<Journal>) -> Self {
        Self {
            journal: Arc::clone(journal),
            seed: ground.settings.seed,
            posts: vec![],
            lanes: vec![],
        }
    }

    /// Adds processes of a program; tells the addresses under which they will be known.
    pub async fn add(
        &mut self,
        role: &str,
        count: usize,
        program: &Program,
        crashes: &Arc<Crashes>,
    ) -> Result<Vec<SocketAddr>> {
        let mut fronts = Vec::new();
        for number in 1..=count {
            let lane = self.posts.len();
            let seed = self.seed.wrapping_add(lane as u64);
            let proxy = Arc::new(Proxy::start(lane, seed, Arc::clone(&self.journal)).await?);
            fronts.push(proxy.front);
            self.posts.push(Post {
                program: program.clone(),
                proxy,
                crashes: Arc::clone(crashes),
            });
            self.lanes.push(match count {
                1 => role.to_owned(),
                _ => format!("{role} {number}"),
            });
        }
        Ok(fronts)
    }

    /// Starts them all; they accept requests when this returns.
    pub async fn start(self) -> Result<Stage> {
        Ok(Stage {
            supervisor: Supervisor::start(self.posts, &self.journal).await?,
            lanes: self.lanes,
        })
    }
}

impl Stage {
    /// Lets the load run while processes are killed, about one in each `pause` (milliseconds), and
    /// the database's backends are terminated.
    pub async fn under_fire(
        &self,
        ground: &Ground<'_>,
        database: &str,
        pause: Range<u64>,
        (journal, progress): (&Journal, &Progress),
        load: impl Future<Output = ()>,
    ) -> Result<()> {
        let seed = ground.settings.seed;
        tokio::select! {
            () = load => {}
            () = self.supervisor.kill_at_random(StdRng::seed_from_u64(seed), pause) => {}
            () = progress.tell() => {}
            failed = terminate_backends(ground.cluster, database, seed, journal) => {
                failed.context("terminating backends")?;
            }
        }
        journal.event(What::LoadOver);
        Ok(())
    }

    /// Ends all processes; tells their names.
    pub async fn stop(self) -> Result<Vec<String>> {
        self.supervisor.stop().await?;
        Ok(self.lanes)
    }
}
