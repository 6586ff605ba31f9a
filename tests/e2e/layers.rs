//! The extension's nouns import each other downwards only, in the order in which `pg_ext/src/lib.rs` lists them. The
//! client imports no web framework unless it is asked to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pg_ext/src");

/// What is above every noun: it ties the nouns together.
const SURFACE: [&str; 2] = ["lib", "exports"];

/// The modules that lib.rs declares between two of its comments.
fn declared(from: &str, to: &str) -> Vec<String> {
    let lib = read_to_string(format!("{SOURCES}/lib.rs")).unwrap();
    let (_, rest) = lib.split_once(from).expect(from);
    let (listed, _) = rest.split_once(to).expect(to);
    let module = |line: &str| Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned());
    listed.lines().filter_map(module).collect()
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// The top module that a file belongs to.
fn owner(file: &Path) -> String {
    let inside = file.strip_prefix(SOURCES).unwrap();
    let first = inside.iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The top modules that a source names after `crate::`, also within braces; comments aside.
fn named(source: &str) -> BTreeSet<String> {
    let code: Vec<_> = source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    let code = code.join("\n");
    let word = |text: &str| -> String {
        let part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        text.trim_start().chars().take_while(part).collect()
    };
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            names.insert(word(after));
            continue;
        };
        let mut depth = 0;
        names.insert(word(list));
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => drop(names.insert(word(&list[i + 1..]))),
                _ => {}
            }
        }
    }
    names
}

/// Every (module, module that it names), once.
fn arrows() -> BTreeSet<(String, String)> {
    let mut files = Vec::new();
    files_below(Path::new(SOURCES), &mut files);
    let mut arrows = BTreeSet::new();
    for file in files {
        let from = owner(&file);
        for to in named(&read_to_string(&file).unwrap()) {
            if from != to && !SURFACE.contains(&from.as_str()) {
                arrows.insert((from.clone(), to));
            }
        }
    }
    arrows
}

#[test]
fn no_noun_imports_a_later_one_and_no_shared_mechanism_imports_a_noun() {
    let nouns = declared("// Nouns", "// The C symbols");
    let place = |module: &str| nouns.iter().position(|noun| noun == module);
    let order = "shard outbox key inbox machine action cancel guard janitor metrics doctor role";
    assert_eq!(nouns.join(" "), order);
    let runs_up = |(from, to): &(String, String)| match (place(from), place(to)) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(from), Some(to)) => to > from,
    };
    let all = arrows();
    let expected = ("cancel".to_owned(), "action".to_owned());
    assert!(all.contains(&expected), "no arrow was read: {all:?}");
    let up: Vec<_> = all
        .iter()
        .filter(|arrow| runs_up(arrow))
        .map(|(from, to)| (from.as_str(), to.as_str()))
        .collect();
    assert!(up.is_empty(), "imports that run back up: {up:?}");
}

#[test]
fn the_client_without_features_has_no_more_dependencies_than_before_it_had_features() {
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(SOURCES)
        .args(["tree", "--offline", "--package", "pg-once"]);
    tree.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let told = tree.output().unwrap();
    assert!(told.status.success(), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    let crates: BTreeSet<_> = told.lines().map(|line| line.split(" (").next()).collect();
    assert!(crates.len() <= 84, "{crates:?}");
}

#[test]
fn an_import_is_read_in_each_form() {
    let source = "use crate::{a, b::{c, d},\n e};\nlet x = crate::f::g(); // crate::h\n";
    let names: Vec<_> = named(source).into_iter().collect();
    assert_eq!(names, ["a", "b", "e", "f"]);
}
