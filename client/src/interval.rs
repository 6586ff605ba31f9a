//! Owns the wire form of PostgreSQL's `interval`: 16 bytes, microseconds, days, months.
//!
//! Invariant: a `Duration` is sent as microseconds alone, so that the length of a day or a month never matters. In an
//! interval that is read, a day counts 24 hours and a month 30 days; a negative interval is read as zero.

use std::error::Error;
use std::time::Duration;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

const MICROS_PER_DAY: i64 = 24 * 60 * 60 * 1_000_000;
const DAYS_PER_MONTH: i64 = 30;

/// A `Duration` that is sent, or was read, as an `interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Duration);

impl Interval {
    /// Writes the 16 bytes that the server reads. A time that is too long becomes `i64::MAX` microseconds. The server
    /// refuses such an interval with an error that names the argument.
    fn encode(self) -> [u8; 16] {
        let micros = i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&micros.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (micros, rest) = bytes.split_first_chunk::<8>()?;
        let (days, rest) = rest.split_first_chunk::<4>()?;
        let (months, rest) = rest.split_first_chunk::<4>()?;
        if !rest.is_empty() {
            return None;
        }
        let days = i64::from(i32::from_be_bytes(*days))
            .saturating_add(i64::from(i32::from_be_bytes(*months)).saturating_mul(DAYS_PER_MONTH));
        let total = i64::from_be_bytes(*micros).saturating_add(days.saturating_mul(MICROS_PER_DAY));
        Some(Self(Duration::from_micros(
            u64::try_from(total).unwrap_or(0),
        )))
    }
}

impl ToSql for Interval {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.encode());
        Ok(IsNull::No)
    }

    accepts!(INTERVAL);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Interval {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Self::decode(raw).ok_or_else(|| "an interval is 16 bytes".into())
    }

    accepts!(INTERVAL);
}

#[cfg(test)]
#[path = "../tests/unit/interval.rs"]
mod tests;
