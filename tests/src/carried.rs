//! The settings of a client without a server session of its own. Behind a pooler in transaction mode each transaction
//! may run in another server session, so the client brings its settings along.
//!
//! `SET x` becomes `SET LOCAL x` at the beginning of each transaction from then on, as a service behind such a pooler
//! does it. The server runs a simple query of several statements in one transaction.

use std::sync::Mutex;

/// Statements that refuse to run in a transaction with others, so nothing may go before them.
const ALONE: [&str; 10] = [
    "commit prepared",
    "rollback prepared",
    "vacuum",
    "call",
    "create database",
    "drop database",
    "alter system",
    "create index concurrently",
    "drop index concurrently",
    "reindex",
];

/// What a client has set, and whether it is in a transaction.
#[derive(Debug, Default)]
pub struct Carried {
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Name of the setting, and the statement that sets it for one transaction.
    settings: Vec<(String, String)>,
    open: bool,
}

/// What is sent instead of a text of statements.
#[derive(Debug)]
pub struct Sent {
    /// The text.
    pub sql: String,
    /// The settings whose values are the answers of these statements, for `select set_config(...)`.
    asked: Vec<(usize, String)>,
    /// The state once all statements are done.
    after: State,
    /// Whether a transaction is open if a statement fails.
    open_if_failed: bool,
}

/// The kind of one statement.
enum Kind<'a> {
    Begin,
    End,
    Set(&'a str, String),
    SetByCall(&'a str, String),
    Reset(&'a str),
    Alone,
    Other,
}

impl Carried {
    /// What to send for `sql`.
    #[must_use]
    pub fn send(&self, sql: &str) -> Sent {
        let before = self.state().clone();
        let mut after = before.clone();
        let mut parts: Vec<String> = Vec::new();
        let (mut fresh, mut asked, mut open_if_failed) = (!before.open, Vec::new(), before.open);
        for (n, statement) in statements(sql).into_iter().enumerate() {
            let kind = kind(statement);
            if fresh && !matches!(kind, Kind::Alone) {
                // A setting that this statement resets is not set before it.
                let held = |name: &str| !matches!(kind, Kind::Reset(reset) if reset == name);
                let settings = after.settings.iter().filter(|(name, _)| held(name));
                parts.extend(settings.map(|(_, set)| set.clone()));
            }
            fresh = false;
            match kind {
                Kind::Begin => {
                    after.open = true;
                    open_if_failed |= n == 0;
                    parts.push(statement.to_owned());
                }
                Kind::End => {
                    after.open = false;
                    fresh = true;
                    open_if_failed &= n > 0;
                    parts.push(statement.to_owned());
                }
                Kind::Set(name, set) => {
                    after.note(name, set.clone());
                    parts.push(set);
                }
                Kind::SetByCall(name, call) => {
                    asked.push((parts.len(), name.to_owned()));
                    parts.push(call);
                }
                Kind::Reset("all") => after.settings.clear(),
                Kind::Reset(name) => {
                    after.settings.retain(|(set, _)| set != name);
                    // Resets what was set above, or earlier, for this transaction.
                    parts.push(match name {
                        "role" => "set local role none".to_owned(),
                        "session authorization" => format!("set local {name} default"),
                        _ => format!("set local {name} to default"),
                    });
                }
                Kind::Alone | Kind::Other => parts.push(statement.to_owned()),
            }
        }
        if !before.open && parts.len() == 1 && parts[0].starts_with("set local ") {
            // A lone SET LOCAL would warn that it does nothing; two statements are a transaction.
            parts.push("select".to_owned());
        }
        Sent {
            sql: parts.join(";\n"),
            asked,
            after,
            open_if_failed,
        }
    }

    /// Notes that `sent` was done; `answers` are the rows of each of its statements.
    pub fn done(&self, sent: Sent, answers: &[String]) {
        let mut after = sent.after;
        for (statement, name) in sent.asked {
            if let Some(answer) = answers.get(statement) {
                let set = format!("set local {name} = '{}'", answer.replace('\'', "''"));
                after.note(&name, set);
            }
        }
        *self.state() = after;
    }

    /// Notes that `sent` failed.
    pub fn failed(&self, sent: &Sent) {
        self.state().open = sent.open_if_failed;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, name: &str, set: String) {
        self.settings.retain(|(known, _)| known != name);
        // The level of a transaction is set before anything else is done in it.
        let first = name.contains("transaction_");
        let at = if first { 0 } else { self.settings.len() };
        self.settings.insert(at, (name.to_owned(), set));
    }
}

fn kind(statement: &str) -> Kind<'_> {
    let lower = statement.to_ascii_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    let starts = |text: &str| lower.starts_with(text);
    // A block that commits by itself runs alone, too, without the carried settings.
    let commits = words.first() == Some(&"do") && lower.contains("commit;");
    if commits || ALONE.iter().any(|alone| starts(alone)) {
        return Kind::Alone;
    }
    match words.as_slice() {
        ["begin", ..] | ["start", "transaction", ..] => Kind::Begin,
        ["rollback", "to", ..] => Kind::Other,
        ["commit" | "end" | "rollback" | "abort", ..] | ["prepare", "transaction", ..] => Kind::End,
        ["set", "local" | "transaction" | "constraints", ..]
        | ["set", "session", "characteristics", ..] => Kind::Other,
        ["set", "session", "authorization", ..] => Kind::Set(
            "session authorization",
            format!("set local{}", &statement["set".len()..]),
        ),
        ["set", ..] => set(statement),
        ["reset", ..] => {
            let name = statement["reset".len()..].trim();
            Kind::Reset(name)
        }
        _ if starts("select set_config('") && lower.ends_with(", false)") => {
            let name = statement.split('\'').nth(1).unwrap_or_default();
            let call = &statement[..statement.len() - "false)".len()];
            Kind::SetByCall(name, format!("{call}true)"))
        }
        _ => Kind::Other,
    }
}

/// `set [session] name = value`, for one transaction.
fn set(statement: &str) -> Kind<'_> {
    let rest = statement["set".len()..].trim_start();
    let rest = match rest.get(..8) {
        Some(word) if word.eq_ignore_ascii_case("session ") => rest[8..].trim_start(),
        _ => rest,
    };
    let end = rest
        .find(|c: char| c.is_whitespace() || c == '=')
        .unwrap_or(rest.len());
    let name = &rest[..end];
    // `default_transaction_...` counts only for later transactions, so `transaction_...` is set in the present
    // transaction.
    let now = name
        .strip_prefix("default_")
        .filter(|now| now.starts_with("transaction_"));
    let local = format!("set local {}{}", now.unwrap_or(name), &rest[end..]);
    Kind::Set(name, local)
}

