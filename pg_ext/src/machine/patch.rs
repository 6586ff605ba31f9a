//! A patch: the columns that a move sets besides status and version. A move by an UPDATE statement converts the values
//! with jsonb_populate_record. A move without a statement (`direct.rs`) uses the input functions of the columns' types.

use super::model::{Machine, kept};
use super::relation::UserColumn;
use crate::call::{shown, varlena};
use crate::error::{Error, Result};
use crate::json::{self, Members};
use pgrx::pg_sys::Datum;
use std::borrow::Cow;
use std::rc::Rc;

const HINT: &str =
    "Give a JSON object of columns of the row, without its id, status, version and cancel flag.";

/// A text in the database's encoding.
type Text<'a> = Cow<'a, [u8]>;

/// The columns that a call's patch sets; by default none.
#[derive(Default)]
pub struct Patch<'a> {
    json: &'a [u8],
    /// Name of each member, and its value as JSON.
    members: Vec<(Text<'a>, &'a [u8])>,
    /// Sorted by name.
    pub columns: Rc<Vec<UserColumn>>,
}

impl<'a> Patch<'a> {
    /// Reads a json argument.
    pub fn read(machine: &Machine, patch: Option<Datum>) -> Result<Patch<'a>> {
        let Some(json) = patch.map(varlena) else {
            return Ok(Patch::default());
        };
        let not_object = || bad("must be a JSON object".to_owned());
        let all: Vec<_> = Members::of(json).ok_or_else(not_object)?.collect();
        // The names have quotation marks here, so no two lists of names have the same concatenation.
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let columns = || columns_of(machine, &names).map(Rc::new);
        let columns = kept(&machine.patched, &names.concat(), columns)?;
        let members = all.into_iter().map(|(name, value)| (decoded(name), value));
        Ok(Patch {
            json,
            members: members.collect(),
            columns,
        })
    }

    /// The patch as jsonb; None: it sets nothing.
    pub fn value(&self) -> Result<Option<Datum>> {
        match self.columns.is_empty() {
            true => Ok(None),
            false => json::to_jsonb(self.json).map(Some),
        }
    }

    /// The value of a member as a text; Some(None) is NULL. None: no such member, or its value is no valid jsonb.
    pub fn member(&self, name: &[u8]) -> Option<Option<Text<'a>>> {
        // Of repeated members the last one counts.
        let mut members = self.members.iter().rev();
        let (_, value) = members.find(|(member, _)| member.as_ref() == name)?;
        as_text(value).ok()
    }

    /// Part of the key under which the machine keeps a statement or a `Direct`.
    pub fn key(&self) -> String {
        self.names().join(",")
    }

    /// Quoted.
    fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|c| c.name.as_str()).collect()
    }

    /// The patch's part of SET; parameter `$n` is the patch. The row itself is the base of the populated record.
    pub fn assignments(&self, n: usize) -> String {
        let names = self.names();
        if names.is_empty() {
            return String::new();
        }
        let values: Vec<_> = names.iter().map(|c| format!("p.{c}")).collect();
        format!(
            ", ({}) = (SELECT {} FROM pg_catalog.jsonb_populate_record(t.*, ${n}) p)",
            names.join(", "),
            values.join(", ")
        )
    }
}

fn decoded(name: &[u8]) -> Text<'_> {
    json::string(name).unwrap_or(Cow::Borrowed(name))
}

/// The text from which jsonb_populate_record makes a column's value. None is NULL. For a string this text is the
/// string's content. For every other value it is what jsonb prints. jsonb prints true, false and most short numbers
/// unchanged. It may change a number that has an exponent or begins with -0.
fn as_text(value: &[u8]) -> Result<Option<Text<'_>>> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let same = value.len() < 100
        && !value.starts_with(b"-0")
        && digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'.'));
    Ok(match (value, json::string(value)) {
        (b"null", _) => None,
        (_, Some(text)) => Some(text),
        (b"true" | b"false", _) => Some(Cow::Borrowed(value)),
        _ if same => Some(Cow::Borrowed(value)),
        _ => Some(Cow::Owned(json::jsonb_text(json::to_jsonb(value)?))),
    })
}

/// The columns of these members, without repeats.
fn columns_of(machine: &Machine, names: &[&[u8]]) -> Result<Vec<UserColumn>> {
    let shape = &machine.shape;
    let ours = [&shape.id, &shape.status].into_iter();
    let ours: Vec<_> = ours.chain(&shape.version).chain(&shape.flag).collect();
    let column = |name: &&[u8]| {
        let key = shown(&decoded(name));
        let table = &shape.table;
        let unknown = || format!("names \"{key}\", which is no column of {}", table.name);
        let column = table.column(&key).ok_or_else(|| bad(unknown()))?;
        match ours.iter().any(|c| c.number == column.number) {
            true => Err(bad(format!("must not set \"{key}\""))),
            false => Ok(column),
        }
    };
    let mut columns = names.iter().map(column).collect::<Result<Vec<_>>>()?;
    columns.sort_by(|a, b| a.name.cmp(&b.name));
    columns.dedup();
    Ok(columns)
}

fn bad(problem: String) -> Error {
    Error::bad_argument("patch", problem, HINT)
}
