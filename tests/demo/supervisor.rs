//! Keeps the service processes running while they are killed, and kills them.
//!
//! Invariant: until the run is over, every end of a process that accepted requests is in the journal with its
//! cause. One that ended without being killed is `Died`, and the run fails for it. A killed one is back at once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::crashes::Crashes;
use crate::journal::{Journal, What};
use crate::proxy::Proxy;

const UP_WITHIN: Duration = Duration::from_secs(30);
const LAUNCHES: usize = 5;

/// The program of a service and what every process of it is started with.
#[derive(Clone)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub directory: PathBuf,
}

/// A place where a service process runs; when it dies the next one takes the place.
pub struct Post {
    pub program: Program,
    /// The address under which clients know it.
    pub proxy: Arc<Proxy>,
    /// Where it is to die.
    pub crashes: Arc<Crashes>,
}

struct Lane {
    number: usize,
    post: Post,
    journal: Arc<Journal>,
    kill: Arc<Notify>,
    stop: Arc<Notify>,
    stopping: Arc<AtomicBool>,
}

pub struct Supervisor {
    kills: Vec<Arc<Notify>>,
    stops: Vec<Arc<Notify>>,
    stopping: Arc<AtomicBool>,
    lanes: Vec<JoinHandle<Result<()>>>,
}

impl Supervisor {
    /// Starts one process for each post, and returns when all of them accept requests.
    pub async fn start(posts: Vec<Post>, journal: &Arc<Journal>) -> Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut supervisor = Self {
            kills: vec![],
            stops: vec![],
            stopping: Arc::clone(&stopping),
            lanes: vec![],
        };
        for (number, post) in posts.into_iter().enumerate() {
            let lane = Lane {
                number,
                post,
                journal: Arc::clone(journal),
                kill: Arc::default(),
                stop: Arc::default(),
                stopping: Arc::clone(&stopping),
            };
            supervisor.kills.push(Arc::clone(&lane.kill));
            supervisor.stops.push(Arc::clone(&lane.stop));
            let first = lane.launch().await?;
            supervisor.lanes.push(tokio::spawn(lane.keep(first)));
        }
        Ok(supervisor)
    }

    /// Kills one process after another, at random, until dropped.
    pub async fn kill_at_random(&self, mut rng: StdRng, pause: std::ops::Range<u64>) {
        loop {
            tokio::time::sleep(Duration::from_millis(rng.random_range(pause.clone()))).await;
            if let Some(kill) = self.kills.get(rng.random_range(0..self.kills.len())) {
                kill.notify_one();
            }
        }
    }

    /// Ends all processes; an error of any lane is returned.
    pub async fn stop(self) -> Result<()> {
        self.stopping.store(true, Ordering::Relaxed);
        for stop in &self.stops {
            stop.notify_one();
        }
        for lane in self.lanes {
            lane.await??;
        }
        Ok(())
    }
}

/// A running process and what it is armed with.
struct Running {
    child: Child,
    armed: Option<&'static str>,
    last_words: JoinHandle<LastWords>,
}

#[derive(Default)]
struct LastWords {
    crashed_at: Option<String>,
    tail: Vec<String>,
}

impl Lane {
    async fn keep(self, mut running: Running) -> Result<()> {
        loop {
            let killed = tokio::select! {
                _ = running.child.wait() => false,
                () = self.kill.notified() => true,
                () = self.stop.notified() => true,
            };
            self.post.proxy.set_upstream(None);
            // SIGKILL; does nothing to one that has ended by itself.
            running.child.kill().await?;
            let words = running.last_words.await?;
            if self.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.write_down(killed, running.armed, words);
            running = self.launch().await?;
        }
    }

    fn write_down(&self, killed: bool, armed: Option<&'static str>, words: LastWords) {
        let lane = self.number;
        self.journal.event(match words.crashed_at {
            Some(point) => What::CrashedAt { lane, point },
            None => {
                // It died of something else: somebody must still die at that point.
                self.post.crashes.give_back(armed);
                if killed {
                    What::Killed { lane }
                } else {
                    What::Died {
                        lane,
                        last_words: words.tail.join(" | "),
                    }
                }
            }
        });
    }

    /// Starts a process that accepts connections. One that ends at its start is started again:
    /// its first query may have met a terminated backend.
    async fn launch(&self) -> Result<Running> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.launch_once().await {
                Err(error) if tries == LAUNCHES => return Err(error),
                Err(_) => {}
                Ok(running) => return Ok(running),
            }
        }
    }

    async fn launch_once(&self) -> Result<Running> {
        let mut command = Command::new(&self.post.program.path);
        command
            .args(&self.post.program.arguments)
            .arg("--listen")
            .arg("127.0.0.1:0")
            .current_dir(&self.post.program.directory)
            .env_remove("PG_ONCE_CRASH_AT")
            // Its last words would be nothing but that.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let armed = self.post.crashes.next();
        if let Some(crash) = armed {
            command.env("PG_ONCE_CRASH_AT", crash.point);
            command.env("PG_ONCE_CRASH_ONE_IN", crash.one_in.to_string());
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.post.program.path.display()))?;
        let stderr = child.stderr.take().context("no standard error")?;
        let last_words = tokio::spawn(listen(stderr));
        let armed = armed.map(|crash| crash.point);
        let stdout = child.stdout.take().context("no standard output")?;
        let up = tokio::time::timeout(UP_WITHIN, address(stdout)).await;
        let address = match up.unwrap_or_else(|_| Err(anyhow!("it does not start in time"))) {
            Ok(address) => address,
            Err(error) => {
                self.post.crashes.give_back(armed);
                child.kill().await?;
                let words = last_words.await?.tail.join("\n");
                let path = self.post.program.path.display();
                return Err(error.context(format!("{path}: {words}")));
            }
        };
        self.post.proxy.set_upstream(Some(address));
        self.journal.event(What::Up { lane: self.number });
        Ok(Running {
            child,
            armed,
            last_words,
        })
    }
}

/// A process says where it listens once it does; one that ends first says nothing.
pub async fn address(stdout: ChildStdout) -> Result<SocketAddr> {
    let line = BufReader::new(stdout).lines().next_line().await?;
    let address = line
        .as_deref()
        .and_then(|line| line.strip_prefix("listening on "))
        .context("it does not say where it listens")?;
    Ok(address.parse()?)
}

/// Reads a process's standard error to its end; the crash point is its last line.
async fn listen(stderr: ChildStderr) -> LastWords {
    let mut words = LastWords::default();
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(point) = line.strip_prefix("crash_at=") {
            words.crashed_at = Some(point.trim().to_owned());
        } else {
            words.tail.push(line);
            if words.tail.len() > 20 {
                words.tail.remove(0);
            }
        }
    }
    words
}
