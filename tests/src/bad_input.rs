//! Each bad value of each argument of each function gives the contract's SQLSTATE, a message that names the argument, and
//! a HINT; nothing is written.
//!
//! The functions are given as a text. A line has a function's name and, behind ` | `, each argument with a good value;
//! `T` stands for a token.
#![allow(clippy::panic, reason = "a failed expectation is how a test fails")]

use crate::playground::Playground;
use crate::script;

/// A function, and its arguments with good values.
#[derive(Debug)]
pub struct Function {
    name: &'static str,
    arguments: Vec<(&'static str, &'static str)>,
}

/// Reads the text.
pub fn functions(table: &'static str) -> Vec<Function> {
    let argument = |cell: &'static str| match cell.split_once(' ') {
        Some(argument) => argument,
        None => panic!("no value: {cell}"),
    };
    let function = |line: &'static str| {
        let mut cells = line.split(" | ");
        let name = cells.next().unwrap_or_default();
        let arguments = cells.map(argument).collect();
        Function { name, arguments }
    };
    script::lines(table).map(function).collect()
}

/// A line `function(argument,argument)` for each function, sorted, to compare with the catalog.
pub fn declared(functions: &[Function]) -> String {
    let line = |function: &Function| {
        let names: Vec<_> = function.arguments.iter().map(|(name, _)| *name).collect();
        format!("{}({})", function.name, names.join(","))
    };
    let mut lines: Vec<String> = functions.iter().map(line).collect();
    lines.sort();
    lines.join("\n")
}

impl Function {
    fn call(&self, token: i64, bad: Option<(&str, &str)>) -> String {
        let value = |(name, good): &(&'static str, &'static str)| {
            let value = bad.filter(|(n, _)| n == name).map_or(*good, |(_, v)| v);
            match value {
                "T" => format!("{name} => {token}"),
                value => format!("{name} => {value}"),
            }
        };
        let list: Vec<String> = self.arguments.iter().map(value).collect();
        format!("select * from once.{}({})", self.name, list.join(", "))
    }
}

/// Tries each bad value beside good ones, so that no bad value hides behind another; then the good values alone, after
/// `begin`. Returns how many bad values were tried.
pub async fn all_refused(
    play: &Playground,
    functions: &[Function],
    (begin, token): (&str, i64),
    bad_values: impl Fn(&str, &str) -> Vec<(String, &'static str)>,
    stored: impl AsyncFn() -> String,
) -> usize {
    let before = stored().await;
    let (mut tried, mut wrong) = (0, Vec::new());
    for function in functions {
        for (argument, _) in &function.arguments {
            for (value, code) in bad_values(function.name, argument) {
                let sql = function.call(token, Some((argument, &value)));
                let answer = play.attempt(&sql).await;
                tried += 1;
                let is_refused = answer.as_ref().is_err_and(|refusal| {
                    let message = &refusal.message;
                    let word = argument.trim_end_matches("_key");
                    let is_short = message.len() < 1000;
                    refusal.code == code
                        && message.contains(word)
                        && is_short
                        && !refusal.hint.is_empty()
                });
                if !is_refused {
                    wrong.push(format!("{sql:.200}\n    {answer:.600?}"));
                }
            }
        }
        assert_eq!(stored().await, before, "{}", function.name);
        play.show(begin).await;
        play.show(&function.call(token, None)).await;
        play.show("rollback").await;
        assert_eq!(stored().await, before, "{}", function.name);
    }
    assert!(wrong.is_empty(), "of {tried}:\n{}", wrong.join("\n"));
    tried
}
