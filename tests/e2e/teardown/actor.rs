//! Whoever works on a job, one statement at a time: a worker that runs it, an endpoint that cancels it and
//! tears it down, a sweep. Each does what the contract tells it to after each answer.
//!
//! An actor only says what its next statement is and takes the answer; whoever drives it decides when, so
//! that the same program runs in every order (`stage`) and freely beside others (`storms`).

use std::collections::VecDeque;

use crate::playground::Refusal;
use crate::shop::Job;

pub type Answer = Result<String, Refusal>;

/// An item's id and the name of its artifact.
pub type Item = (i64, String);

/// How a worker writes its items.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Writes {
    /// Under `action_extend`, in the item's own transaction.
    #[default]
    Fenced,
    /// By UPDATE alone; only the guard stands between it and a teardown.
    Updates,
    /// A new row and then the UPDATE, in one transaction; as above.
    Inserts,
}

/// The statement at which an actor stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Step {
    Claim,
    /// Opens the item's transaction.
    Begin,
    /// Makes the artifact, then the item a success, and pays for it.
    Write,
    Commit,
    /// Opens the last transaction with action_finish.
    Finish,
    /// Settles the items and commits.
    Keep,
    Rollback,
    Release,
    Request,
    Refund,
    /// Lists, and deletes what was listed.
    List,
    Confirm,
    /// Opens a transaction and takes its snapshot before the finish.
    Look,
    Cancel,
    /// Commits that transaction.
    Close,
    Sweep,
    #[default]
    Over,
}

/// How often one actor may be told 40001; each time somebody else has got further.
const MOST_RETRIES: u32 = 20;

#[derive(Default)]
pub struct Actor {
    pub name: &'static str,
    pub step: Step,
    pub job: Job,
    writes: Writes,
    /// Writes one item and no more, without a lease.
    late: bool,
    /// A worker that was told of the cancellation tears down itself; else it leaves that to others.
    tears_down: bool,
    /// The finish is called in a transaction that has begun before.
    looks: bool,
    /// Items still to be done.
    items: VecDeque<Item>,
    /// The artifact that the open transaction has made.
    made: Option<String>,
    token: i64,
    pass: String,
    /// Where to go after Rollback.
    then: Step,
    /// Nobody else can start any more: from now on ON002 would be wrong.
    sure: bool,
    retries: u32,
    /// Its transaction failed with 40001 and has not ended since.
    pub retrying: bool,
    /// cancel_request said that the job will be torn down.
    pub promised: bool,
    /// This actor wrote the job's end.
    pub ended: Option<&'static str>,
}

impl Actor {
    fn new(name: &'static str, step: Step, job: &Job) -> Actor {
        Actor {
            name,
            step,
            job: job.clone(),
            ..Actor::default()
        }
    }

    pub fn worker(job: &Job, writes: Writes, tears_down: bool, items: Vec<Item>) -> Actor {
        Actor {
            writes,
            tears_down,
            items: items.into(),
            ..Actor::new("worker", Step::Claim, job)
        }
    }

    /// A worker whose lease is long lost and that does not know it: it writes one more item, in two
    /// steps, all its writes and the commit.
    pub fn late_writer(job: &Job, writes: Writes) -> Actor {
        let item = match writes {
            Writes::Inserts => (0, format!("{}-more", job.id)),
            _ => job.todo(),
        };
        Actor {
            writes,
            late: true,
            items: [item].into(),
            ..Actor::new("late writer", Step::Write, job)
        }
    }

    pub fn endpoint(job: &Job) -> Actor {
        Actor::new("endpoint", Step::Request, job)
    }

    /// Tears down what is flagged and not leased.
    pub fn teardown(name: &'static str, job: &Job) -> Actor {
        Actor {
            sure: true,
            ..Actor::new(name, Step::Refund, job)
        }
    }

    /// A teardown whose finish has an old snapshot, where snapshots last.
    pub fn late_teardown(job: &Job) -> Actor {
        Actor {
            looks: true,
            ..Actor::teardown("late teardown", job)
        }
    }

    pub fn sweep(job: &Job) -> Actor {
        Actor::new("sweep", Step::Sweep, job)
    }

