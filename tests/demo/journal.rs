//! What happened in one run, as the driver saw it: every answer of a client, every event of the
//! processes and the network. Times are milliseconds since the run's load began.
//!
//! Invariant: entries are only added; the proof and the report read the same list.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// How one attempt of a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 2xx, made by this attempt.
    Created,
    /// 2xx, marked as the stored answer of an earlier attempt.
    Replayed,
    /// 409 with Retry-After, or 202: ask again.
    InProgress,
    /// 409 without Retry-After.
    Parked,
    /// 422.
    Mismatched,
    /// 410.
    Gone,
    /// 402: not made, for good.
    Declined,
    /// 5xx: try again.
    ServerError,
    /// Any other 4xx: the demo itself is wrong.
    Refused,
    /// No answer within the client's patience.
    TimedOut,
    /// The connection broke, or nobody listened.
    ConnectionLost,
    /// The client went away on purpose.
    GaveUp,
}

impl Outcome {
    /// The client has what it came for, or will never get it.
    pub fn is_final(self) -> bool {
        use Outcome::{Created, Declined, GaveUp, Gone, Mismatched, Parked, Refused, Replayed};
        matches!(
            self,
            Created | Replayed | Mismatched | Parked | Gone | Declined | Refused | GaveUp
        )
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replayed => "replayed",
            Self::InProgress => "in_progress",
            Self::Parked => "parked",
            Self::Mismatched => "mismatched",
            Self::Gone => "gone",
            Self::Declined => "declined",
            Self::ServerError => "server_error",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::ConnectionLost => "connection_lost",
            Self::GaveUp => "gave_up",
        }
    }
}

/// One attempt of one client.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub key: String,
    /// Who asked: the names are the stories' own.
    pub client: &'static str,
    /// 0 where no amount is asked for.
    pub asked_cents: i64,
    pub sent_ms: f64,
    pub answered_ms: f64,
    pub outcome: Outcome,
    pub status: Option<u16>,
    pub body: Option<String>,
}

/// What befell a process or a connection.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A service process accepts requests.
    Up { lane: usize },
    /// It killed itself (SIGKILL) at a point between two effects.
    CrashedAt { lane: usize, point: String },
    /// The supervisor killed it (SIGKILL).
    Killed { lane: usize },
    /// It ended although nobody killed it: never expected.
    Died { lane: usize, last_words: String },
    /// It came to the end that was meant for it.
    Ended { lane: usize },
    /// The proxy dropped an answer of success on its way to the client.
    AnswerCut { lane: usize },
    /// A backend of the service's database was terminated.
    BackendTerminated,
    /// The load is over; from here on only what is unfinished goes on.
    LoadOver,
}

#[derive(Clone, Debug, Serialize)]
pub struct Event {
    pub at_ms: f64,
    #[serde(flatten)]
    pub what: What,
}

pub struct Journal {
    start: Instant,
    start_micros: u64,
    attempts: Mutex<Vec<Attempt>>,
    events: Mutex<Vec<Event>>,
}

impl Journal {
    pub fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            start: Instant::now(),
            start_micros: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX),
            attempts: Mutex::default(),
            events: Mutex::default(),
        }
    }

    /// When that moment of the wall clock was, in this run's time.
    pub fn ms_of(&self, unix_micros: u64) -> f64 {
        unix_micros.saturating_sub(self.start_micros) as f64 / 1000.0
    }

    pub fn now_ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1000.0
    }

    pub fn attempt(&self, attempt: Attempt) {
        self.attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(attempt);
    }

    pub fn event(&self, what: What) {
        let event = Event {
            at_ms: self.now_ms(),
            what,
        };
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }

    pub fn attempts(&self) -> Vec<Attempt> {
        self.attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn kills(&self) -> usize {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|event| event.what.is_kill()).count()
    }

    pub fn retries(&self) -> usize {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts
            .iter()
            .filter(|attempt| !attempt.outcome.is_final())
            .count()
    }
}

impl What {
    pub fn is_kill(&self) -> bool {
        self.killed_lane().is_some()
    }

    /// Whose process was killed.
    pub fn killed_lane(&self) -> Option<usize> {
        match self {
            Self::CrashedAt { lane, .. } | Self::Killed { lane } => Some(*lane),
            _ => None,
        }
    }
}
