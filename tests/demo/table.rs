//! The results on a terminal: the table side by side, the trouble, and the queries.

use std::io::IsTerminal;

use crate::proof::{Proven, Want};
use crate::story::{Run, Story};

const NAME_WIDTH: usize = 45;
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
fn cell(run: &Run, name: &str) -> String {
    let found = run.proven.iter().find(|proven| proven.name == name);
    found.map_or_else(
        || "-".to_owned(),
        |proven| {
            let mark = if proven.is_right(run.card.asked) {
                ""
            } else {
                WRONG
            };
            format!("{}{mark}", number(proven.value, proven.unit))
        },
    )
}

/// Every question that any run was asked, in their order, times last.
pub fn all_questions(runs: &[Run]) -> Vec<&Proven> {
    let mut all: Vec<&Proven> = Vec::new();
    for proven in runs.iter().flat_map(|run| &run.proven) {
        if !all.iter().any(|known| known.name == proven.name) {
            all.push(proven);
        }
    }
    // What was waited comes after what must be so, also where the runs were asked unlike things.
    all.sort_by_key(|proven| proven.unit == "ms");
    all
}

/// The table side by side: the answers first, then the trouble.
pub fn print(story: &Story) {
    let runs = &story.runs;
    let rule = format!("  {}", "-".repeat(NAME_WIDTH + COLUMN_WIDTH * runs.len()));
    println!();
    line("", runs.iter().map(|run| run.card.title.to_owned()));
    println!("{rule}");
    for question in all_questions(runs) {
        line(
            question.name,
            runs.iter().map(|run| cell(run, question.name)),
        );
    }
    println!("{rule}");
    for (name, counts) in went_through(runs) {
        line(name, counts.map(|count| number(count, "")));
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

/// The lines of trouble, each with what every run met.
pub fn went_through(
    runs: &[Run],
) -> impl Iterator<Item = (&'static str, impl Iterator<Item = f64>)> {
    let names = runs.first().map_or(&[][..], |run| &run.went_through);
    names.iter().enumerate().map(move |(at, (name, _))| {
        let counts = runs
            .iter()
            .filter_map(move |run| run.went_through.get(at))
            .map(|(_, count)| *count);
        (*name, counts)
    })
}

/// The queries behind the table, each with what it says in every run.
pub fn print_queries(story: &Story) {
    println!("\n{}. The queries, over {}:", story.title, story.evidence);
    for question in all_questions(&story.runs) {
        if question.want == Want::Any && question.unit == "ms" {
            continue;
        }
        println!("\n-- {}", question.name);
        println!("{};", question.sql);
        for run in &story.runs {
            let value = cell(run, question.name);
            if value != "-" {
                println!("--   {:<34} {value:>8}", run.card.title);
            }
        }
    }
    println!();
}