    pub fn over(&self) -> bool {
        self.step == Step::Over
    }

    /// The statement at which the actor stands; does first what has to be done outside of the database.
    pub fn statement(&mut self) -> String {
        let (job, id, token) = (&self.job, self.job.id, format!(", {}", self.token));
        match self.step {
            Step::Claim => job.call("outcome, token", "action_claim", ", 'run', 'worker'"),
            Step::Begin => format!("begin; {}", self.first_write()),
            Step::Write => {
                let (item, artifact) = &self.items[0];
                job.make(artifact);
                self.made = Some(artifact.clone());
                let begin = if self.late { "begin; " } else { "" };
                let done = match (self.late, self.writes) {
                    (true, Writes::Inserts) => self.insert("succeeded"),
                    // Whoever did the item before has paid for it.
                    _ => format!(
                        "update batch_item set state = 'succeeded' where id = {item} and state <> 'succeeded'"
                    ),
                };
                format!(
                    "{begin}with i as ({done} returning points)
                     update wallet as w set points = w.points - i.points from i where w.customer = '{}'",
                    job.wallet
                )
            }
            Step::Commit | Step::Close => "commit".to_owned(),
            Step::Finish => format!("begin; {}", job.call("outcome", "action_finish", &token)),
            Step::Keep => {
                format!("update batch_item set settled = 'kept' where job_id = {id}; commit")
            }
            Step::Rollback => "rollback".to_owned(),
            Step::Release => job.call("status", "action_release", &token),
            Step::Request => job.call("outcome", "cancel_request", ""),
            Step::Refund => job.call("pass", "cancel_refund", ""),
            Step::List => job.call("item ->> 'artifact'", "cancel_items", ""),
            Step::Confirm => job.call("confirmed", "cancel_confirm", &format!(", {}", self.pass)),
            Step::Look => format!("begin; select count(*) from batch_item where job_id = {id}"),
            Step::Cancel => job.call("status", "cancel_finish", ""),
            Step::Sweep => {
                "select failed from once.sweep(1000, 'action_release', 'batch_job')".to_owned()
            }
            Step::Over => unreachable!("{} has ended", self.name),
        }
    }

    fn first_write(&self) -> String {
        let job = &self.job;
        match self.writes {
            Writes::Fenced => {
                let token = format!(", {}", self.token);
                job.call("cancelling", "action_extend", &token)
            }
            Writes::Updates => format!(
                "update batch_item set state = 'working' where id = {}",
                self.items[0].0
            ),
            Writes::Inserts => format!("{} returning id", self.insert("working")),
        }
    }

    fn insert(&self, state: &str) -> String {
        format!(
            "insert into batch_item (job_id, input, state, points, artifact)
             values ({0}, 'more', '{state}', 5, '{0}-more')",
            self.job.id
        )
    }

    pub fn answered(&mut self, answer: &Answer) {
        self.step = match answer {
            Ok(rows) => self.went(rows),
            Err(refusal) => self.was_refused(refusal),
        };
    }

    /// Whether the transaction goes on after the step.
    fn within(&self) -> bool {
        match self.step {
            Step::Begin | Step::Write | Step::Finish | Step::Look => true,
            Step::Cancel => self.looks,
            // What follows is the same transaction once more, or what comes after it was given up.
            Step::Rollback => self.then == self.beginning() || self.then == Step::Finish,
            _ => false,
        }
    }

