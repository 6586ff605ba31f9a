//! The same results as a table for the documentation.

use std::fmt::Write as _;

use crate::measured::Results;
use crate::table::{amount, figure_verdict, grouped, noise_verdict, ratio, size, spread, verdict};

/// The whole text.
pub fn of(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write(results, &mut text);
    text
}

fn write(results: &Results, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{}, {} cores, {} connections, `synchronous_commit = off`, median of {} interleaved rounds of \
         {} s (`make bench{}`). ratio: pg_once's throughput divided by that side's. CPU is the server's, \
         per call; CPU ratio: that side's divided by pg_once's. Both are medians of the rounds' own ratios.\n",
        results.postgresql,
        results.cores,
        results.clients,
        results.rounds,
        results.seconds_per_run,
        if results.quick { " QUICK=1" } else { "" }
    )?;
    writeln!(
        text,
        "| case | beside | ratio | CPU ratio | bar | pg_once | beside | CPU pg_once | CPU beside |"
    )?;
    writeln!(text, "|---|---|--:|--:|---|--:|--:|--:|--:|")?;
    for case in &results.cases {
        let Some((ours, others)) = case.sides.split_first() else {
            continue;
        };
        let cpu = |us: Option<f64>| us.map_or_else(String::new, |us| format!("{us:.0} µs"));
        for side in others {
            writeln!(
                text,
                "| {}{} | {} | {} | {} | {} | {}/s | {}/s | {} | {} |",
                case.name,
                size(case.among),
                side.name,
                ratio(side.ratio),
                ratio(side.cpu_ratio),
                verdict(side.bar),
                grouped(ours.median_per_second),
                grouped(side.median_per_second),
                cpu(ours.median_cpu_us),
                cpu(side.median_cpu_us)
            )?;
        }
    }
    if !results.figures.is_empty() {
        writeln!(text, "\n| figure | value | bar |")?;
        writeln!(text, "|---|--:|---|")?;
        for figure in &results.figures {
            let value = amount(figure.value, figure.unit);
            let (what, verdict) = (&figure.what, figure_verdict(figure));
            writeln!(text, "| {what} | {value} | {verdict} |")?;
        }
    }
    if !results.comparisons.is_empty() {
        writeln!(
            text,
            "\n| ratio, median (quartiles) | throughput | server CPU | bar |"
        )?;
        writeln!(text, "|---|--:|--:|---|")?;
        for compared in &results.comparisons {
            writeln!(
                text,
                "| {} | {} | {} | {} |",
                compared.what,
                spread(compared.throughput),
                compared.cpu.map_or_else(String::new, spread),
                noise_verdict(compared.bar)
            )?;
        }
    }
    if !results.all_latencies().is_empty() {
        writeln!(text, "\n| Latency | calls measured | p50 | p99 | p999 |")?;
        writeln!(text, "|---|--:|--:|--:|--:|")?;
        for of in results.all_latencies() {
            let [p50, p99, p999] = of.times();
            let (what, callers) = (&of.what, of.callers);
            writeln!(text, "| {what} | {callers} | {p50} | {p99} | {p999} |")?;
        }
    }
    if results.costs.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n| what is written | by | at once | WAL | whole pages | table | indexes | HOT |"
    )?;
    writeln!(text, "|---|---|--:|--:|--:|--:|--:|--:|")?;
    for cost in &results.costs {
        writeln!(
            text,
            "| {} | {} | {} | {:.0} B | {:.3} | {:.0} B | {:.0} B | {:.1} % |",
            cost.what,
            cost.side,
            cost.in_flight_per_client,
            cost.wal_bytes,
            cost.pages,
            cost.heap_bytes,
            cost.index_bytes,
            cost.hot_share * 100.0
        )?;
    }
    Ok(())
}
