//! Unit tests of src/http/prefer.rs.

use super::*;

#[test]
fn a_wait_is_bounded_and_what_is_no_wait_is_none() {
    let longest = Duration::from_secs(10);
    for (value, seconds) in [
        ("wait=3", 3),
        ("return=minimal; wait=1, WAIT = \"4\"; x=y", 4),
        ("wait=2, wait=9", 2),
        ("wait=99999999999", 10),
        ("wait=-1", 0),
        ("wait=soon", 0),
        ("wait", 0),
        ("await=3", 0),
        ("", 0),
    ] {
        let wait = wait_of_header(Some(value), longest);
        assert_eq!(wait, Duration::from_secs(seconds), "{value}");
    }
}
