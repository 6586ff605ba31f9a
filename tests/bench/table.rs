//! The results on a terminal, and what is told while it works.

use std::io::IsTerminal;

use crate::measured::{Among, Bar, Case, Comparison, Figure, Results, Side, Spread};

/// Says what is being done, on standard error.
pub fn say(text: &str) {
    eprintln!("==> {text}");
}

/// Says which case begins.
pub fn begin(name: &str, among: Among) {
    say(&format!("{name}{}", size(among)));
}

/// How a case's title tells the size of the table.
pub fn size(among: Among) -> String {
    match among {
        Among::FinishedKeys(0) => String::new(),
        Among::FinishedKeys(keys) => format!(", among {} finished keys", grouped(keys as f64)),
        Among::Events(0) => String::new(),
        Among::Events(events) => format!(", {} events", grouped(events as f64)),
        Among::Rows(rows) => format!(", among {} rows", grouped(rows as f64)),
    }
}

/// `1234567` as people write it.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio, or nothing.
pub fn ratio(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.2}"))
}

/// The bar and whether it was met.
pub fn verdict(bar: Option<Bar>) -> String {
    bar.map_or_else(String::new, |bar| {
        let met = if bar.met { "met" } else { "MISSED" };
        // "more than" is asked for as 1.005, which nobody needs to read.
        if bar.at_least > 1.0 && bar.at_least < 1.01 {
            format!("> 1: {met}")
        } else {
            let of = if bar.by_cpu { "CPU " } else { "" };
            format!("{of}>= {}: {met}", bar.at_least)
        }
    })
}

/// All of it.
pub fn print(results: &Results) {
    println!();
    println!(
        "{}, pg_once {}, {} cores, {} connections, synchronous_commit off, median of {} rounds of {} s",
        results.postgresql,
        results.extension,
        results.cores,
        results.clients,
        results.rounds,
        results.seconds_per_run
    );
    println!(
        "ratio: pg_once's throughput divided by that side's; CPU ratio: that side's server CPU time per \
         call divided by pg_once's"
    );
    for case in &results.cases {
        print_case(case);
    }
    print_costs(results);
    print_figures(&results.figures);
    print_comparisons(&results.comparisons);
    print_latencies(results);
    for left_out in &results.left_out {
        println!("\nleft out: {left_out}");
    }
    let (bars, missed) = results.bars();
    println!(
        "\n{} of {bars} bars met{} ({} s)",
        bars - missed,
        if missed > 0 {
            "; MISSED are marked"
        } else {
            ""
        },
        results.seconds
    );
}

/// The scripts of the cases that pgbench ran.
pub fn print_queries(cases: &[Case]) {
    for case in cases {
        for side in &case.sides {
            if let Some(script) = &side.script {
                println!("\n-- {}: {}\n{script}", case.name, side.name);
            }
        }
    }
}

fn print_case(case: &Case) {
    println!("\n{}{}", case.name, size(case.among));
    let width = 34;
    println!(
        "  {:width$} {:>10} {:>12} {:>8} {:>10}   bar",
        "",
        format!("{}/s", case.unit),
        "server CPU",
        "ratio",
        "CPU ratio"
    );
    for side in &case.sides {
        println!("{}", line(side, width));
    }
}

fn line(side: &Side, width: usize) -> String {
    let cpu = side
        .median_cpu_us
        .map_or_else(String::new, |cpu| format!("{cpu:.1} us"));
    let text = format!(
        "  {:width$} {:>10} {:>12} {:>8} {:>10}   {}",
        side.name,
        grouped(side.median_per_second),
        cpu,
        ratio(side.ratio),
        ratio(side.cpu_ratio),
        verdict(side.bar)
    );
    let missed = side.bar.is_some_and(|bar| !bar.met);
    if missed && std::io::stdout().is_terminal() {
        format!("\x1b[31m{text}\x1b[0m")
    } else {
        text.trim_end().to_owned()
    }
}

fn print_costs(results: &Results) {
    let mut what = "";
    for cost in &results.costs {
        if cost.what != what {
            what = &cost.what;
            println!("\nwhat {what} write, in bytes");
            println!(
                "  {:34} {:>10} {:>11} {:>10} {:>10} {:>12}",
                "", "WAL", "whole pages", "table", "indexes", "HOT updates"
            );
        }
        let side = match cost.in_flight_per_client {
            1 => cost.side.clone(),
            n => format!("{}, {n} at once", cost.side),
        };
        println!(
            "  {side:34} {:>10.0} {:>11.3} {:>10.0} {:>10.0} {:>10.1} %",
            cost.wal_bytes,
            cost.pages,
            cost.heap_bytes,
            cost.index_bytes,
            cost.hot_share * 100.0
        );
    }
}

fn print_figures(figures: &[Figure]) {
    if !figures.is_empty() {
        println!();
    }
    for figure in figures {
        let (what, value) = (&figure.what, amount(figure.value, figure.unit));
        println!("  {what:85} {value:>18}   {}", figure_verdict(figure));
    }
}

/// A number with its unit.
pub fn amount(value: f64, unit: &str) -> String {
    let digits = if value < 10.0 { 2 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// What the figure may be and whether it is.
pub fn figure_verdict(figure: &Figure) -> String {
    let met = figure.met.map(|met| if met { "met" } else { "MISSED" });
    let verdict = figure.at_most.zip(met);
    verdict.map_or_else(String::new, |(most, met)| {
        format!("<= {}: {met}", amount(most, figure.unit))
    })
}

fn print_comparisons(comparisons: &[Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    println!("\nratios, median (quartiles) over the rounds");
    println!("  {:50} {:>22} {:>22}", "", "throughput", "server CPU");
    for compared in comparisons {
        println!(
            "  {:50} {:>22} {:>22}   {}",
            compared.what,
            spread(compared.throughput),
            compared.cpu.map_or_else(String::new, spread),
            noise_verdict(compared.bar)
        );
    }
}

fn print_latencies(results: &Results) {
    if results.all_latencies().is_empty() {
        return;
    }
    println!(
        "\n{:112} {:>10} {:>10} {:>10} {:>10}",
        "how long callers wait", "callers", "p50", "p99", "p999"
    );
    for of in results.all_latencies() {
        let [p50, p99, p999] = of.times();
        let (what, callers) = (&of.what, of.callers);
        println!("  {what:110} {callers:>10} {p50:>10} {p99:>10} {p999:>10}");
    }
}

/// A median with its quartiles.
pub fn spread(spread: Spread) -> String {
    format!(
        "{:.3} ({:.3}-{:.3})",
        spread.median, spread.lower_quartile, spread.upper_quartile
    )
}

/// Whether a difference is less than noise.
pub fn noise_verdict(bar: Option<Bar>) -> String {
    bar.map_or_else(String::new, |bar| {
        let met = if bar.met { "met" } else { "MISSED" };
        format!("less than noise (>= {:.3}): {met}", bar.at_least)
    })
}
