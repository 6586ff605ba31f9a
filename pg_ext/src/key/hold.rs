//! Writes that keep the lease: `key_advance` and `key_extend`. Both can be HOT updates unless they change look_at.

use super::fence::{FencedKey, KeyChange};
use super::record::{Advanced, Col, KeyRow, POINT_MAX, TABLE};
use super::scope::{ScopeOptions, is_no_point};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::error::{Error, Result};
use crate::table::Table;
use pgrx::pg_sys::Datum;

/// `once.key_advance`.
pub fn key_advance(call: &Call) -> Result<Datum> {
    let fenced = FencedKey::from_call(call)?;
    let point = call.text(3, "recovery_point", POINT_MAX)?;
    if is_no_point(point) {
        return Err(Error::bad_argument(
            "recovery_point",
            format!("\"{}\" is no recovery point", shown(point)),
            "A first claim begins at \"started\"; key_complete or key_abort finishes the key.",
        ));
    }
    let lease = call.interval(5, "lease")?;
    let state = call.datum(4);
    let left = fenced.change(
        |_| None,
        |row, now| {
            let is_same = row.bytes(Col::RecoveryPoint) == Some(point)
                && state.is_none_or(|state| row.bytes(Col::State) == Some(varlena(state)));
            match row.advanced() {
                Advanced::Now if is_same => {
                    return Ok((KeyChange::Nothing, row.i64(Col::LeaseUntil) - now));
                }
                Advanced::Earlier if is_same => return Err(already_advanced(&fenced, point)),
                _ => {}
            }
            ensure_forward(&fenced.named.options, row, point)?;
            row.put_text(Col::RecoveryPoint, Some(point));
            if state.is_some() {
                row.put(Col::State, state);
            }
            row.put_advanced(Advanced::Now);
            renew(row, &fenced.named.options, lease, now)
        },
    )?;
    Ok(clock::interval_datum(left.max(0)))
}

fn already_advanced(fenced: &FencedKey, point: &[u8]) -> Error {
    Error::already_done(
        format!(
            "this token has advanced {} to \"{}\" already",
            fenced.named(),
            shown(point)
        ),
        "with the next phase; a claim by the same holder returns the point and the state.",
    )
}

/// `once.key_extend`.
pub fn key_extend(call: &Call) -> Result<Datum> {
    let fenced = FencedKey::from_call(call)?;
    let lease = call.interval(3, "lease")?;
    let left = fenced.change(
        |_| None,
        |row, now| renew(row, &fenced.named.options, lease, now),
    )?;
    Ok(clock::interval_datum(left.max(0)))
}

/// Renews the lease from now; its end is at most max_lease_life after the claim. Answers that the row is to be stored,
/// and the time left.
fn renew(
    row: &mut KeyRow,
    options: &ScopeOptions,
    lease: Option<i64>,
    now: i64,
) -> Result<(KeyChange, i64)> {
    let last = row
        .i64(Col::ClaimedAt)
        .saturating_add(options.max_lease_life_us);
    let until = match lease {
        Some(us) => now + us,
        None => (now + options.lease_us).max(row.i64(Col::LeaseUntil)),
    }
    .min(last);
    put_lease(row, until)?;
    Ok((KeyChange::Write, until - now))
}

/// Sets the end of the lease. If the key is pending, or look_at is later than this end, look_at changes, too.
pub fn put_lease(row: &mut KeyRow, until: i64) -> Result<()> {
    row.put_i64(Col::LeaseUntil, until);
    if row.is_pending() {
        row.put_i64(Col::LookAt, until);
    } else if until < row.i64(Col::LookAt) {
        // This moves look_at back. key_abandon needs this order: first lock the table, then read the clock.
        let _table = Table::to_write(TABLE)?;
        row.put_i64(Col::LookAt, until.max(clock::now_us()?));
    }
    Ok(())
}

/// If the scope declares its points, a key moves to declared points only, and never back. From a point that is not
/// declared, such as `started`, the key may move to any declared point.
fn ensure_forward(options: &ScopeOptions, row: &KeyRow, point: &[u8]) -> Result<()> {
    let Some(points) = options.recovery_points() else {
        return Ok(());
    };
    let bad = |problem: String| {
        let names: Vec<_> = points.iter().map(|p| shown(p)).collect();
        let hint = format!("The scope declares, in this order: {}.", names.join(", "));
        Err(Error::bad_argument("recovery_point", problem, hint))
    };
    let position = |wanted: &[u8]| points.iter().position(|p| *p == wanted);
    let present = row.bytes(Col::RecoveryPoint).unwrap_or_default();
    let (point, target) = (shown(point), position(point));
    match position(present) {
        _ if target.is_none() => bad(format!("\"{point}\" is not declared by the scope")),
        here if here > target => bad(format!(
            "\"{point}\" lies before the present point \"{}\"",
            shown(present)
        )),
        _ => Ok(()),
    }
}
