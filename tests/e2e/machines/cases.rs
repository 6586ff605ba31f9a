//! A definition that is right, and tables of cases that change it: each has a name, what is changed, and the DETAIL
//! lines that it gets, word for word.

use crate::playground::Playground;
use serde_json::{Value, json};

pub const TABLES: &str = "
create table job (
    id bigint primary key, customer text not null, status text not null, version bigint not null,
    cancelling boolean not null, n int, note text);
create table item (
    id bigint primary key, job_id bigint not null, settled text, points bigint not null, state text);
create table wallet (customer text primary key, points bigint not null);";

/// A machine that has one of everything.
pub fn right() -> Value {
    json!({
        "machine": "m", "table": "job", "id": "id", "status": "status", "version": "version",
        "status_types": ["new", "ready", "running", "done", "failed", "cancelled"],
        "terminal": ["done", "cancelled"],
        "transitions": [
            {"from": ["new"], "to": "ready", "when": "n > 0"},
            {"from": ["failed"], "to": "new"}
        ],
        "steps": [{
            "step_key": "run", "status": "ready", "claim_state": {"worker": ["running", "ready"]},
            "successful_state": {"worker": "done"}, "lease": "30 seconds", "action": {"handler": "h"}
        }],
        "cancel": {"flag": "cancelling", "to": "cancelled"},
        "refund": {
            "items": "item", "item_id": "id", "subject": "job_id", "marker": "settled", "marked": "returned",
            "when": "state = 'ok'", "amount": "points", "wallet": "wallet", "wallet_id": "customer",
            "account": "customer", "balance": "points"
        }
    })
}

/// The call that registers a definition.
pub fn define(definition: &Value) -> String {
    format!("select once.machine_define($def${definition}$def$)")
}

/// A database with the tables.
pub async fn open() -> Playground {
    let play = Playground::open().await;
    play.show(TABLES).await;
    play
}

/// The DETAIL lines of a definition; none where it is accepted.
pub async fn faults(play: &Playground, name: &str, definition: &Value) -> Vec<String> {
    let Err(refusal) = play.attempt(&define(definition)).await else {
        return Vec::new();
    };
    refusal.tells("ON003", &[], name);
    let lines: Vec<_> = refusal.detail.lines().map(str::to_owned).collect();
    let (s, count) = (if lines.len() == 1 { "" } else { "s" }, lines.len());
    let whose = match definition["machine"].as_str() {
        Some(name) if !name.is_empty() && name.chars().count() <= 100 => {
            format!("the definition of machine \"{name}\"")
        }
        _ => "the definition of a machine".to_owned(),
    };
    let message = format!("{whose} has {count} fault{s}");
    assert_eq!(refusal.message, message, "{name}");
    lines
}

/// Sets a member, or adds one to an object or (as `-`) to a list.
fn set(definition: &mut Value, path: &str, value: Value) {
    let (parent, member) = path.rsplit_once('/').unwrap();
    match definition.pointer_mut(parent).unwrap() {
        Value::Array(list) if member == "-" => list.push(value),
        Value::Array(list) => list[member.parse::<usize>().unwrap()] = value,
        object => object[member] = value,
    }
}

/// Takes a member away.
fn remove(definition: &mut Value, path: &str) {
    let (parent, member) = path.rsplit_once('/').unwrap();
    let object = definition.pointer_mut(parent).unwrap();
    object.as_object_mut().unwrap().remove(member).unwrap();
}

/// The right definition with these changes, each a line `/path = value` or `/path gone`.
pub fn with(changes: &str) -> Value {
    let mut definition = right();
    for line in changes.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if let Some(path) = line.strip_suffix(" gone") {
            remove(&mut definition, path);
            continue;
        }
        let (path, value) = line.split_once(" = ").unwrap();
        let value = serde_json::from_str(value).unwrap_or_else(|e| panic!("{line}: {e}"));
        set(&mut definition, path, value);
    }
    definition
}

/// Checks each case of a table. A case begins with `# name`. Of the lines below it those with a `/` change the
/// definition, see [`with`]; each `! line` is one of the faults that it has then, in order, and without any it is
/// accepted. All others are SQL that is run before and rolled back afterwards.
pub async fn cases(play: &Playground, table: &str) {
    let lines: Vec<_> = table.lines().map(str::trim).collect();
    for case in lines.chunk_by(|_, next| !next.starts_with("# ")) {
        let Some(name) = case[0].strip_prefix("# ") else {
            assert_eq!(case.concat(), "", "before the first case");
            continue;
        };
        let (mut changes, mut expected) = (String::new(), Vec::new());
        let mut setup = format!("begin; -- {name}\n");
        for line in &case[1..] {
            match line.strip_prefix("! ") {
                Some(fault) => expected.push(fault),
                None if line.starts_with('/') => changes += &format!("{line}\n"),
                None => setup += &format!("{line}\n"),
            }
        }
        play.show(&setup).await;
        let found = faults(play, name, &with(&changes)).await;
        assert_eq!(found, expected, "{name}");
        play.show("rollback").await;
    }
}

/// The table once for each of the rows, which are separated by `//` or a new line; their columns, separated by `|`,
/// are written in the places of `{0}` and so on.
pub async fn each(play: &Playground, rows: &str, table: &str) {
    for row in rows.lines().flat_map(|line| line.split("//")) {
        let mut cases_of_row = table.to_owned();
        for (i, column) in row.split('|').enumerate() {
            cases_of_row = cases_of_row.replace(&format!("{{{i}}}"), column.trim());
        }
        if !row.trim().is_empty() {
            cases(play, &cases_of_row).await;
        }
    }
}
