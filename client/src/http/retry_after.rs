//! Reads the `Retry-After` header (RFC 9110) of another service's answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
];

/// Reads how long another service asks to wait: seconds, or an HTTP date. `None` for other text, zero or a past date.
/// An HTTP library's header value may be passed directly: `headers.get(RETRY_AFTER).and_then(retry_after)`.
#[must_use]
pub fn retry_after(value: impl AsRef<[u8]>) -> Option<Duration> {
    let value = str::from_utf8(value.as_ref()).ok()?;
    let wait = match value.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => (UNIX_EPOCH.checked_add(since_epoch(value)?)?)
            .duration_since(SystemTime::now())
            .ok()?,
    };
    Some(wait).filter(|wait| !wait.is_zero())
}

/// Reads a date such as `Sun, 06 Nov 1994 08:49:37 GMT`, but not in the two obsolete forms of RFC 9110.
fn since_epoch(date: &str) -> Option<Duration> {
    let [_, day, month, year, time, "GMT"] = date.split_whitespace().collect::<Vec<_>>()[..] else {
        return None;
    };
    let number = |word: &str| word.parse::<u16>().ok().map(u64::from);
    let [hour, minute, second] = *time.split(':').map(number).collect::<Option<Vec<_>>>()? else {
        return None;
    };
    // Years are counted from March, so that a leap day is a year's last day.
    let month = MONTHS.iter().position(|known| *known == month)? as u64;
    let year = number(year)?.checked_sub(month / 10)?;
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = 365 * year + leap_days + (153 * month + 2) / 5 + number(day)?;
    let hours = days.checked_sub(719_469)? * 24 + hour;
    Some(Duration::from_secs((hours * 60 + minute) * 60 + second))
}

#[cfg(test)]
#[path = "../../tests/unit/retry_after.rs"]
mod tests;
