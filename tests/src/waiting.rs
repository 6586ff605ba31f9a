//! Statements of many sessions at once, and statements that have to wait.
//!
//! A wait is seen in the server before the test goes on, so that no test depends on who is faster.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation is how a test fails"
)]

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::playground::{Playground, Refusal};
use crate::race;

type Answer = Result<String, Refusal>;

/// A statement that waits for a lock of another session.
pub struct Waiting {
    task: JoinHandle<(Playground, Answer)>,
}

impl Waiting {
    /// Sends `sql` through `session`. Use this for a statement that waits only briefly: a look at the server may come
    /// too late.
    pub fn send(session: Playground, sql: &str) -> Waiting {
        let sql = sql.to_owned();
        let task = tokio::spawn(async move {
            let answer = session.attempt(&sql).await;
            (session, answer)
        });
        Waiting { task }
    }

    /// Like `send`, but returns once the server shows that the statement waits.
    pub async fn begin(watcher: &Playground, session: Playground, sql: &str) -> Waiting {
        let asked = race::Session::of(&session.client).await.unwrap();
        let waiting = Waiting::send(session, sql);
        let aside = watcher.aside().await;
        race::wait_until_waiting(aside.as_ref().unwrap_or(&watcher.client), asked)
            .await
            .unwrap();
        waiting
    }

    /// The session again, and the answer of its statement.
    pub async fn end(self) -> (Playground, Answer) {
        self.task.await.unwrap()
    }
}

/// Opens `count` more sessions, none of which waits for long.
pub async fn sessions(play: &Playground, count: usize) -> Vec<Arc<Playground>> {
    let mut sessions = Vec::with_capacity(count);
    for _ in 0..count {
        let session = play.another().await;
        session.show("set lock_timeout = '5s'").await;
        sessions.push(Arc::new(session));
    }
    sessions
}

/// Sends a statement through each session at the same time; the answers in the sessions' order.
pub async fn at_once(sessions: &[Arc<Playground>], sql: impl Fn(usize) -> String) -> Vec<Answer> {
    let tasks: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(i, session)| {
            let (session, sql) = (Arc::clone(session), sql(i));
            tokio::spawn(async move { session.attempt(&sql).await })
        })
        .collect();
    let mut answers = Vec::with_capacity(tasks.len());
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// The code of a refusal; empty where there is none.
pub fn code<T>(answer: &Result<T, Refusal>) -> &str {
    answer
        .as_ref()
        .err()
        .map_or("", |refusal| refusal.code.as_str())
}
