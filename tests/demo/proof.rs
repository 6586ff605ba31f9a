//! Questions to a run's database, each one SQL; what they are is in the stories' own folders.
//!
//! Invariant: nothing in the table of results comes from anywhere but these queries, so a reader
//! can run them (`--keep`) and get the same numbers.

use anyhow::{Context, Result};
use serde::Serialize;
use tokio_postgres::Client;

/// How bad it is when the number is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// Just told.
    Any,
    /// Anything but 0 is a failure.
    Zero,
    /// Must equal the number that was asked for.
    All,
}

#[derive(Clone, Debug)]
pub struct Question {
    pub name: &'static str,
    pub want: Want,
    pub unit: &'static str,
    pub sql: String,
}

/// A question and what the database said.
#[derive(Clone, Debug, Serialize)]
pub struct Proven {
    pub name: &'static str,
    pub want: Want,
    pub unit: &'static str,
    pub sql: String,
    pub value: f64,
}

impl Proven {
    pub fn is_right(&self, asked: usize) -> bool {
        match self.want {
            Want::Any => true,
            Want::Zero => self.value == 0.0,
            Want::All => self.value == asked as f64,
        }
    }
}

pub fn question(name: &'static str, want: Want, sql: impl Into<String>) -> Question {
    Question {
        name,
        want,
        unit: "",
        sql: sql.into(),
    }
}

/// How long it took, from a query that gives `taken` in seconds, a row each.
pub fn times([p50, p99]: [&'static str; 2], query: &str) -> [Question; 2] {
    [(p50, 0.5), (p99, 0.99)].map(|(name, share)| Question {
        name,
        want: Want::Any,
        unit: "ms",
        sql: format!(
            "select 1000 * percentile_cont({share}) within group (order by taken)\nfrom ({query}) waited"
        ),
    })
}

/// How long it took those clients from their first request to their final answer, backoff and all;
/// `clients` are SQL literals.
pub fn latencies(names: [&'static str; 2], clients: &str) -> [Question; 2] {
    let query = format!(
        "select max(answered_s) - min(sent_s) as taken from saw\n\
         \x20     where client in ({clients})\n\
         \x20     group by key, client having bool_or(outcome in ('created', 'replayed'))"
    );
    times(names, &query)
}

/// Asks everything.
pub async fn ask(client: &Client, questions: Vec<Question>) -> Result<Vec<Proven>> {
    let mut proven = Vec::new();
    for Question {
        name,
        want,
        unit,
        sql,
    } in questions
    {
        let row = client
            .query_one(&format!("select coalesce(({sql})::float8, 0)"), &[])
            .await
            .with_context(|| format!("the query for \"{name}\""))?;
        proven.push(Proven {
            name,
            want,
            unit,
            sql,
            value: row.get(0),
        });
    }
    Ok(proven)
}
