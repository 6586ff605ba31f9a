//! One run of one script through pgbench, and what the server's processes spent on it.
//!
//! Invariant: a figure is only taken of scripts that all ended well.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, bail};

use crate::cpu::Meter;
use crate::database::{Database, NAME};

/// What a client sends: 156 bytes of jsonb, answered with 100 bytes of json.
pub const REQUEST: &str = r#"{"customer": "cus_8Kq2mXv0", "amount": 129900, "currency": "EUR", "lines": [{"sku": "A-1001", "qty": 2}, {"sku": "B-2040", "qty": 1}], "note": "ring twice"}"#;
/// The stored answer.
pub const RESPONSE: &str = r#"{"order_id": "ord_01HZX3V9Q", "status": "created", "amount": 129900, "currency": "EUR", "eta": "2d"}"#;
/// Raw SQL gets its fingerprint for nothing: 33 bytes, as many as the extension stores.
pub const FINGERPRINT: &str =
    r"\x01aabbccddeeff00112233445566778899aabbccddeeff00112233445566778899";

/// The caller's own fingerprint; the byte before it in the table says whose it is.
pub fn digest() -> String {
    FINGERPRINT.replacen("01", "", 1)
}

/// How many keys are held by somebody in the cases of `in_progress`.
pub const HELD: u64 = 1000;

/// How long a run goes on.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Seconds.
    Seconds(u32),
    /// Transactions of each client.
    Transactions(u32),
    /// Seconds, and the transactions of each second.
    Paced(u32, u32),
}

/// A script and its name.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

/// What one run showed.
#[derive(Clone, Debug)]
pub struct Run {
    /// Scripts that ended well, per second.
    pub per_second: f64,
    /// Their number.
    pub count: f64,
    /// CPU time of the server's backends per script, in microseconds; none where /proc does not tell.
    pub cpu_us: Option<f64>,
    /// The milliseconds that scripts took; of a timed run only.
    pub times: Vec<f64>,
}

/// Of the scripts of a timed run: a log of each one would slow the clients down.
const SAMPLED: &str = "--sampling-rate=0.25";

/// Runs `script` with the clients and the stock of the settings.
pub fn run(database: &Database, script: Script<'_>, stock: u64, until: Until) -> Result<Run> {
    run_in(NAME, database, script, stock, until, &[])
}

/// The same, with the times of a sample of the scripts. Their log makes the clients slower.
pub fn run_timed(database: &Database, script: Script<'_>, stock: u64, until: Until) -> Result<Run> {
    let logs = database.directory().join("logs");
    std::fs::create_dir(&logs)?;
    std::fs::set_permissions(&logs, Permissions::from_mode(0o777))?;
    let log = format!("--log-prefix={}/of", logs.display());
    let options = ["--log", SAMPLED, &log];
    let mut run = run_in(NAME, database, script, stock, until, &options)?;
    for entry in std::fs::read_dir(&logs)? {
        let text = std::fs::read_to_string(entry?.path())?;
        // Client, its number of the transaction, microseconds, ...
        for line in text.lines() {
            let us = line.split(' ').nth(2).and_then(|us| us.parse::<f64>().ok());
            run.times
                .push(us.with_context(|| format!("in pgbench's log: {line}"))? / 1e3);
        }
    }
    std::fs::remove_dir_all(&logs)?;
    Ok(run)
}

/// In another database of the server, and with further options.
pub fn run_in(
    name: &str,
    database: &Database,
    script: Script<'_>,
    stock: u64,
    until: Until,
    options: &[&str],
) -> Result<Run> {
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
            Until::Paced(seconds, _) => format!("--time={seconds}"),
        },
    ];
    if let Until::Paced(_, per_second) = until {
        arguments.push(format!("--rate={per_second}"));
    }
    for (name, value) in [
        ("request", REQUEST),
        ("response", RESPONSE),
        ("fingerprint", FINGERPRINT),
        ("digest", &digest()),
        ("stock", &stock.to_string()),
        ("held", &HELD.to_string()),
        ("clients", &clients.to_string()),
        // For scripts whose clients count through rows of their own.
        ("n", "0"),
    ] {
        arguments.push(format!("--define={name}={value}"));
    }
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(options);
    let meter = Meter::start(database)?;
    let output = database
        .run_in(name, "pgbench", &arguments)
        .with_context(|| format!("script {}", script.name))?;
    let spent = meter.stop()?;
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
        cpu_us: spent.map(|us| us / count),
        times: Vec::new(),
    })
}

/// The number behind a label in pgbench's report.
fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    let word = rest.split_whitespace().next()?;
    // "number of transactions actually processed: 1000/1000"
    word.split('/').next()?.parse().ok()
}
