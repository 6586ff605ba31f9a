//! `key_get`: everything about one key, for people and their tools.

use super::decide::{self, KeyDecision};
use super::fence::NamedKey;
use super::identity::derived_key;
use super::record::{Col, KeyRow, KeyStatus, TABLE, id_datum};
use super::scope::ScopeOptions;
use crate::call::{Call, from_utf8, varlena};
use crate::clock;
use crate::error::Result;
use crate::row::{self, Rows};
use crate::shard;
use crate::spi::{self, Kept};
use crate::table::{Snapshot, Table};
use pgrx::pg_sys::{Datum, TEXTARRAYOID, UUIDOID};

const STEPS: &std::ffi::CStr = c"
    SELECT s.step, s.version FROM once.key_step s WHERE s.key_id = $1";

// $2: names of steps; $3: their derived keys, which are computed in Rust.
const AS_JSON: &std::ffi::CStr = c"
    SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_object(
               'step', s.step, 'done', s.done_at IS NOT NULL, 'result', s.result, 'version', s.version,
               'begun', s.begun, 'first_at', s.first_at, 'done_at', s.done_at,
               'derived_key', d.derived_key)
           ORDER BY COALESCE(s.first_at, s.done_at), s.step), '[]')
      FROM once.key_step s
           LEFT JOIN ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) d (step, derived_key)
           ON d.step = s.step
     WHERE s.key_id = $1";

static STEPS_OF: Kept = Kept::new(STEPS, &[UUIDOID]);
static STEPS_AS_JSON: Kept = Kept::new(AS_JSON, &[UUIDOID, TEXTARRAYOID, TEXTARRAYOID]);

/// `once.key_get`.
pub fn key_get(call: &Call) -> Result<Datum> {
    let key = NamedKey::from_call(call)?;
    shard::ensure_home(key.scope, key.key)?;
    let rows = Rows::begin(call);
    let now = clock::now_us()?;
    let found = KeyRow::find(&Table::to_read(TABLE)?, key.id(), &Snapshot::now())?;
    if let Some(row) = found.filter(|r| !key.options.is_over(r, now)) {
        rows.push(&values(&key, &row, now)?);
    }
    Ok(call.return_null())
}

fn values(key: &NamedKey, row: &KeyRow, now: i64) -> Result<[Option<Datum>; 16]> {
    let finished = row.status().finished();
    let gone = row.is_gone(now);
    let live = |col| row.raw(col).filter(|_| !gone);
    Ok([
        Some(row::text(status(&key.options, row, now))),
        row.raw(Col::Attempt),
        live(Col::Holder),
        row.raw(Col::RecoveryPoint),
        live(Col::State),
        steps(key, gone)?,
        live(Col::ResponseCode),
        live(Col::ResponseBody),
        live(Col::ResponseHeaders),
        live(Col::Request),
        live(Col::Note),
        row.raw(Col::CreatedAt),
        (row.status() == KeyStatus::Running)
            .then(|| clock::interval_datum(row.i64(Col::LeaseUntil) - now)),
        row.raw(Col::FinishedAt),
        finished.then(|| Datum::from(row.expires_at())),
        Some(row::text(&from_utf8(&next(&key.options, row, now)))),
    ])
}

/// Describes in one sentence what happens to the key next, and who does it.
fn next(options: &ScopeOptions, row: &KeyRow, now: i64) -> String {
    let seconds = (row.i64(Col::LeaseUntil) - now) / 1_000_000;
    let attempt = row.i32(Col::Attempt);
    match (status(options, row, now), seconds) {
        (b"running", 0..) => format!(
            "Its holder, who claimed it {} s ago, completes, releases or parks it within {seconds} s, or extends the lease; else the next claim resumes it, or the scope's options park it.",
            (now - row.i64(Col::ClaimedAt)) / 1_000_000
        ),
        (b"released", 1..) => format!("Claims resume it in {seconds} s; until then they answer in_progress."),
        (b"running" | b"released", _) => {
            "The next claim resumes it; if no claim comes, a completer takes it (once.key_take_abandoned), at the latest after the next sweep.".to_owned()
        }
        (b"parked", _) => format!(
            "It waits for a verdict: once.key_resolve(scope, key, {attempt}, 'retry'), 'complete' or 'abort'."
        ),
        (b"finished", _) => "Claims replay its answer until gone_at.".to_owned(),
        _ => "Claims answer gone until the scope's gone_for ends; then the key is new.".to_owned(),
    }
}

/// The status of a key, from its row, the clock and the scope's options.
pub fn status(options: &ScopeOptions, row: &KeyRow, now: i64) -> &'static [u8] {
    match (decide::unfinished(row, now, options), row.status()) {
        _ if row.is_gone(now) => b"gone",
        (_, status) if status.finished() => b"finished",
        (KeyDecision::Parked, _) => b"parked",
        (_, KeyStatus::Released) => b"released",
        _ => b"running",
    }
}

fn steps(key: &NamedKey, gone: bool) -> Result<Option<Datum>> {
    if gone {
        return Ok(Some(row::text(b"[]")));
    }
    let id = Some(id_datum(&key.id()));
    let (mut names, mut derived): (Vec<&[u8]>, Vec<String>) = Default::default();
    for step in spi::query(&STEPS_OF, &[id])? {
        if let [Some(name), Some(version)] = step[..] {
            let (name, version) = (varlena(name), version.value() as i32);
            names.push(name);
            derived.push(derived_key(key.scope, key.key, name, version));
        }
    }
    let derived: Vec<&[u8]> = derived.iter().map(String::as_bytes).collect();
    let args = [id, Some(row::texts(&names)), Some(row::texts(&derived))];
    let rows = spi::query(&STEPS_AS_JSON, &args)?;
    Ok(spi::first(&rows))
}
