//! The faults of a definition: one line each, in the order of the checks. A line begins with the path of the faulty
//! member, unless the whole definition is faulty.

use crate::error::{Error, Kind, Result};
use std::cell::RefCell;

/// A fault shows at most this many characters of each text that it quotes.
const SHOWN: usize = 100;

#[derive(Default)]
pub struct Faults {
    lines: RefCell<Vec<String>>,
}

impl Faults {
    /// Adds one fault of the member at `path`; an empty path means the whole definition.
    pub fn add(&self, path: &str, problem: impl AsRef<str>) {
        let problem = problem.as_ref();
        let line = match path {
            "" => problem.to_owned(),
            path => format!("{path}: {problem}"),
        };
        // One fault is one line, whatever a name or a server's message contains.
        let line = line.replace(char::is_control, " ");
        self.lines.borrow_mut().push(line);
    }

    /// Whether a fault of the member at `path` was added.
    pub fn has(&self, path: &str) -> bool {
        let of_path = |line: &String| line.strip_prefix(path).is_some_and(|l| l.starts_with(": "));
        self.lines.borrow().iter().any(of_path)
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into_inner()
    }

    /// Ok if there are no lines; else ON003 with the lines as DETAIL. `machine` is empty if the name could not be read.
    pub fn into_result(self, machine: &str) -> Result<()> {
        let lines = self.into_lines();
        let count = match lines.len() {
            0 => return Ok(()),
            1 => "1 fault".to_owned(),
            n => format!("{n} faults"),
        };
        let whose = match machine {
            "" => "the definition of a machine".to_owned(),
            name => format!("the definition of machine {}", quoted(name)),
        };
        let lines = lines.join("\n");
        let rules = match lines.contains("(rule ") {
            true => " The rules of claim states, 1 to 6, are in docs/reference/machine.md.",
            false => "",
        };
        Err(Error::new(Kind::InvalidDefinition, format!("{whose} has {count}"))
            .detail(lines)
            .hint(format!(
                "Each line of the detail names a member and what is wrong with it. Nothing was changed.{rules}"
            )))
    }
}

/// A text between quotation marks, cut after [`SHOWN`] characters.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => format!("\"{text}\""),
        Some((end, _)) => format!("\"{}…\"", &text[..end]),
    }
}

/// The path of a member of the object at `path`. A name that is no plain word is quoted.
pub fn member(path: &str, name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '*');
    let name = match !name.is_empty() && name.chars().all(plain) {
        true => name.to_owned(),
        false => quoted(name),
    };
    match path {
        "" => name,
        path => format!("{path}.{name}"),
    }
}

/// The path of element `i` of the list at `path`.
pub fn element(path: &str, i: usize) -> String {
    format!("{path}[{i}]")
}
