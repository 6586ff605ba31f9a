//! A mixed load of everything, whose clients go on through whatever happens to the server: keyed requests with
//! steps, some of them parked, jobs with items that are put aside, cancelled and torn down, events that are emitted
//! and consumed through the inbox, dead letters that are redriven, what is soon forgotten, sweeps.
//!
//! Each client does what the contract tells it to after each answer, and after none. What they were answered and
//! what happened outside is kept here, and compared with the database at the end (`proof`).
#![allow(dead_code, reason = "each test binary uses its part")]

mod brief;
pub mod door;
mod events;
pub mod invariants;
mod jobs;
mod letters;
pub mod outside;
mod proof;
mod requests;
pub mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use door::{Door, Fault, text};
use tokio::task::JoinHandle;

/// How long what is begun may take to come to its end once nothing new is begun.
const PATIENCE: Duration = Duration::from_secs(90);

/// Nothing of this is left once everything has come to its end.
const UNDONE: &str = "
select (select count(*) from once.key where status not in ('c', 'a', 'g')) as keys,
       (select count(*) from batch_job where status not in ('done', 'cancelled')) as jobs,
       (select count(*) from posted) + (select count(*) from once.key where status in ('c', 'a') and scope = 'requests')
           + (select count(*) from frail) - (select count(*) from consumed) as events,
       (select count(*) from once.dead)
           + (select count(*) from once.retry join once.topic using (topic_id) where topic = 'frail') as letters,
       (select count(*) from by_hand where not over) as by_hand,
       (select count(*) from once.key where scope = 'brief')
           + (select count(*) from once.inbox where scope = 'brief') as brief";

/// What the clients know, and the world outside.
pub struct Load {
    pub door: Door,
    pub bank: Arc<outside::Bank>,
    pub receiver: Arc<outside::Receiver>,
    pub store: Arc<outside::Store>,
    pub answers: requests::Answers,
    pub promised: jobs::Promised,
    pub posted: events::Posted,
    pub letters: letters::Letters,
}

/// A load that runs; every client is a task.
pub struct Running {
    pub load: Arc<Load>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// A load on the database at `url`, which has the extension and nothing else.
    pub async fn prepare(url: String) -> Arc<Load> {
        let load = Load::on(url);
        world::prepare(&load.door).await.unwrap();
        load
    }

    fn on(url: String) -> Arc<Load> {
        Arc::new(Load {
            door: Door::to(url),
            bank: Arc::default(),
            receiver: Arc::default(),
            store: Arc::default(),
            answers: requests::Answers::default(),
            promised: jobs::Promised::default(),
            posted: events::Posted::default(),
            letters: letters::Letters::default(),
        })
    }

    /// A load on a copy of this one's database, with the same world outside.
    pub fn beside(&self, url: String) -> Arc<Load> {
        Arc::new(Load {
            door: Door::to(url),
            bank: Arc::clone(&self.bank),
            receiver: Arc::clone(&self.receiver),
            store: Arc::clone(&self.store),
            answers: requests::Answers::default(),
            promised: jobs::Promised::default(),
            posted: events::Posted::default(),
            letters: letters::Letters::default(),
        })
    }

    /// Starts ten clients that make work, and those that carry it on.
    pub fn start(self: &Arc<Load>) -> Running {
        let load = || Arc::clone(self);
        let mut clients = vec![
            tokio::spawn(jobs::customer(load())),
            tokio::spawn(brief::client(load())),
            tokio::spawn(letters::emitter(load())),
        ];
        for who in 0..4 {
            clients.push(tokio::spawn(requests::client(load(), who, 4)));
        }
        for who in 0..3 {
            clients.push(tokio::spawn(events::emitter(load(), who, 3)));
        }
        clients.extend(self.carriers());
        Running {
            load: load(),
            clients,
        }
    }

    /// Starts only those that carry on what is there.
    pub fn carry_on(self: &Arc<Load>) -> Running {
        self.door.hush();
        Running {
            load: Arc::clone(self),
            clients: self.carriers(),
        }
    }

    fn carriers(self: &Arc<Load>) -> Vec<JoinHandle<()>> {
        let load = || Arc::clone(self);
        let mut clients = Vec::new();
        for who in 0..2 {
            clients.push(tokio::spawn(jobs::worker(load(), who)));
            clients.push(tokio::spawn(events::consumer(load(), who)));
        }
        clients.push(tokio::spawn(requests::completer(load(), 0)));
        clients.push(tokio::spawn(requests::judge(load())));
        clients.push(tokio::spawn(jobs::operator(load())));
        clients.push(tokio::spawn(letters::consumer(load())));
        clients.push(tokio::spawn(letters::operator(load())));
        clients.push(tokio::spawn(brief::forgetter(load())));
        clients.push(tokio::spawn(jobs::undertaker(load())));
        clients.push(tokio::spawn(sweeper(load())));
        clients
    }
}

/// Sweeps as a scheduler does, one batch of each task, and now and then until nothing is left; what fails then is told
/// by the invariants.
async fn sweeper(load: Arc<Load>) {
    const BATCH: &str = "select task, failed from once.sweep(100)";
    const ALL: &str = "call once.sweep_all(500)";
    let mut session = load.door.enter().await;
    for pass in 0.. {
        if load.door.is_closed() {
            return;
        }
        let rows = match pass % 5 {
            4 => session.rows_within(10 * PATIENCE, ALL).await,
            _ => session.rows(BATCH).await,
        };
        match rows {
            Ok(rows) => {
                for row in rows {
                    assert_eq!(text(&row, 1), "0", "a sweep failed: {row:?}");
                }
            }
            Err(fault) => session.recover(&fault).await,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Running {
    /// Waits until so many more statements were answered.
    pub async fn goes_on_for(&self, statements: u64) {
        let (begin, from) = (Instant::now(), self.load.door.answered());
        while self.load.door.answered() < from + statements {
            self.assert_alive();
            assert!(begin.elapsed() < PATIENCE, "the load stands still");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A client that met what it should never meet has ended with a panic.
    fn assert_alive(&self) {
        let quiet = self.load.door.is_quiet();
        let ended = self.clients.iter().any(JoinHandle::is_finished);
        assert!(quiet || !ended, "a client has ended; see above");
    }

    /// Begins nothing new and waits until all that was begun has come to its end: no lease is stuck.
    pub async fn settle(&mut self) {
        self.settle_within(PATIENCE).await;
    }

    /// The same after faults by the hundred: events of batches that expired come again one at a time.
    pub async fn settle_within(&mut self, patience: Duration) {
        self.load.door.hush();
        let begin = Instant::now();
        let mut session = self.load.door.enter().await;
        loop {
            match session.row(UNDONE).await {
                Ok(row) if row.iter().all(|n| n.as_deref() == Some("0")) => return,
                Ok(row) => assert!(
                    begin.elapsed() < patience,
                    "stuck (keys, jobs, events, dead letters, put by hand, brief ones): {row:?}"
                ),
                Err(fault @ Fault::Gone) => session.recover(&fault).await,
                Err(fault) => panic!("{fault:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends everybody home.
    pub async fn end(self) -> Arc<Load> {
        self.load.door.close();
        for client in self.clients {
            client.await.unwrap();
        }
        self.load
    }
}
