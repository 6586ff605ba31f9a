//! The world outside as a run meets it: a program with trouble of its own, and the ledger that it
//! keeps on disk.
//!
//! Invariant: the driver learns of it only by reading that file, so nothing is lost when the process
//! is killed, and nothing is believed that a service says.

pub mod line;

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::database::copy;
use crate::ground::Ground;
use crate::supervisor::Program;
use line::{Fate, Kind, Line};

/// What goes wrong with answers, as shares of them.
pub struct Trouble {
    pub slow: f64,
    pub slow_ms: u64,
    pub cut: f64,
}

pub struct Outside {
    ledger: PathBuf,
    pub program: Program,
}

impl Outside {
    /// One of its own for the run of this name.
    pub fn new(ground: &Ground<'_>, name: &str, dedupe: bool, trouble: &Trouble) -> Self {
        let ledger = ground.work.join(format!("{name}.ledger.jsonl"));
        let arguments = vec![
            format!("--ledger={}", ledger.display()),
            format!("--dedupe={dedupe}"),
            format!("--slow={}", trouble.slow),
            format!("--slow-ms={}", trouble.slow_ms),
            format!("--cut={}", trouble.cut),
            format!("--seed={}", ground.settings.seed),
        ];
        Self {
            ledger,
            program: Program {
                path: ground.paths.outside.clone(),
                arguments,
                directory: ground.work.to_owned(),
            },
        }
    }

    /// Every whole line of the ledger, in their order; before the first there is no file.
    pub fn lines(&self) -> Result<Vec<Line>> {
        let text = match std::fs::read_to_string(&self.ledger) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            text => text.with_context(|| self.ledger.display().to_string())?,
        };
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let lines = text.get(..whole).unwrap_or_default().lines();
        lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// How many lines there are of this kind.
pub fn count(lines: &[Line], kind: Kind) -> usize {
    lines.iter().filter(|line| line.kind == kind).count()
}

/// How many answers had this fate.
pub fn fated(lines: &[Line], fate: Fate) -> usize {
    lines.iter().filter(|line| line.fate == fate).count()
}

const LEDGER: &str = "\
create table outside_ledger (
    line bigint primary key, charge_id text, idempotency_key text, reference text, customer text,
    amount_cents bigint, number bigint, kind text, at_micros bigint,
    at timestamptz generated always as (to_timestamp(at_micros / 1000000.0)) stored);
create index on outside_ledger (charge_id);
create index on outside_ledger (reference);";

/// Loads the lines into `outside_ledger`, in their order.
pub async fn load(owner: &Client, lines: &[Line]) -> Result<()> {
    owner.batch_execute(LEDGER).await?;
    let rows = (1..).zip(lines).map(|(number, line): (i64, _)| {
        [
            Some(number.to_string()),
            Some(line.charge_id.clone()),
            line.idempotency_key.clone(),
            Some(line.request.reference.clone()),
            Some(line.request.customer.clone()),
            Some(line.request.amount_cents.to_string()),
            line.request.number.map(|number| number.to_string()),
            serde_json::to_value(line.kind)
                .ok()
                .and_then(|kind| kind.as_str().map(str::to_owned)),
            Some(line.at_micros.to_string()),
        ]
    });
    let columns = "outside_ledger (line, charge_id, idempotency_key, reference, customer, amount_cents, number, kind, \
                   at_micros)";
    copy(owner, columns, rows).await?;
    owner.batch_execute("analyze outside_ledger").await?;
    Ok(())
}
