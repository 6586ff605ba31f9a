//! `dashboard.html`: the panels of the Grafana dashboard, drawn of what was seen while the demo ran.
//!
//! Invariant: titles and expressions are those of `sql/monitoring/dashboard.json`; an expression of a form that is
//! not known here fails, and is not left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::svg::{Svg, escape};
use crate::watch::Point;

const DASHBOARD: &str = include_str!("../../sql/monitoring/dashboard.json");
const STYLE: &str = include_str!("report.css");
const OWN_STYLE: &str = "\
.panels { display: grid; grid-template-columns: repeat(3, 1fr); gap: 14px; margin: 18px 0; }
.panels section { margin: 0; padding: 12px 14px; } .panels h2 { font-size: 15px; }
.panels .legend { font-size: 11.5px; gap: 1px 12px; margin: 4px 0 0; min-height: 34px; }
.panels .legend i { width: 14px; height: 3px; vertical-align: 3px; }
polyline { stroke-width: 1.6; stroke-linejoin: round; }
.s0 { stroke: #2f9e78; background: #2f9e78; } .s1 { stroke: #3d7edb; background: #3d7edb; }
.s2 { stroke: #edb23c; background: #edb23c; } .s3 { stroke: #c92a3a; background: #c92a3a; }
.s4 { stroke: #8b5fc7; background: #8b5fc7; } .s5 { stroke: #22303d; background: #22303d; }
.s6 { stroke: #b4541f; background: #b4541f; } .s7 { stroke: #5b6976; background: #5b6976; }
";

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 128.0;
/// Lines of a panel; what is smaller is left out, and said to be.
const LINES: usize = 8;
/// A counter's rate is told over this number of samples, as the demo is short.
const RATE_OVER: usize = 5;

/// A line: times and values.
type Line = Vec<(f64, f64)>;

/// A series of one name in one database, by its labels.
type Series = BTreeMap<BTreeMap<String, String>, Line>;

/// What a panel's expression asks for.
struct Ask<'a> {
    name: &'a str,
    finite: bool,
    only: Option<(&'a str, &'a str)>,
    rate: bool,
    by: Option<&'a str>,
    top: Option<usize>,
}

impl Ask<'_> {
    /// The few forms that the dashboard uses.
    fn read(expression: &str) -> Result<Ask<'_>> {
        let unknown = || format!("an expression that the demo cannot draw: {expression}");
        let mut ask = Ask {
            name: expression,
            finite: false,
            only: None,
            rate: false,
            by: None,
            top: None,
        };
        if let Some(rest) = ask.name.strip_suffix(" < Inf") {
            (ask.name, ask.finite) = (rest, true);
        }
        if let Some(rest) = ask.name.strip_prefix("topk(") {
            let (top, rest) = rest.split_once(", ").with_context(unknown)?;
            ask.top = Some(top.parse().with_context(unknown)?);
            ask.name = rest.strip_suffix(')').with_context(unknown)?;
        }
        if let Some(rest) = ask.name.strip_prefix("sum by (") {
            let (by, rest) = rest.split_once(") (").with_context(unknown)?;
            ask.by = Some(by);
            ask.name = rest.strip_suffix(')').with_context(unknown)?;
        }
        if let Some(rest) = ask.name.strip_prefix("rate(") {
            ask.rate = true;
            ask.name = rest.strip_suffix("[1m])").with_context(unknown)?;
        }
        if let Some((name, rest)) = ask.name.split_once('{') {
            let (label, value) = rest.split_once("=\"").with_context(unknown)?;
            ask.only = Some((label, value.strip_suffix("\"}").with_context(unknown)?));
            ask.name = name;
        }
        if !ask
            .name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            bail!(unknown());
        }
        Ok(ask)
    }

    fn answer(&self, points: &[Point]) -> Series {
        let mut series = Series::new();
        let ours = |p: &&Point| p.name == self.name && (!self.finite || p.value.is_finite());
        for point in points.iter().filter(ours) {
            let label = |name: &str| point.labels.get(name).map_or("", String::as_str);
            if self.only.is_some_and(|(name, value)| label(name) != value) {
                continue;
            }
            let mut labels = point.labels.clone();
            labels.insert("database".to_owned(), point.database.clone());
            series
                .entry(labels)
                .or_default()
                .push((point.seconds, point.value));
        }
        if self.rate {
            series.values_mut().for_each(|line| *line = rate(line));
        }
        if let Some(by) = self.by {
            series = summed(series, by);
        }
        if let Some(top) = self.top {
            let last = |line: &Line| line.last().map_or(0.0, |p| p.1);
            let mut lines: Vec<_> = series.into_iter().collect();
            lines.sort_by(|a, b| last(&b.1).total_cmp(&last(&a.1)));
            series = lines.into_iter().take(top).collect();
        }
        series
    }
}

/// Growth per second over the last few samples; 0 where a counter went back, because it began anew.
fn rate(line: &Line) -> Line {
    let since = |i: usize| line.get(i.saturating_sub(RATE_OVER)).copied();
    let each = |(i, (at, value)): (usize, &(f64, f64))| {
        let (from, before) = since(i)?;
        (*at > from).then(|| (*at, (value - before).max(0.0) / (at - from)))
    };
    line.iter().enumerate().filter_map(each).collect()
}

