//! `report.html` and `results.json`.
//!
//! Invariant: the page needs nothing but itself: no script, no font, no picture from elsewhere.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::json;

use crate::case::Outcome;
use crate::proof::{Proven, Want};
use crate::settings::Settings;
use crate::svg::escape;
use crate::table::{all_questions, number, trouble_rows};
use crate::timeline::{self, KINDS};
use crate::verdict::Trouble;

const STYLE: &str = include_str!("report.css");

/// What the cards show of a run, in large digits.
const HEADLINES: [&str; 5] = [
    "orders made",
    "double charges",
    "charges without an order",
    "wrong answers replayed",
    "requests stuck",
];

pub fn write(
    settings: &Settings,
    outcomes: &[Outcome],
    faults: &[String],
    server: u32,
) -> Result<()> {
    std::fs::write(
        settings.out.join("report.html"),
        page(settings, outcomes, faults, server)?,
    )?;
    let runs: Vec<_> = outcomes.iter().map(run_as_json).collect();
    let results = json!({
        "passed": faults.is_empty(),
        "faults": faults,
        "seed": settings.seed,
        "services": settings.services,
        "lease_ms": settings.lease_ms,
        "postgresql": server,
        "runs": runs,
    });
    std::fs::write(
        settings.out.join("results.json"),
        serde_json::to_string_pretty(&results)?,
    )?;
    Ok(())
}

fn run_as_json(outcome: &Outcome) -> serde_json::Value {
    json!({
        "name": outcome.case.name,
        "title": outcome.case.title,
        "bank_dedupes": outcome.case.bank_dedupes,
        "seconds": outcome.seconds,
        "answers": outcome.proven,
        "trouble": Trouble::of(outcome),
    })
}

fn page(
    settings: &Settings,
    outcomes: &[Outcome],
    faults: &[String],
    server: u32,
) -> Result<String> {
    let mut page = String::new();
    let kills: usize = outcomes
        .iter()
        .map(|outcome| Trouble::of(outcome).kills)
        .sum();
    writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>pg_once: the demo's report</title>\n\
         <style>\n{STYLE}</style>\n<main>\n\
         <h1>The same orders, the same trouble</h1>\n\
         <p class=\"lead\">Clients send <code>POST /orders</code> with an Idempotency-Key to {} service processes, \
         which charge a bank over HTTP and save the order in PostgreSQL {server}. Answers get lost, clients time out and \
         retry, requests come twice, backends are terminated, and {kills} times a process is killed with \
         <code>kill -9</code>.</p>",
        settings.services
    )?;
    for fault in faults {
        writeln!(
            page,
            "<p class=\"failed-note\">Failed: {}</p>",
            escape(fault)
        )?;
    }
    page.push_str("<div class=\"cards\">\n");
    for outcome in outcomes {
        card(&mut page, outcome)?;
    }
    page.push_str("</div>\n");
    for outcome in outcomes {
        run(&mut page, outcome)?;
    }
    table(&mut page, outcomes)?;
    queries(&mut page, outcomes)?;
    page.push_str("</main>\n</html>\n");
    Ok(page)
}

fn answer<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a Proven> {
    outcome.proven.iter().find(|proven| proven.name == name)
}

fn card(page: &mut String, outcome: &Outcome) -> Result<()> {
    let orders = outcome.case.orders;
    let clean = outcome.proven.iter().all(|proven| proven.is_right(orders));
    let class = if clean { "card" } else { "card bad" };
    writeln!(
        page,
        "<div class=\"{class}\"><h2>{}</h2><dl>",
        escape(outcome.case.title)
    )?;
    for proven in HEADLINES.iter().filter_map(|name| answer(outcome, name)) {
        let class = match (proven.is_right(orders), proven.want) {
            (false, _) => "wrong",
            (true, Want::Zero) => "right",
            (true, _) => "plain",
        };
        let of = if proven.want == Want::AllOrders {
            format!("of {} {}", number(orders as f64, ""), proven.name)
        } else {
            proven.name.to_owned()
        };
        writeln!(
            page,
            "<dt class=\"{class}\">{}</dt><dd>{of}</dd>",
            number(proven.value, proven.unit)
        )?;
    }
    page.push_str("</dl></div>\n");
    Ok(())
}

