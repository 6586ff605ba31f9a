//! The whole-system check: reads the named invariants of invariants.sql and asks each.

use super::door::{Fault, Session};

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

/// The invariants that are violated, each with the first rows that violate it, in one snapshot.
pub async fn violated(session: &Session<'_>, when: When) -> Result<Vec<String>, Fault> {
    session
        .rows("begin isolation level repeatable read")
        .await?;
    let found = violated_here(session, when).await?;
    session.rows("rollback").await?;
    Ok(found)
}

/// The same inside of the session's open transaction.
pub async fn violated_here(session: &Session<'_>, when: When) -> Result<Vec<String>, Fault> {
    let mut violated = Vec::new();
    for invariant in all() {
        if invariant.when == When::Settled && when == When::Always {
            continue;
        }
        let rows = session.rows(invariant.sql).await?;
        if !rows.is_empty() {
            let shown = &rows[..rows.len().min(3)];
            violated.push(format!(
                "{}: {} rows: {shown:?}",
                invariant.name,
                rows.len()
            ));
        }
    }
    Ok(violated)
}
