//! One order of statements, carried out over real connections, and the walk through all of them.
//!
//! A schedule is a list of choices: which of the actors that can go on sends its next statement. A
//! statement that waits for a lock is seen waiting in the server and left pending while the others go on;
//! it is looked at again after each of their statements. `Path` is a depth-first walk: each run repeats
//! the choices of the one before up to the last that had an alternative, and takes that. A run that finds
//! other actors able to go on than the one before found there is judged like any other, but not walked on
//! from: its choices are run again.
//!
//! A transaction that fails with 40001 is tried again at once and has the floor until it ends or waits: its
//! repetition is not interleaved with the others, except with those that a wait lets go on.

use std::sync::Arc;
use std::time::Duration;

use pg_once_tests::race;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::actor::{Actor, Answer};
use crate::playground::Playground;

/// How long a statement may run before the server is asked whether it waits, and twice as long each time
/// that it does not. Only when to ask: the answer decides.
const ASK_AFTER: Duration = Duration::from_millis(10);
/// The same of one that has waited: it mostly still does.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A session for an actor, kept from one schedule to the next.
pub struct Seat {
    pub session: Arc<Playground>,
    asked: race::Session,
}

impl Seat {
    pub async fn take(session: Playground) -> Seat {
        let asked = race::Session::of(&session.client).await.unwrap();
        Seat {
            session: Arc::new(session),
            asked,
        }
    }
}

/// The alternatives at one point of a schedule: a bit for each actor that could go on, and the one taken.
#[derive(Clone, Copy)]
struct Fork {
    open: u32,
    taken: usize,
}

impl Fork {
    fn new(open: u32) -> Fork {
        let taken = open.trailing_zeros() as usize;
        Fork { open, taken }
    }

    fn has(self, choice: usize) -> bool {
        self.open & 1 << choice != 0
    }

    /// Moves on to the next alternative, if there is one.
    fn advance(&mut self) -> bool {
        let later = self.open & !((2 << self.taken) - 1);
        self.taken = later.trailing_zeros() as usize;
        later != 0
    }
}

/// So often the same choices are run until a run comes along their way.
const MOST_RUNS: u32 = 20;

/// So many choices from the beginning each alternative is another walk's.
const SHARED: usize = 3;

/// A walk through all schedules that begin with the same choices, from one end to the other.
#[derive(Default)]
pub struct Path {
    first: Vec<usize>,
    /// What schedules of other walks begin with: what was not taken of the first choices.
    pub others: Vec<Vec<usize>>,
    forks: Vec<Fork>,
    depth: usize,
    /// This run has left the way of the ones before, though it made the same choices.
    strays: bool,
    /// So many in a row did.
    strayed: u32,
    /// How many did in all; the next run made the same choices once more.
    pub astray: u64,
    /// Choices that no run followed to their end, with all that would have come after them.
    pub given_up: u64,
}

impl Path {
    pub fn of(first: Vec<usize>) -> Path {
        Path {
            first,
            ..Path::default()
        }
    }

    fn choose(&mut self, open: u32) -> usize {
        if !self.strays {
            match self.forks.get(self.depth) {
                Some(fork) => self.strays = fork.open != open,
                None => self.begin(Fork::new(open)),
            }
        }
        if self.strays {
            // Only to come to an end: nothing of this run is kept.
            return Fork::new(open).taken;
        }
        self.depth += 1;
        self.forks[self.depth - 1].taken
    }

    fn begin(&mut self, mut fork: Fork) {
        if let Some(first) = self.first.get(self.depth) {
            self.strays = !fork.has(*first);
            fork.taken = *first;
        } else if self.depth < SHARED {
            let taken: Vec<_> = self.forks.iter().map(|fork| fork.taken).collect();
            let later = (fork.taken + 1..u32::BITS as usize).filter(|choice| fork.has(*choice));
            let other = later.map(|choice| [&taken[..], &[choice]].concat());
            self.others.extend(other);
        }
        if !self.strays {
            self.forks.push(fork);
        }
    }

    /// Prepares the next schedule; false after the last one.
    pub fn advance(&mut self) -> bool {
        let followed = !self.strays && self.depth == self.forks.len();
        (self.depth, self.strays) = (0, false);
        if !followed {
            self.astray += 1;
            self.strayed += 1;
            if self.strayed < MOST_RUNS {
                return true;
            }
            self.given_up += 1;
        }
        self.strayed = 0;
        while self.forks.len() > SHARED {
            if self.forks.last_mut().is_some_and(Fork::advance) {
                return true;
            }
            self.forks.pop();
        }
        false
    }
}

