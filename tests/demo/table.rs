//! The results on a terminal: the table side by side, the trouble, and the queries.

use std::io::IsTerminal;

use crate::case::Outcome;
use crate::proof::{Proven, Want};
use crate::verdict::Trouble;

const NAME_WIDTH: usize = 36;
const COLUMN_WIDTH: usize = 24;
/// What stands behind a number that must not be so.
const WRONG: &str = " !";

/// `1234.5` as people write it.
pub fn number(value: f64, unit: &str) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if unit.is_empty() {
        text
    } else {
        format!("{text} {unit}")
    }
}

/// The value of this question in this run, marked if it is wrong.
fn cell(outcome: &Outcome, name: &str) -> String {
    let found = outcome.proven.iter().find(|proven| proven.name == name);
    found.map_or_else(
        || "-".to_owned(),
        |proven| {
            let mark = if proven.is_right(outcome.case.orders) {
                ""
            } else {
                WRONG
            };
            format!("{}{mark}", number(proven.value, proven.unit))
        },
    )
}

/// Every question that any run was asked, in their order, times last.
pub fn all_questions(outcomes: &[Outcome]) -> Vec<&Proven> {
    let mut all: Vec<&Proven> = Vec::new();
    for proven in outcomes.iter().flat_map(|outcome| &outcome.proven) {
        if !all.iter().any(|known| known.name == proven.name) {
            all.push(proven);
        }
    }
    // What was waited comes after what must be so, also where the runs were asked unlike things.
    all.sort_by_key(|proven| proven.unit == "ms");
    all
}

/// The table side by side: the answers first, then the trouble.
pub fn print(outcomes: &[Outcome]) {
    let rule = format!(
        "  {}",
        "-".repeat(NAME_WIDTH + COLUMN_WIDTH * outcomes.len())
    );
    println!();
    line(
        "",
        outcomes.iter().map(|outcome| outcome.case.title.to_owned()),
    );
    println!("{rule}");
    for question in all_questions(outcomes) {
        line(
            question.name,
            outcomes.iter().map(|outcome| cell(outcome, question.name)),
        );
    }
    println!("{rule}");
    let troubles: Vec<Trouble> = outcomes.iter().map(Trouble::of).collect();
    for (name, count) in trouble_rows() {
        line(
            name,
            troubles.iter().map(|trouble| number(count(trouble), "")),
        );
    }
    println!("{rule}");
}

fn line(name: &str, cells: impl Iterator<Item = String>) {
    let colours = std::io::stdout().is_terminal();
    print!("  {name:<NAME_WIDTH$}");
    for cell in cells {
        // Padded before it is coloured: the escape sequences would count as letters.
        let padded = format!("{cell:>COLUMN_WIDTH$}");
        if colours && cell.ends_with(WRONG) {
            print!("\x1b[1;31m{padded}\x1b[0m");
        } else {
            print!("{padded}");
        }
    }
    println!();
}

type Count = fn(&Trouble) -> f64;

/// The trouble that is worth a line.
pub fn trouble_rows() -> [(&'static str, Count); 12] {
    fn saw(trouble: &Trouble, outcome: &str) -> f64 {
        trouble.outcomes.get(outcome).copied().unwrap_or_default() as f64
    }
    [
        ("requests sent, retries included", |t| t.attempts as f64),
        ("service processes killed (kill -9)", |t| t.kills as f64),
        ("database backends terminated", |t| {
            t.backends_terminated as f64
        }),
        ("answers lost by the network", |t| t.answers_cut as f64),
        ("charges made but never answered", |t| t.bank_cut as f64),
        ("charges answered too late", |t| t.bank_answered_late as f64),
        ("clients that timed out", |t| saw(t, "timed_out")),
        ("told \"in progress\" (409)", |t| saw(t, "in_progress")),
        ("told \"another request\" (422)", |t| saw(t, "mismatched")),
        ("stored answers replayed", |t| saw(t, "replayed")),
        ("charges the bank recognised", |t| {
            t.bank_saw_key_again as f64
        }),
        ("looks at the bank before charging", |t| {
            t.bank_was_looked_at as f64
        }),
    ]
}

/// The queries behind the table, each with what it says in every run.
pub fn print_queries(outcomes: &[Outcome]) {
    println!("\nThe queries, over `orders`, the bank's ledger (`bank_ledger`), the plan (`asked`)");
    println!("and every answer that a client got (`saw`):");
    for question in all_questions(outcomes) {
        if question.want == Want::Any && question.unit == "ms" {
            continue;
        }
        println!("\n-- {}", question.name);
        println!("{};", question.sql);
        for outcome in outcomes {
            let value = cell(outcome, question.name);
            if value != "-" {
                println!("--   {:<34} {value:>8}", outcome.case.title);
            }
        }
    }
    println!();
}
