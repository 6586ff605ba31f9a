//! What is wrong with a definition: one line for each fault, in the order in which the checks find them,
//! which is the same every time. A line begins with the member's path.

use crate::error::{Error, Kind};

/// The longest piece of somebody's text that a line shows, in characters.
const SHOWN: usize = 100;

/// Faults found so far.
#[derive(Default)]
pub struct Faults {
    lines: Vec<String>,
}

impl Faults {
    /// Notes one fault of the member at `path` (empty: of the whole definition).
    pub fn add(&mut self, path: &str, problem: impl AsRef<str>) {
        let problem = problem.as_ref();
        let line = match path {
            "" => problem.to_owned(),
            path => format!("{path}: {problem}"),
        };
        // A name or a server's message must not make two lines of one fault.
        self.lines.push(line.replace(char::is_control, " "));
    }

    /// Everything found.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }

    /// Everything found, as the error that the caller gets; None when nothing is wrong.
    pub fn into_error(self, machine: Option<&str>) -> Option<Error> {
        let count = match self.lines.len() {
            0 => return None,
            1 => "1 fault".to_owned(),
            n => format!("{n} faults"),
        };
        let whose = match machine {
            Some(name) => format!("the definition of machine {}", quoted(name)),
            None => "the definition of a machine".to_owned(),
        };
        Some(
            Error::new(Kind::InvalidDefinition, format!("{whose} has {count}"))
                .detail(self.lines.join("\n"))
                .hint("Each line of the detail names a member and what is wrong with it. Nothing was changed."),
        )
    }
}

/// A text between quotation marks, cut where it is too long to read.
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
