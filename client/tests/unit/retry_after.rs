//! Unit tests of src/http/retry_after.rs.

#![allow(clippy::unwrap_used)] // a test may panic

use super::*;

#[test]
fn every_http_date_is_the_time_that_another_parser_reads() {
    // Every eleventh day of four centuries and more, each at another time of day.
    let day = 24 * 60 * 60;
    for n in (0..160_000_u64).step_by(11) {
        let at = Duration::from_secs(n * day + n * 7919 % day);
        let date = httpdate::fmt_http_date(UNIX_EPOCH + at);
        assert_eq!(since_epoch(&date), Some(at), "{date}");
    }
    let at = Some(Duration::from_secs(784_111_777));
    assert_eq!(since_epoch("Sun, 06 Nov 1994 08:49:37 GMT"), at);
}

#[test]
fn a_wait_is_seconds_or_the_time_until_a_date() {
    assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
    let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
    let wait = retry_after(&soon).unwrap().as_secs();
    assert!((58..=60).contains(&wait), "{wait}");
}

#[test]
fn what_is_no_wait_is_none() {
    for value in [
        "",
        "soon",
        "-1",
        "1.5",
        "Sun, 06 Nov 1994",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nor 1994 08:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 06 Jan 0000 08:49:37 GMT",
        "Sun, 99999 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        // Zero, and a time in the past: there is no wait.
        "0",
        "Sun, 06 Nov 1994 08:49:37 GMT",
    ] {
        assert_eq!(retry_after(value), None, "{value}");
    }
}
