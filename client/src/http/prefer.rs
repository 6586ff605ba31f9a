//! Reads the `Prefer` header (RFC 7240), in which a client says how long it waits for an answer.

use std::time::Duration;

/// The request header with the seconds that a client waits for an answer: `Prefer: wait=5`.
pub const PREFER: &str = "Prefer";

/// Reads how long a client waits for the answer: the seconds of `wait` in its `Prefer` header, at most `longest`. Pass
/// the result to [`Runner::wait`](crate::Runner::wait). Reads only the first `wait`; returns zero if there is none, or
/// if it is no whole number.
///
/// ```
/// use pg_once::http::wait_of_header;
/// use std::time::Duration;
///
/// let longest = Duration::from_secs(10);
/// assert_eq!(wait_of_header(Some("wait=5"), longest).as_secs(), 5);
/// assert_eq!(wait_of_header(Some("respond-async, wait=60"), longest), longest);
/// assert_eq!(wait_of_header(None, longest), Duration::ZERO);
/// ```
#[must_use]
pub fn wait_of_header(value: Option<&str>, longest: Duration) -> Duration {
    let preferences = value.unwrap_or_default().split(',');
    // A semicolon begins the parameters of a preference.
    let mut named =
        preferences.filter_map(|preference| preference.split(';').next()?.split_once('='));
    let wait = named.find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"));
    match wait.and_then(|(_, seconds)| seconds.trim().trim_matches('"').parse().ok()) {
        Some(seconds) => Duration::from_secs(seconds).min(longest),
        None => Duration::ZERO,
    }
}