/// Lines of one database that have this label in common, added up sample by sample.
fn summed(series: Series, by: &str) -> Series {
    let mut sums: BTreeMap<BTreeMap<String, String>, BTreeMap<u64, (f64, f64)>> = BTreeMap::new();
    for (labels, line) in series {
        let keep = |(name, _): &(String, String)| name == by || name == "database";
        let sum = sums
            .entry(labels.into_iter().filter(keep).collect())
            .or_default();
        for (at, value) in line {
            sum.entry(at.to_bits()).or_insert((at, 0.0)).1 += value;
        }
    }
    let line = |sum: BTreeMap<u64, (f64, f64)>| sum.into_values().collect();
    sums.into_iter()
        .map(|(labels, sum)| (labels, line(sum)))
        .collect()
}

/// One panel's lines by their legend; the same legend in several databases is one colour.
fn lines(panel: &Value, points: &[Point]) -> Result<Vec<(String, Vec<Line>)>> {
    let mut lines: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for target in panel["targets"]
        .as_array()
        .context("a panel without targets")?
    {
        let text = |name: &str| target[name].as_str().context("a target without words");
        let legend = text("legendFormat")?;
        for (labels, line) in Ask::read(text("expr")?)?.answer(points) {
            let fill = |text: String, (name, value): (&String, &String)| {
                text.replace(&format!("{{{{{name}}}}}"), value)
            };
            let legend = labels.iter().fold(legend.to_owned(), fill);
            lines.entry(legend).or_default().push(line);
        }
    }
    let most = |lines: &Vec<Line>| lines.iter().flatten().map(|p| p.1).fold(0.0, f64::max);
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)));
    Ok(lines)
}

/// A number as a scale shows it.
fn scale(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{:.0} %", value * 100.0),
        "bytes" if value >= 1e6 => format!("{:.0} MB", value / 1e6),
        "bytes" => format!("{:.0} kB", value / 1e3),
        "s" => format!("{value:.1} s"),
        _ if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn draw(panel: &Value, points: &[Point], end: f64, starts: &[(f64, String)]) -> Result<String> {
    let title = panel["title"].as_str().context("a panel without a title")?;
    let unit = panel["fieldConfig"]["defaults"]["unit"]
        .as_str()
        .unwrap_or_default();
    let lines = lines(panel, points)?;
    let all = || lines.iter().flat_map(|l| &l.1).flatten();
    let most = all().map(|p| p.1).fold(0.0, f64::max);
    let most = if most > 0.0 { most * 1.08 } else { 1.0 };
    let most = if unit == "percentunit" {
        most.min(1.0)
    } else {
        most
    };
    let x = |at: f64| LEFT + (RIGHT - LEFT) * at / end;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / most;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    for share in [0.0, 0.5, 1.0] {
        let at = y(most * share);
        svg.line((LEFT, at), (RIGHT, at), "grid");
        svg.text((LEFT - 5.0, at + 3.5), "scale", &scale(most * share, unit));
    }
    for (n, (at, _)) in starts.iter().enumerate() {
        svg.line((x(*at), TOP), (x(*at), BOTTOM), "over");
        svg.text(
            (x(*at) + 7.0, BOTTOM + 14.0),
            "second",
            &(n + 1).to_string(),
        );
    }
    for (n, (_, same)) in lines.iter().take(LINES).enumerate() {
        for line in same {
            let drawn: Vec<_> = line.iter().map(|(at, value)| (x(*at), y(*value))).collect();
            svg.path(&drawn, &format!("s{n}"));
        }
    }
    let mut html = format!(
        "<section><h2>{}</h2>\n{}<div class=\"legend\">",
        escape(title),
        svg.finish(title)
    );
    for (n, (legend, _)) in lines.iter().take(LINES).enumerate() {
        write!(
            html,
            "<span><i class=\"s{n}\"></i>{}</span>",
            escape(legend)
        )?;
    }
    if lines.len() > LINES {
        write!(html, "<span>and {} smaller</span>", lines.len() - LINES)?;
    }
    html.push_str("</div></section>\n");
    Ok(html)
}

/// Writes `dashboard.html` into `out`; nothing where no run used pg_once.
pub fn write(out: &Path, points: &[Point]) -> Result<()> {
    if points.is_empty() {
        return Ok(());
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let end = points.iter().map(|p| p.seconds).fold(1.0, f64::max);
    let mut known = BTreeSet::new();
    let first = |p: &&Point| known.insert(p.database.clone());
    let starts: Vec<_> = points
        .iter()
        .filter(first)
        .map(|p| (p.seconds, p.database.clone()))
        .collect();
    let runs: Vec<String> = starts
        .iter()
        .enumerate()
        .map(|(n, s)| format!("{} {}", n + 1, s.1))
        .collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>pg_once: the dashboard</title>\n\
         <style>\n{STYLE}{OWN_STYLE}</style>\n<main><h1>pg_once: the dashboard over the demo</h1>\n\
         <p class=\"lead\">{end:.0} seconds of <code>once.metrics()</code>, asked every second while processes were killed. \
         Databases: {}.</p>\n<div class=\"panels\">\n",
        escape(&runs.join(", "))
    );
    for panel in dashboard["panels"]
        .as_array()
        .context("a dashboard without panels")?
    {
        page.push_str(&draw(panel, points, end, &starts)?);
    }
    page.push_str("</div></main></html>\n");
    let file = out.join("dashboard.html");
    std::fs::write(&file, page).with_context(|| file.display().to_string())
}