/// The picture of one run with the words that explain it.
fn run(page: &mut String, outcome: &Outcome) -> Result<()> {
    let trouble = Trouble::of(outcome);
    writeln!(
        page,
        "<section><h2>{}</h2>\n<p>{}</p>",
        escape(outcome.case.title),
        explain(outcome)
    )?;
    page.push_str("<div class=\"legend\">");
    for (name, class) in KINDS {
        write!(page, "<span><i class=\"{class}\"></i>{name}</span>")?;
    }
    page.push_str("</div>\n<div class=\"legend\"><span>kill -9 at:</span>");
    for (at, point) in outcome.case.points().iter().enumerate() {
        let times = trouble
            .kills_at_point
            .get(*point)
            .copied()
            .unwrap_or_default();
        write!(
            page,
            "<span><b>{}</b>{} ×{times}</span>",
            at + 1,
            point.replace('_', " ")
        )?;
    }
    writeln!(
        page,
        "<span><b class=\"outside\">K</b>any moment, by the supervisor ×{}</span>\
         <span><i class=\"end\"></i>the load ends; somebody comes back for the orders whose clients left</span></div>",
        trouble.kills_by_supervisor
    )?;
    page.push_str(&timeline::draw(outcome));
    page.push_str("</section>\n");
    Ok(())
}

fn explain(outcome: &Outcome) -> &'static str {
    match (outcome.case.keyed, outcome.case.bank_dedupes) {
        (false, _) => {
            "A handler as people write it by hand: look the key up, charge, save the order."
        }
        (true, true) => {
            "The same load. The handler claims the key, records each step, and a retry resumes where the dead one stopped."
        }
        (true, false) => {
            "A bank that forgets Idempotency-Keys: when a step was begun before, the handler looks at the bank first."
        }
    }
}

fn table(page: &mut String, outcomes: &[Outcome]) -> Result<()> {
    page.push_str("<section><h2>Side by side</h2>\n<table><thead><tr><th></th>");
    for outcome in outcomes {
        write!(page, "<th>{}</th>", escape(outcome.case.title))?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for question in all_questions(outcomes) {
        write!(page, "<tr><td>{}</td>", escape(question.name))?;
        for outcome in outcomes {
            match answer(outcome, question.name) {
                None => page.push_str("<td>–</td>"),
                Some(proven) => {
                    let class = match (proven.want, proven.is_right(outcome.case.orders)) {
                        (Want::Any, _) => "",
                        (_, true) => "right",
                        (_, false) => "wrong",
                    };
                    write!(
                        page,
                        "<td class=\"{class}\">{}</td>",
                        number(proven.value, proven.unit)
                    )?;
                }
            }
        }
        page.push_str("</tr>\n");
    }
    writeln!(
        page,
        "<tr class=\"part\"><td colspan=\"{}\">What they went through</td></tr>",
        outcomes.len() + 1
    )?;
    let troubles: Vec<Trouble> = outcomes.iter().map(Trouble::of).collect();
    for (name, count) in trouble_rows() {
        write!(page, "<tr><td>{}</td>", escape(name))?;
        for trouble in &troubles {
            write!(page, "<td>{}</td>", number(count(trouble), ""))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></section>\n");
    Ok(())
}

fn queries(page: &mut String, outcomes: &[Outcome]) -> Result<()> {
    page.push_str(
        "<section><h2>The queries that prove it</h2>\n<p>Over the table <code>orders</code>, the bank's own ledger \
         (<code>bank_ledger</code>), what was asked for (<code>asked</code>) and every answer that a client got \
         (<code>saw</code>).</p>\n",
    );
    for question in all_questions(outcomes) {
        writeln!(
            page,
            "<details><summary>{}</summary><pre>{}</pre></details>",
            escape(question.name),
            escape(&question.sql)
        )?;
    }
    page.push_str("</section>\n");
    Ok(())
}
