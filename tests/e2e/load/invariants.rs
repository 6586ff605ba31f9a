//! The whole-system check: reads the named invariants of invariants.sql and asks each.

use super::door::{Fault, Row, Session};

const FILE: &str = include_str!("invariants.sql");

/// When an invariant holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// In every snapshot.
    Always,
    /// Once nothing is under way.
    Settled,
}

pub struct Invariant {
    pub name: &'static str,
    when: When,
    sql: &'static str,
}

/// All of them, in the file's order.
pub fn all() -> Vec<Invariant> {
    let mut found = Vec::new();
    for paragraph in FILE.split("\n-- ").skip(1) {
        let Some((head, sql)) = paragraph.split_once('\n') else {
            panic!("no query: {paragraph}");
        };
        let (when, name) = match head.split_once(": ") {
            Some(("always", name)) => (When::Always, name),
            Some(("settled", name)) => (When::Settled, name),
            // The rest of the file's own head.
            _ => continue,
        };
        found.push(Invariant { name, when, sql });
    }
    found
}

impl Invariant {
    /// The rows that violate it.
    pub async fn violations(&self, session: &Session<'_>) -> Result<Vec<Row>, Fault> {
        session.rows(self.sql).await
    }
}

/// The invariants that are violated, each with the first rows that violate it, in one snapshot.
pub async fn violated(session: &Session<'_>, when: When) -> Result<Vec<String>, Fault> {
    session
        .rows("begin isolation level repeatable read")
        .await?;
    let mut violated = Vec::new();
    for invariant in all() {
        if invariant.when == When::Settled && when == When::Always {
            continue;
        }
        let rows = invariant.violations(session).await?;
        if !rows.is_empty() {
            let shown = &rows[..rows.len().min(3)];
            violated.push(format!(
                "{}: {} rows: {shown:?}",
                invariant.name,
                rows.len()
            ));
        }
    }
    session.rows("rollback").await?;
    Ok(violated)
}