/// Actors in their seats, and what they have said and heard so far.
pub struct Stage<'a> {
    pub actors: Vec<Actor>,
    seats: &'a [Seat],
    watcher: &'a Playground,
    pending: Vec<Option<JoinHandle<Answer>>>,
    pub told: Vec<String>,
    /// How often a statement was seen to wait.
    pub waits: u64,
    /// The first two actors do the same: the orders in which the second of them begins first are those in
    /// which the first does, with the names exchanged, and are left out.
    twins: bool,
    begun: bool,
}

impl<'a> Stage<'a> {
    pub fn new(
        actors: Vec<Actor>,
        twins: bool,
        seats: &'a [Seat],
        watcher: &'a Playground,
    ) -> Stage<'a> {
        Stage {
            twins,
            begun: false,
            pending: actors.iter().map(|_| None).collect(),
            actors,
            seats,
            watcher,
            told: Vec::new(),
            waits: 0,
        }
    }

    /// Carries out one schedule to its end.
    pub async fn play(&mut self, path: &mut Path) {
        while !self.actors.iter().all(Actor::over) {
            let open = self.open();
            assert_ne!(open, 0, "all wait for each other: {:#?}", self.told);
            let chosen = path.choose(open);
            self.send(chosen);
            if self.settle(chosen, ASK_AFTER).await {
                self.look_at_pending().await;
            } else {
                self.waits += 1;
            }
        }
    }

    /// Takes the answers of those that wait no longer; each of them may have let others go on.
    async fn look_at_pending(&mut self) {
        let mut ended = true;
        while ended {
            ended = false;
            for other in 0..self.actors.len() {
                ended |= self.pending[other].is_some() && self.settle(other, ASK_AGAIN_AFTER).await;
            }
        }
    }

    /// Who can go on. A transaction that is tried again after 40001 has the floor until it ends or waits:
    /// it is interleaved once, not once more for each time it is tried.
    fn open(&self) -> u32 {
        let free = |i: &usize| !self.actors[*i].over() && self.pending[*i].is_none();
        let bits = |wanted: &dyn Fn(usize) -> bool| -> u32 {
            let free = (0..self.actors.len()).filter(free);
            free.filter(|i| wanted(*i)).map(|i| 1 << i).sum()
        };
        match bits(&|i| self.actors[i].retrying) {
            0 if self.twins && !self.begun => bits(&|i| i != 1),
            0 => bits(&|_| true),
            again => again,
        }
    }

    fn send(&mut self, i: usize) {
        self.begun |= i == 0;
        let actor = &mut self.actors[i];
        self.told.push(format!("{}: {:?}", actor.name, actor.step));
        let (session, sql) = (Arc::clone(&self.seats[i].session), actor.statement());
        let sent = tokio::spawn(async move {
            let answer = session.attempt(&sql).await;
            if answer.is_err() {
                // The server tells of an error before it lets go of the locks; this answer comes after.
                session.show("").await;
            }
            answer
        });
        self.pending[i] = Some(sent);
    }

    /// Waits until the actor's statement has ended (true) or waits for a lock of another session.
    async fn settle(&mut self, i: usize, mut patience: Duration) -> bool {
        let sent = self.pending[i].as_mut().unwrap();
        let answer = loop {
            if let Ok(answer) = timeout(patience, &mut *sent).await {
                break answer.unwrap();
            }
            patience *= 2;
            let watcher = &self.watcher.client;
            if race::is_waiting(watcher, &self.seats[i].asked)
                .await
                .unwrap()
            {
                // It may have ended between the server's answer and now; then it is not pending.
                if !sent.is_finished() {
                    self.note(i, "waits");
                    return false;
                }
            }
        };
        self.pending[i] = None;
        let short = match &answer {
            Ok(rows) => rows.replace('\n', " "),
            Err(refusal) => format!("{} {}", refusal.code, refusal.message),
        };
        self.note(i, &format!("-> {short}"));
        self.actors[i].answered(&answer);
        true
    }

    fn note(&mut self, i: usize, what: &str) {
        let actor = &self.actors[i];
        self.told
            .push(format!("    {} {:?} {what}", actor.name, actor.step));
    }

    pub async fn alone(session: &Playground, actor: &mut Actor) {
        while !actor.over() {
            Stage::step(session, actor).await;
        }
    }

    /// One statement of it.
    pub async fn step(session: &Playground, actor: &mut Actor) {
        let answer = session.attempt(&actor.statement()).await;
        actor.answered(&answer);
    }
}