/// The statements of a text: what is between semicolons outside of quotes and comments.
fn statements(sql: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut from, mut at) = (0, 0);
    while at < sql.len() {
        let rest = &sql[at..];
        let skipped = if rest.starts_with('\'') {
            let escapes = at > 0 && matches!(sql.as_bytes()[at - 1], b'e' | b'E');
            quoted(rest, '\'', escapes)
        } else if rest.starts_with('"') {
            quoted(rest, '"', false)
        } else if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('$') {
            dollar_quoted(rest)
        } else if rest.starts_with(';') {
            found.push(sql[from..at].trim());
            from = at + 1;
            1
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += skipped;
    }
    found.push(sql[from..].trim());
    found.retain(|statement| !statement.is_empty());
    found
}

/// The length of a quoted text with its quotes.
fn quoted(text: &str, quote: char, escapes: bool) -> usize {
    let mut skip = false;
    for (at, c) in text.char_indices().skip(1) {
        if skip {
            skip = false;
        } else if escapes && c == '\\' {
            skip = true;
        } else if c == quote {
            // A doubled quote begins another quoted text at once.
            return at + 1;
        }
    }
    text.len()
}

fn dollar_quoted(text: &str) -> usize {
    let Some(end) = text[1..].find('$') else {
        return 1;
    };
    let tag = &text[..end + 2];
    let is_tag = tag[1..=end]
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_tag || tag[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return 1;
    }
    text[tag.len()..]
        .find(tag)
        .map_or(text.len(), |close| close + 2 * tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let sql = "begin; select ';', E'\\';', \";\" -- ;\n; do $a$ ; $$;$$ $a$; /* ; */ commit;";
        let found = statements(sql);
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0], "begin");
        assert!(found[2].starts_with("do $a$") && found[2].ends_with("$a$"));
        assert_eq!(statements("select $1, $2"), ["select $1, $2"]);
    }

    #[test]
    fn a_setting_comes_along_into_each_transaction() {
        let carried = Carried::default();
        let sent = carried.send("set lock_timeout = '1ms'");
        assert_eq!(sent.sql, "set local lock_timeout = '1ms';\nselect");
        carried.done(sent, &[]);
        let sent = carried.send("begin; select 1; commit; select 2");
        let set = "set local lock_timeout = '1ms'";
        assert_eq!(
            sent.sql,
            format!("{set};\nbegin;\nselect 1;\ncommit;\n{set};\nselect 2")
        );
        carried.done(sent, &[]);
        let sent = carried.send("begin");
        carried.done(sent, &[]);
        assert_eq!(carried.send("select 1").sql, "select 1");
        let sent = carried.send("select 1/0");
        carried.failed(&sent);
        assert_eq!(carried.send("rollback").sql, "rollback");
    }

    #[test]
    fn the_level_comes_first_and_a_reset_ends_it() {
        let carried = Carried::default();
        for sql in [
            "set role bob",
            "set default_transaction_isolation = 'serializable'",
        ] {
            let sent = carried.send(sql);
            carried.done(sent, &[]);
        }
        let sent = carried.send("select 1");
        let level = "set local transaction_isolation = 'serializable'";
        assert_eq!(sent.sql, format!("{level};\nset local role bob;\nselect 1"));
        let sent = carried.send("reset role");
        assert_eq!(sent.sql, format!("{level};\nset local role none"));
        carried.done(sent, &[]);
        assert_eq!(carried.send("select 1").sql, format!("{level};\nselect 1"));
    }

    #[test]
    fn a_setting_by_call_is_kept_as_its_value() {
        let carried = Carried::default();
        let set = "select set_config('once.fake_now', (now() + '1 h')::text, false); select 7";
        let sent = carried.send(set);
        assert_eq!(
            sent.sql,
            "select set_config('once.fake_now', (now() + '1 h')::text, true);\nselect 7"
        );
        carried.done(sent, &["2030-01-01".to_owned(), "7".to_owned()]);
        assert_eq!(
            carried.send("select 1").sql,
            "set local once.fake_now = '2030-01-01';\nselect 1"
        );
    }
}