    fn went(&mut self, rows: &str) -> Step {
        self.retrying &= self.within();
        match self.step {
            Step::Claim => match rows.split_once('|') {
                Some(("claimed", token)) => {
                    self.token = token.parse().unwrap();
                    self.next_item()
                }
                Some(("cancelling", _)) => self.tear_down(),
                Some(("in_progress" | "refused", _)) => Step::Over,
                _ => panic!("{}: {rows}", self.name),
            },
            Step::Begin => match self.writes {
                Writes::Fenced if rows == "t" => {
                    self.unmake();
                    self.roll_back(Step::Release)
                }
                Writes::Inserts => {
                    self.items[0] = (rows.parse().unwrap(), format!("{}-more", self.job.id));
                    Step::Write
                }
                _ => Step::Write,
            },
            Step::Write => Step::Commit,
            Step::Commit => {
                self.made = None;
                self.items.pop_front();
                self.next_item()
            }
            Step::Finish => match rows {
                "finished" => Step::Keep,
                "cancelling" => self.roll_back(Step::Release),
                _ => panic!("{}: {rows}", self.name),
            },
            Step::Keep => self.end("done"),
            Step::Rollback => self.then,
            Step::Release => self.tear_down(),
            Step::Request => {
                self.promised = matches!(rows, "teardown" | "accepted");
                self.sure = rows == "teardown";
                match rows {
                    "teardown" | "accepted" => Step::Refund,
                    "done" | "too_late" => Step::Over,
                    _ => panic!("{}: {rows}", self.name),
                }
            }
            Step::Refund => {
                rows.clone_into(&mut self.pass);
                self.sure = true;
                Step::List
            }
            Step::List => {
                rows.lines().for_each(|artifact| self.job.delete(artifact));
                Step::Confirm
            }
            Step::Confirm => match rows {
                "t" if self.looks => Step::Look,
                "t" => Step::Cancel,
                _ => Step::Refund,
            },
            Step::Look => Step::Cancel,
            Step::Cancel => {
                assert_eq!(rows, "cancelled", "{}", self.name);
                if self.looks {
                    Step::Close
                } else {
                    self.end("cancelled")
                }
            }
            Step::Close => self.end("cancelled"),
            Step::Sweep => {
                assert_eq!(rows, "0", "{}", self.name);
                Step::Over
            }
            Step::Over => unreachable!("{} has ended", self.name),
        }
    }

    fn was_refused(&mut self, refusal: &Refusal) -> Step {
        let (step, name) = (self.step, self.name);
        match (step, refusal.code.as_str()) {
            (_, "40001") => {
                self.retries += 1;
                self.retrying = true;
                assert!(self.retries < MOST_RETRIES, "{name}: {refusal:?}");
                self.again()
            }
            (Step::Begin | Step::Write, "ON001" | "ON002") => {
                self.unmake();
                self.roll_back(Step::Over)
            }
            (Step::Finish, "ON001") => self.roll_back(Step::Over),
            (Step::Cancel, "ON005") if self.looks => self.roll_back(Step::Over),
            (Step::Release, "ON001") | (Step::Cancel, "ON005") => Step::Over,
            (Step::Refund, "ON002") if !self.sure => Step::Over,
            _ => panic!("{name} at {step:?}: {refusal:?}"),
        }
    }

    /// Where to go on after 40001: the beginning of the transaction.
    fn again(&mut self) -> Step {
        match self.step {
            Step::Begin | Step::Write => {
                self.unmake();
                self.roll_back(self.beginning())
            }
            Step::Commit => {
                self.unmake();
                self.beginning()
            }
            Step::Cancel if self.looks => self.roll_back(Step::Look),
            Step::Close => Step::Look,
            // Here the commit may be what failed; then there is nothing to roll back, which does no harm.
            Step::Finish | Step::Keep => self.roll_back(Step::Finish),
            alone => alone,
        }
    }

    /// Deletes what the transaction made outside of the database; nobody else knows that it did.
    fn unmake(&mut self) {
        if let Some(artifact) = self.made.take() {
            self.job.delete(&artifact);
        }
    }

    fn roll_back(&mut self, then: Step) -> Step {
        self.then = then;
        Step::Rollback
    }

    fn next_item(&self) -> Step {
        match (self.late, self.items.is_empty()) {
            (true, true) => Step::Over,
            (false, true) => Step::Finish,
            _ => Step::Begin,
        }
    }

    /// The first step of an item's transaction.
    fn beginning(&self) -> Step {
        if self.late { Step::Write } else { Step::Begin }
    }

    fn tear_down(&mut self) -> Step {
        self.sure = true;
        if self.tears_down {
            Step::Refund
        } else {
            Step::Over
        }
    }

    fn end(&mut self, status: &'static str) -> Step {
        self.ended = Some(status);
        Step::Over
    }
}
