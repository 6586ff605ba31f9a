//! Who is killed, and how the server comes back.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pg_once_tests::{Cluster, race};
use tokio_postgres::Client;

use crate::DATABASE;
use crate::janitor::logged;

/// Chance that can be had again: PG_ONCE_SEED.
pub struct Chance {
    pub seed: u64,
    state: u64,
}

impl Chance {
    pub fn new() -> Chance {
        let named = std::env::var("PG_ONCE_SEED").ok();
        let seed = named.map_or_else(
            || {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.unwrap().subsec_nanos().into()
            },
            |seed| seed.parse().unwrap(),
        );
        Chance { seed, state: seed }
    }

    /// The same for one of several who draw beside each other.
    pub fn of(&self, who: u64) -> Chance {
        let state = self.seed.wrapping_add(who.wrapping_mul(1_000_003));
        Chance {
            seed: self.seed,
            state,
        }
    }

    /// A number below `end` (splitmix64).
    pub fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        usize::try_from(z % end as u64).unwrap()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Victim {
    /// A client's backend in the middle of a statement; the postmaster starts everybody anew.
    Backend,
    /// The background worker.
    Janitor,
    /// The postmaster alone; its children notice.
    Postmaster,
    /// Everything at once.
    Everything,
}

impl Victim {
    /// Each kind in each ten rounds; the rest by chance.
    pub fn of_round(round: usize, chance: &mut Chance) -> Victim {
        let kinds = [
            Victim::Backend,
            Victim::Everything,
            Victim::Postmaster,
            Victim::Janitor,
        ];
        match round % 10 {
            n @ 1..=4 => kinds[n - 1],
            _ => kinds[chance.below(kinds.len())],
        }
    }

    /// Kills it, and waits until the server lets clients in again. How many crashes the server's log tells of.
    pub async fn kill(self, cluster: &mut Cluster, chance: &mut Chance) -> usize {
        let before = match self {
            Victim::Backend | Victim::Janitor => recoveries(cluster),
            // A new postmaster begins a new log.
            Victim::Postmaster | Victim::Everything => 0,
        };
        match self {
            Victim::Backend => {
                // In the middle of a statement, not between two.
                let active = "state = 'active' and backend_type = 'client backend'";
                one_of(cluster, chance, active).await;
            }
            Victim::Janitor => one_of(cluster, chance, "backend_type like 'pg_once%'").await,
            Victim::Postmaster => {
                let file = cluster.data_directory().join("postmaster.pid");
                let text = std::fs::read_to_string(file).unwrap();
                let pid = text.lines().next().unwrap().trim().parse().unwrap();
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                race::poll_async("the postmaster's children to leave", async || {
                    let left = cluster.processes();
                    // Nobody reaps it but us; it is dead all the same.
                    Ok(left.iter().all(|p| *p == pid).then_some(()))
                })
                .await
                .unwrap();
                cluster.kill_9().unwrap();
                cluster.start().unwrap();
            }
            Victim::Everything => {
                cluster.kill_9().unwrap();
                cluster.start().unwrap();
            }
        }
        recoveries(cluster) - before
    }
}

/// How often the server has found that it did not end in good order.
fn recoveries(cluster: &Cluster) -> usize {
    logged(cluster, "was not properly shut down")
}

/// Kills one of the processes that `such` tells, and waits for the end of the recovery.
async fn one_of(cluster: &Cluster, chance: &mut Chance, such: &str) {
    let witness = cluster.connect(DATABASE).await.unwrap();
    race::poll_async(such, async || {
        let Some(pid) = candidate(&witness, such, chance).await? else {
            return Ok(None);
        };
        // One that has ended by itself since is nobody's victim; the next look takes another.
        let is_ours = cluster.processes().contains(&pid);
        Ok((is_ours && kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()).then_some(()))
    })
    .await
    .unwrap();
    race::poll_async("the postmaster to start over", async || {
        Ok(witness.is_closed().then_some(()))
    })
    .await
    .unwrap();
    race::poll_async("the server to come back", async || {
        Ok(cluster.connect(DATABASE).await.is_ok().then_some(()))
    })
    .await
    .unwrap();
}

async fn candidate(
    witness: &Client,
    such: &str,
    chance: &mut Chance,
) -> anyhow::Result<Option<i32>> {
    let sql = format!(
        "select pid from pg_stat_activity where {such} and pid <> pg_backend_pid() order by pid"
    );
    let rows = witness.query(&sql, &[]).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    Ok(Some(rows[chance.below(rows.len())].get(0)))
}
