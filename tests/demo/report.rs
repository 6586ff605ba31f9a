//! `report.html` and `results.json`.
//!
//! Invariant: the page needs nothing but itself: no script, no font, no picture from elsewhere.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::json;

use crate::proof::{Proven, Want};
use crate::settings::Settings;
use crate::story::{Run, Story};
use crate::svg::escape;
use crate::table::{all_questions, number, went_through};
use crate::timeline;

const STYLE: &str = include_str!("report.css");

pub fn write(settings: &Settings, stories: &[Story], faults: &[String], server: u32) -> Result<()> {
    std::fs::write(
        settings.out.join("report.html"),
        page(stories, faults, server)?,
    )?;
    let runs: Vec<_> = stories
        .iter()
        .flat_map(|story| &story.runs)
        .map(run_as_json)
        .collect();
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

fn run_as_json(run: &Run) -> serde_json::Value {
    let went_through: serde_json::Map<String, serde_json::Value> = run
        .went_through
        .iter()
        .map(|(name, count)| ((*name).to_owned(), json!(count)))
        .collect();
    json!({
        "name": run.card.name,
        "title": run.card.title,
        "seconds": run.seconds,
        "answers": run.proven,
        "trouble": run.trouble,
        "went_through": went_through,
    })
}

fn page(stories: &[Story], faults: &[String], server: u32) -> Result<String> {
    let mut page = String::new();
    writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>pg_once: the demo's report</title>\n\
         <style>\n{STYLE}</style>\n<main>"
    )?;
    for fault in faults {
        writeln!(
            page,
            "<p class=\"failed-note\">Failed: {}</p>",
            escape(fault)
        )?;
    }
    for story in stories {
        tell(&mut page, story, server)?;
    }
    page.push_str("</main>\n</html>\n");
    Ok(page)
}

fn tell(page: &mut String, story: &Story, server: u32) -> Result<()> {
    let kills: usize = story.runs.iter().map(|run| run.trouble.kills).sum();
    writeln!(
        page,
        "<h1>{}</h1>\n<p class=\"lead\">{} PostgreSQL {server}, {kills} kills.</p>\n<div class=\"cards\">",
        escape(story.title),
        story.lead
    )?;
    for run in &story.runs {
        card(page, story, run)?;
    }
    page.push_str("</div>\n");
    for run in &story.runs {
        picture(page, story, run)?;
    }
    table(page, &story.runs)?;
    queries(page, story)
}

fn answer<'a>(run: &'a Run, name: &str) -> Option<&'a Proven> {
    run.proven.iter().find(|proven| proven.name == name)
}

fn card(page: &mut String, story: &Story, run: &Run) -> Result<()> {
    let clean = run
        .proven
        .iter()
        .all(|proven| proven.is_right(run.card.asked));
    let class = if clean { "card" } else { "card bad" };
    writeln!(
        page,
        "<div class=\"{class}\"><h2>{}</h2><dl>",
        escape(run.card.title)
    )?;
    for proven in story.headlines.iter().filter_map(|name| answer(run, name)) {
        let class = match (proven.is_right(run.card.asked), proven.want) {
            (false, _) => "wrong",
            (true, Want::Zero) => "right",
            (true, _) => "plain",
        };
        let of = if proven.want == Want::All {
            format!("of {} {}", number(run.card.asked as f64, ""), proven.name)
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
fn picture(page: &mut String, story: &Story, run: &Run) -> Result<()> {
    writeln!(
        page,
        "<section><h2>{}</h2>\n<p>{}</p>",
        escape(run.card.title),
        run.card.explain
    )?;
    page.push_str("<div class=\"legend\">");
    for (name, class) in story.kinds {
        write!(page, "<span><i class=\"{class}\"></i>{name}</span>")?;
    }
    page.push_str("</div>\n<div class=\"legend\"><span>kill -9 at:</span>");
    for (at, point) in run.points.iter().enumerate() {
        let times = run
            .trouble
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
         <span><i class=\"end\"></i>the load ends; {}</span></div>",
        run.trouble.kills_by_supervisor, story.after_load
    )?;
    page.push_str(&timeline::draw(run, story.kinds));
    page.push_str("</section>\n");
    Ok(())
}

fn table(page: &mut String, runs: &[Run]) -> Result<()> {
    page.push_str("<section><h2>Side by side</h2>\n<table><thead><tr><th></th>");
    for run in runs {
        write!(page, "<th>{}</th>", escape(run.card.title))?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for question in all_questions(runs) {
        write!(page, "<tr><td>{}</td>", escape(question.name))?;
        for run in runs {
            match answer(run, question.name) {
                None => page.push_str("<td>–</td>"),
                Some(proven) => {
                    let class = match (proven.want, proven.is_right(run.card.asked)) {
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
        runs.len() + 1
    )?;
    for (name, counts) in went_through(runs) {
        write!(page, "<tr><td>{}</td>", escape(name))?;
        for count in counts {
            write!(page, "<td>{}</td>", number(count, ""))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></section>\n");
    Ok(())
}

fn queries(page: &mut String, story: &Story) -> Result<()> {
    writeln!(
        page,
        "<section><h2>The queries that prove it</h2>\n<p>Over {}.</p>",
        escape(story.evidence)
    )?;
    for question in all_questions(&story.runs) {
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
