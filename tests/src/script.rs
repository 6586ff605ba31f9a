//! Statements and their answers as one text, which is read and written more easily than a table of literals.
//!
//! A line is a statement, `name: statement` or, behind four spaces, a line of the answer to the statement before; `--`
//! begins a comment.
#![allow(clippy::panic, reason = "a table that is no table ends the test")]

const INDENT: &str = "    ";

/// A statement, who it is for or about (may be empty), and what it must answer.
#[derive(Debug)]
pub struct Step {
    /// A word.
    pub name: &'static str,
    /// One line.
    pub sql: &'static str,
    /// Its lines.
    pub answer: String,
}

/// The lines, without comments and empty lines.
pub fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    let lines = text.lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with("--"))
}

/// The statements with their answers.
pub fn steps(text: &'static str) -> impl Iterator<Item = Step> {
    let mut lines = lines(text).peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let named = line
            .split_once(": ")
            .filter(|(name, _)| !name.contains(' '));
        let (name, sql) = named.unwrap_or(("", line));
        let mut answer = Vec::new();
        while let Some(told) = lines.next_if(|next| next.starts_with(INDENT)) {
            answer.push(&told[INDENT.len()..]);
        }
        let answer = answer.join("\n");
        Some(Step { name, sql, answer })
    })
}

/// The rows of a table: a line each, its columns separated by ` | `, whatever the indent. A line that begins with `| `
/// goes on with the row before.
pub fn rows<const N: usize>(table: &str) -> Vec<[&str; N]> {
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for line in table.lines().map(str::trim).filter(|l| !l.is_empty()) {
        match (line.strip_prefix("| "), rows.last_mut()) {
            (Some(rest), Some(row)) => row.extend(rest.split(" | ").map(str::trim)),
            _ => rows.push(line.split(" | ").map(str::trim).collect()),
        }
    }
    let wrong = |row: Vec<&str>| -> [&str; N] { panic!("not {N} columns: {row:?}") };
    let rows = rows.into_iter();
    rows.map(|row| row.try_into().unwrap_or_else(wrong))
        .collect()
}
