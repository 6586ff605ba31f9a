//! `machine_diagram`: a machine as a mermaid stateDiagram-v2 (https://mermaid.js.org/syntax/stateDiagram.html).

use super::definition::{ANYBODY, Definition};
use super::stored::StoredMachine;
use crate::call::{Call, SCOPE_MAX, from_utf8};
use crate::error::Result;
use crate::row;
use pgrx::pg_sys::Datum;
use std::collections::BTreeSet;

/// Words that mermaid does not accept as a state's name.
const RESERVED: &str = "as class classdef click default direction end hide href note of scale state statediagram style title";

/// `once.machine_diagram`.
pub fn machine_diagram(call: &Call) -> Result<Datum> {
    let stored = StoredMachine::existing(call.text(0, "machine", SCOPE_MAX)?)?;
    let text = drawn(&stored.definition()?);
    Ok(row::text(&from_utf8(&text)))
}

/// A move from status to status with its labels.
struct Arrow<'a> {
    from: &'a str,
    to: &'a str,
    labels: Vec<String>,
}

fn drawn(definition: &Definition) -> String {
    let mut text = String::from("stateDiagram-v2\n");
    let mut line = |line: String| text.push_str(&format!("    {line}\n"));
    let name = |status: &str| name_of(definition, status);
    for status in &definition.status_types {
        match is_plain(status) {
            true => line(status.clone()),
            false => line(format!("state \"{}\" as {}", escaped(status), name(status))),
        }
    }
    for arrow in arrows(definition) {
        let label = match arrow.labels.is_empty() {
            true => String::new(),
            false => format!(" : {}", escaped(&arrow.labels.join(", "))),
        };
        line(format!(
            "{} --> {}{label}",
            name(arrow.from),
            name(arrow.to)
        ));
    }
    for status in &definition.terminal {
        line(format!("{} --> [*]", name(status)));
    }
    line("classDef claim stroke-dasharray: 6 4".to_owned());
    line("classDef terminal stroke-width: 4px".to_owned());
    for status in &definition.status_types {
        if definition.is_claim_state(status) {
            line(format!("class {} claim", name(status)));
        } else if definition.is_terminal(status) {
            line(format!("class {} terminal", name(status)));
        }
    }
    text
}

fn arrows(definition: &Definition) -> Vec<Arrow<'_>> {
    let mut arrows: Vec<Arrow> = Vec::new();
    let mut add = |from, to, label: Option<String>| {
        let known = arrows.iter_mut().find(|a| a.from == from && a.to == to);
        match known {
            Some(arrow) => arrow
                .labels
                .extend(label.filter(|l| !arrow.labels.contains(l))),
            None => arrows.push(Arrow {
                from,
                to,
                labels: label.into_iter().collect(),
            }),
        }
    };
    for transition in &definition.transitions {
        for from in &transition.from {
            let when = transition
                .when
                .as_ref()
                .map(|when| format!("when {}", unqualified(when)));
            add(from, &transition.to, when);
        }
    }
    for step in &definition.steps {
        let key = &step.step_key;
        let requesters = step.successful_state.keys().chain(step.claim_state.keys());
        for requester in requesters.collect::<BTreeSet<_>>() {
            let Some(to) = step.success_of(Some(requester)) else {
                continue;
            };
            let who = match requester == ANYBODY {
                true => key.clone(),
                false => format!("{key} by {requester}"),
            };
            match step.claim_of(Some(requester)) {
                None => add(&step.status, to, Some(who)),
                Some((into, revert)) => {
                    add(&step.status, into, Some(format!("claim {who}")));
                    add(into, to, Some(format!("finish {who}")));
                    add(into, revert, Some("release".to_owned()));
                }
            }
        }
    }
    if let Some(cancel) = &definition.cancel {
        for status in &definition.status_types {
            if !definition.is_terminal(status) && !definition.is_claim_state(status) {
                add(status, &cancel.to, Some("cancel".to_owned()));
            }
        }
    }
    arrows
}

/// A stored predicate nearly as its author wrote it: without the schema pg_catalog.
fn unqualified(when: &str) -> String {
    let mut text = String::new();
    let mut rest = when;
    while let Some((before, after)) = rest.split_once("OPERATOR(pg_catalog.") {
        let (operator, after) = after.split_once(')').unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(operator);
        rest = after;
    }
    text.push_str(rest);
    text.replace("pg_catalog.", "")
}

/// The status itself; for a status that is not plain, the letter `s` and the status's index in status_types.
fn name_of(definition: &Definition, status: &str) -> String {
    if is_plain(status) {
        return status.to_owned();
    }
    let place = definition.status_types.iter().position(|s| s == status);
    format!("s{}", place.unwrap_or(0))
}

fn is_plain(status: &str) -> bool {
    let mut letters = status.chars();
    let lower = status.to_ascii_lowercase();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic());
    // `name_of` gives names such as s1 to statuses that are not plain.
    let number = status.strip_prefix('s').unwrap_or_default();
    let made = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    first
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !made
        && !RESERVED.split(' ').any(|word| word == lower)
}

/// Escapes a label: a character that may have a meaning for mermaid becomes its code.
fn escaped(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => label.push(' '),
            c if c.is_alphanumeric() || " _.,()=+-*/'".contains(c) => label.push(c),
            c => label.push_str(&format!("#{};", u32::from(c))),
        }
    }
    label
}
