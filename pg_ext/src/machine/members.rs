//! Reading one JSON object member by member: each reader notes what is wrong and answers None. A member that
//! is JSON null counts as not given.

use super::faults::{Faults, element, member, quoted};
use serde_json::{Map, Value};

/// An object of a definition and its path in it.
pub struct Members<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Members<'a> {
    /// The object at `path`; members that are not `known` are faults, so that a misspelled one is not
    /// silently a default.
    pub fn open(
        path: &str,
        value: &'a Value,
        known: &str,
        faults: &mut Faults,
    ) -> Option<Members<'a>> {
        let Value::Object(map) = value else {
            faults.add(path, format!("must be an object, not {}", kind_of(value)));
            return None;
        };
        let is_known = |name: &String| known.split(", ").any(|known| known == name);
        for name in map.keys().filter(|name| !is_known(name)) {
            let problem = format!("unknown member {}; known: {known}", quoted(name));
            faults.add(path, problem);
        }
        let path = path.to_owned();
        Some(Members { path, map })
    }

    pub fn path(&self, name: &str) -> String {
        member(&self.path, name)
    }

    /// A member that may be left out.
    pub fn opt(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub fn required(&self, name: &str, faults: &mut Faults) -> Option<&'a Value> {
        let value = self.opt(name);
        if value.is_none() {
            faults.add(&self.path(name), "is missing");
        }
        value
    }

    /// A text that is not empty.
    pub fn text(&self, name: &str, faults: &mut Faults) -> Option<String> {
        let value = self.required(name, faults)?;
        not_empty(&self.path(name), value, faults)
    }

    pub fn opt_text(&self, name: &str, faults: &mut Faults) -> Option<String> {
        not_empty(&self.path(name), self.opt(name)?, faults)
    }

    /// A text of 1 to `max` characters.
    pub fn name(&self, name: &str, max: usize, faults: &mut Faults) -> Option<String> {
        let text = self.text(name, faults)?;
        if text.chars().count() > max {
            faults.add(&self.path(name), format!("is longer than {max} characters"));
            return None;
        }
        Some(text)
    }

    /// The elements of a list that may be left out, each with its path.
    pub fn list(&self, name: &str, faults: &mut Faults) -> Vec<(String, &'a Value)> {
        let path = self.path(name);
        match self.opt(name) {
            None => Vec::new(),
            Some(Value::Array(all)) => {
                let with_path = |(i, value)| (element(&path, i), value);
                all.iter().enumerate().map(with_path).collect()
            }
            Some(other) => {
                faults.add(&path, format!("must be a list, not {}", kind_of(other)));
                Vec::new()
            }
        }
    }

    /// The member is a list without elements.
    pub fn is_empty_list(&self, name: &str) -> bool {
        matches!(self.opt(name), Some(Value::Array(all)) if all.is_empty())
    }
}

/// A text; one of a status that is not declared, the empty one included, is found by a later check.
pub fn text_of(path: &str, value: &Value, faults: &mut Faults) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        other => {
            faults.add(path, format!("must be a text, not {}", kind_of(other)));
            None
        }
    }
}

fn not_empty(path: &str, value: &Value, faults: &mut Faults) -> Option<String> {
    let text = text_of(path, value, faults)?;
    if text.is_empty() {
        faults.add(path, "must not be empty");
        return None;
    }
    Some(text)
}

/// A column's value: a text, a number or a boolean, as a text that the column's type reads.
pub fn scalar(path: &str, value: &Value, faults: &mut Faults) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(boolean) => Some(boolean.to_string()),
        other => {
            let kind = kind_of(other);
            faults.add(
                path,
                format!("must be a text, a number or a boolean, not {kind}"),
            );
            None
        }
    }
}

/// What a value is, in words.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
