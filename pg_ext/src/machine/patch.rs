//! A patch: other columns that a move sets. A statement has the names as the catalog spells them; the values go through
//! jsonb_populate_record.

use super::model::Machine;
use super::relation::UserColumn;
use crate::call::{utf8, varlena};
use crate::error::{Error, Result};
use crate::json;
use pgrx::pg_sys::Datum;

const HINT: &str =
    "Give a JSON object of columns of the row, without its id, status, version and cancel flag.";

/// The columns that a call's patch sets.
pub struct Patch {
    /// As jsonb.
    pub value: Option<Datum>,
    /// Sorted by name.
    pub columns: Vec<UserColumn>,
}

impl Patch {
    /// Sets nothing.
    pub fn none() -> Patch {
        Patch {
            value: None,
            columns: Vec::new(),
        }
    }

    /// Reads a json argument.
    pub fn read(machine: &Machine, patch: Option<Datum>) -> Result<Patch> {
        let Some(text) = patch.map(varlena) else {
            return Ok(Patch::none());
        };
        let value = json::to_jsonb(text)?;
        let keys: MemberNames = serde_json::from_slice(&utf8(text))
            .map_err(|_| bad("must be a JSON object".to_owned()))?;
        let shape = &machine.shape;
        let ours = [
            Some(&shape.id),
            Some(&shape.status),
            shape.version.as_ref(),
            shape.flag.as_ref(),
        ];
        let mut columns = keys
            .0
            .into_iter()
            .map(|key| {
                let column = shape.table.column(&key).ok_or_else(|| {
                    bad(format!(
                        "names \"{key}\", which is no column of {}",
                        shape.table.name
                    ))
                })?;
                match ours.iter().flatten().any(|c| c.number == column.number) {
                    true => Err(bad(format!("must not set \"{key}\""))),
                    false => Ok(column),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Patch {
            value: Some(value).filter(|_| !columns.is_empty()),
            columns,
        })
    }

    /// Part of the key of a statement.
    pub fn key(&self) -> String {
        self.names().join(",")
    }

    /// Quoted.
    fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|c| c.name.as_str()).collect()
    }

    /// The rest of SET, with the patch as parameter `$n`. The row itself is the base of the populated record.
    pub fn assignments(&self, n: usize) -> String {
        match self.value {
            None => String::new(),
            Some(_) => {
                let names = self.names();
                let values: Vec<_> = names.iter().map(|c| format!("p.{c}")).collect();
                format!(
                    ", ({}) = (SELECT {} FROM pg_catalog.jsonb_populate_record(t.*, ${n}) p)",
                    names.join(", "),
                    values.join(", ")
                )
            }
        }
    }
}

fn bad(problem: String) -> Error {
    Error::bad_argument("patch", problem, HINT)
}

/// The names of an object's members; the values are skipped.
struct MemberNames(Vec<String>);

impl<'de> serde::Deserialize<'de> for MemberNames {
    fn deserialize<D: serde::Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<MemberNames, D::Error> {
        let members: std::collections::BTreeMap<String, serde::de::IgnoredAny> =
            serde::Deserialize::deserialize(from)?;
        Ok(MemberNames(members.into_keys().collect()))
    }
}
