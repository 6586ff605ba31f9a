//! An HTTP client's headers and the answers to it, tested without a server.

use std::collections::HashSet;
use std::time::Duration;

use pg_once::http::{
    Answer, IDEMPOTENT_REPLAYED, RETRY_AFTER, User, key_of_header, wait_of_header,
};
use pg_once::{Claim, Error, Failure, Json, Outcome, Response};

const SOON: Duration = Duration::from_secs(1);

fn user(name: &str) -> User {
    User::authenticated(Some(name)).unwrap()
}

fn seconds(millis: u64) -> Option<String> {
    let claim = Claim::InProgress {
        retry_after: Duration::from_millis(millis),
    };
    Answer::of_claim(&claim)?
        .header(RETRY_AFTER)
        .map(str::to_owned)
}

#[test]
fn retry_after_is_rounded_up_to_at_least_a_second() {
    for (millis, header) in [
        (0, "1"),
        (100, "1"),
        (1000, "1"),
        (1001, "2"),
        (59_999, "60"),
    ] {
        assert_eq!(seconds(millis).as_deref(), Some(header), "{millis} ms");
    }
}

#[test]
fn each_outcome_has_its_status_and_only_waiting_helps_with_retry_after() {
    let stored = || Response {
        code: 201,
        body: Some(Json::from_text("{ }")),
        headers: None,
    };
    for (outcome, status, retry, replayed) in [
        (Outcome::Ran(stored()), 201, false, false),
        (Outcome::Aborted(Response::new(402)), 402, false, false),
        (Outcome::Replayed(stored()), 201, false, true),
        (Outcome::InProgress { retry_after: SOON }, 409, true, false),
        (
            Outcome::Released {
                error: "e".into(),
                retry_after: None,
            },
            503,
            true,
            false,
        ),
        (Outcome::LeaseLost, 409, true, false),
        (Outcome::Parked { attempt: 1 }, 409, false, false),
        (Outcome::Mismatched, 422, false, false),
        (Outcome::Gone, 410, false, false),
        (Outcome::Unkeyed(Ok(stored())), 201, false, false),
        (
            Outcome::Unkeyed(Err(Failure::unknown("?"))),
            500,
            false,
            false,
        ),
    ] {
        let answer = Answer::of(&outcome);
        assert_eq!(answer.status, status, "{outcome:?}");
        assert_eq!(answer.header(RETRY_AFTER).is_some(), retry, "{outcome:?}");
        assert_eq!(
            answer.header(IDEMPOTENT_REPLAYED).is_some(),
            replayed,
            "{outcome:?}"
        );
    }
}

#[test]
fn a_database_that_is_away_is_503_and_a_code_that_is_no_status_is_500() {
    let away = Answer::from(Error::TimedOut);
    assert_eq!((away.status, away.header(RETRY_AFTER)), (503, Some("1")));
    assert_eq!(Answer::of(&Outcome::Ran(Response::new(7))).status, 500);
    assert_eq!(Answer::of(&Outcome::Ran(Response::new(-1))).status, 500);
}

#[test]
fn the_key_may_be_quoted_or_bare() {
    for (value, key) in [
        ("\"a b\"", Some("a b")),
        (" a-b ", Some("a-b")),
        (r#""a\"\\""#, Some(r#"a"\"#)),
        ("\"open", None),
        ("\"a\" b", None),
        (r#""a\b""#, None),
        ("\"\"", None),
        ("", None),
        ("a\"b", None),
        ("\"\u{e9}\"", None),
        ("a\u{7}b", None),
    ] {
        let read = key_of_header(&user("ada"), Some(value)).ok();
        assert_eq!(read, key.map(|key| format!("ada/{key}")), "{value:?}");
    }
}

#[test]
fn user_and_header_have_255_characters_together() {
    let status = |name: &str, header: &str| {
        key_of_header(&user(name), Some(header)).map_err(|answer| answer.status)
    };
    assert!(status("ada", &"k".repeat(251)).is_ok());
    assert_eq!(status("ada", &"k".repeat(252)), Err(400));
    assert_eq!(status(&"u".repeat(254), "k"), Err(400));
}

#[test]
fn a_request_of_nobody_is_401() {
    for name in [None, Some(""), Some(" \t"), Some("a\0b")] {
        let refused = User::authenticated(name).map_err(|answer| answer.status);
        assert_eq!(refused, Err(401), "{name:?}");
    }
}

#[test]
fn no_two_users_share_a_key() {
    let keys = [
        ("ada", "x/k"),
        ("ada/x", "k"),
        ("ada%2Fx", "k"),
        ("ada%", "2Fx/k"),
        ("ada%25", "2Fx/k"),
    ]
    .map(|(name, header)| key_of_header(&user(name), Some(header)).ok());
    let distinct: HashSet<_> = keys.iter().flatten().collect();
    assert_eq!(distinct.len(), keys.len(), "{keys:?}");
}

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
