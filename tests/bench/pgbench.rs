//! One run of one script through pgbench, and what the server's processes spent on it.
//!
//! Invariant: a run is only counted when every backend of it has ended, so that the CPU time and the
//! statistics of one run never fall into the next one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::database::Database;

/// What a client sends: 156 bytes of jsonb, answered with 100 bytes of json.
pub const REQUEST: &str = r#"{"customer": "cus_8Kq2mXv0", "amount": 129900, "currency": "EUR", "lines": [{"sku": "A-1001", "qty": 2}, {"sku": "B-2040", "qty": 1}], "note": "ring twice"}"#;
/// The stored answer.
pub const RESPONSE: &str = r#"{"order_id": "ord_01HZX3V9Q", "status": "created", "amount": 129900, "currency": "EUR", "eta": "2d"}"#;
/// Raw SQL gets its fingerprint for nothing: 33 bytes, as many as the extension stores.
const FINGERPRINT: &str = r"\x01aabbccddeeff00112233445566778899aabbccddeeff00112233445566778899";

/// How many keys are held by somebody in the cases of `in_progress`.
pub const HELD: u64 = 1000;

/// The kernel counts CPU time in /proc in hundredths of a second on every Linux.
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

/// How long a run goes on.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Seconds.
    Seconds(u32),
    /// Transactions of each client.
    Transactions(u32),
}

/// A script and its name.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

/// What one run showed.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Scripts that ended well, per second.
    pub per_second: f64,
    /// Their number.
    pub count: f64,
    /// CPU time of the server's backends per script, in microseconds; none where /proc does not tell.
    pub cpu_us: Option<f64>,
}

/// Runs `script` with the clients and the stock of the settings.
pub fn run(database: &Database, script: Script<'_>, stock: u64, until: Until) -> Result<Run> {
    let path = database.directory().join(format!("{}.sql", script.name));
    std::fs::write(&path, script.text).with_context(|| path.display().to_string())?;
    let clients = database.settings.clients;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut arguments = vec![
        "--no-vacuum".to_owned(),
        "--protocol=prepared".to_owned(),
        // A serialization failure is the application pattern's everyday business: again.
        "--max-tries=1000".to_owned(),
        format!("--client={clients}"),
        format!("--jobs={}", cores.min(clients as usize)),
        format!("--file={}", path.display()),
        match until {
            Until::Seconds(seconds) => format!("--time={seconds}"),
            Until::Transactions(count) => format!("--transactions={count}"),
        },
    ];
    for (name, value) in [
        ("request", REQUEST),
        ("response", RESPONSE),
        ("fingerprint", FINGERPRINT),
        ("stock", &stock.to_string()),
        ("held", &HELD.to_string()),
        ("clients", &clients.to_string()),
        // For scripts whose clients count through rows of their own.
        ("n", "0"),
    ] {
        arguments.push(format!("--define={name}={value}"));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let postmaster = database.postmaster()?;
    let children = children_of(postmaster);
    let cpu = ended_children_ticks(postmaster);
    let output = database
        .run("pgbench", &arguments)
        .with_context(|| format!("script {}", script.name))?;
    wait_for_backends_to_end(postmaster, children)?;
    let spent = cpu
        .zip(ended_children_ticks(postmaster))
        .map(|(before, after)| after - before);
    let read = |label: &str| {
        number_after(&output.stdout, label)
            .with_context(|| format!("no \"{label}\" in pgbench's output:\n{}", output.stdout))
    };
    let count = read("number of transactions actually processed:")?;
    if read("number of failed transactions:")? > 0.0 || count == 0.0 {
        bail!(
            "script {} failed:\n{}{}",
            script.name,
            output.stdout,
            output.stderr
        );
    }
    Ok(Run {
        per_second: read("tps =")?,
        count,
        cpu_us: spent.map(|ticks| ticks * MICROSECONDS_PER_TICK / count),
    })
}

/// The number behind a label in pgbench's report.
fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    let word = rest.split_whitespace().next()?;
    // "number of transactions actually processed: 1000/1000"
    word.split('/').next()?.parse().ok()
}

/// The words of /proc/PID/stat behind the name in parentheses, which may hold spaces itself.
fn stat_words(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words = text.rsplit(')').next()?.split_whitespace();
    Some(words.map(str::to_owned).collect())
}

/// CPU time of the postmaster's children that have ended, user and system.
fn ended_children_ticks(postmaster: u32) -> Option<f64> {
    let words = stat_words(postmaster)?;
    let ticks = |i: usize| words.get(i)?.parse::<f64>().ok();
    Some(ticks(13)? + ticks(14)?)
}

/// How many children the postmaster has, those included that it has not buried yet: their CPU time
/// is not counted before that.
fn children_of(postmaster: u32) -> usize {
    let parent = postmaster.to_string();
    let is_child = |pid: u32| stat_words(pid).is_some_and(|words| words.get(1) == Some(&parent));
    std::fs::read_dir("/proc").map_or(0, |entries| {
        let pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| is_child(*pid)).count()
    })
}

fn wait_for_backends_to_end(postmaster: u32, before: usize) -> Result<()> {
    let begin = Instant::now();
    while children_of(postmaster) > before {
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("pgbench has ended, but its backends have not");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
