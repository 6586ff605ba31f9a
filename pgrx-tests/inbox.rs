//! In-database tests of the noun `inbox`: what one session sees of messages and barriers. Every test has a
//! scope of its own, and none of them commits.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn accept(scope: &str, more: &str) -> (bool, Option<String>) {
        let sql =
            format!("SELECT accepted, verdict::text FROM once.inbox_accept('{scope}', 'm1'{more})");
        let (accepted, verdict) = Spi::get_two::<bool, String>(&sql).unwrap();
        (accepted.unwrap(), verdict)
    }

    fn record(scope: &str, verdict: &str) {
        Spi::run(&format!(
            "SELECT once.inbox_record('{scope}', 'm1', '{verdict}')"
        ))
        .unwrap();
    }

    fn barrier(scope: &str, operation: &str) -> String {
        let sql = format!("SELECT once.inbox_barrier('{scope}', 'saga', 'pay', '{operation}')");
        Spi::get_one(&sql).unwrap().unwrap()
    }

    fn after(interval: &str) {
        Spi::run(&format!(
            "SELECT pg_catalog.set_config('once.fake_now', \
             (pg_catalog.clock_timestamp() + interval '{interval}')::text, true)"
        ))
        .unwrap();
    }

    #[pg_test]
    fn a_message_is_accepted_once_and_its_verdict_is_stored_byte_for_byte() {
        assert_eq!(accept("once", ""), (true, None));
        assert_eq!(accept("once", ""), (false, None));
        let verdict = r#"{"b":  1.0, "b": 2}"#;
        record("once", verdict);
        record("once", verdict);
        assert_eq!(accept("once", ""), (false, Some(verdict.to_owned())));
        assert_eq!(accept("another consumer", ""), (true, None));
    }

    #[pg_test(error = "message \"m1\" of scope \"twice\" has a verdict already")]
    fn the_first_verdict_stays() {
        accept("twice", "");
        record("twice", "1");
        record("twice", "1.0");
    }

    #[pg_test(error = "message \"m1\" of scope \"unknown\" is not accepted")]
    fn a_message_that_nobody_accepted_gets_no_verdict() {
        record("unknown", "1");
    }

    #[pg_test]
    fn a_handler_that_takes_longer_than_the_ttl_can_still_record() {
        accept("slow", ", ttl => '1 second'");
        after("1 hour");
        record("slow", "1");
        assert_eq!(accept("slow", ""), (true, None));
    }

    #[pg_test]
    fn a_message_is_new_after_thirty_days_swept_or_not() {
        accept("ttl", "");
        record("ttl", "1");
        after("29 days 23 hours");
        assert_eq!(accept("ttl", ""), (false, Some("1".to_owned())));
        after("30 days 1 minute");
        assert_eq!(accept("ttl", ""), (true, None));
        after("61 days");
        let done = Spi::get_one::<i64>("SELECT done FROM once.sweep(task => 'inbox_reap')");
        assert_eq!(done, Ok(Some(1)));
        assert_eq!(accept("ttl", ""), (true, None));
    }

    #[pg_test]
    fn an_action_runs_once_and_is_compensated_once() {
        for (operation, outcome) in [
            ("action", "run"),
            ("action", "duplicate"),
            ("compensation", "run"),
            ("compensation", "duplicate"),
            ("action", "refused"),
        ] {
            assert_eq!(barrier("order", operation), outcome, "{operation}");
        }
    }

    #[pg_test]
    fn a_compensation_that_comes_first_is_skipped_and_its_action_refused() {
        for (operation, outcome) in [
            ("compensation", "skipped"),
            ("compensation", "skipped"),
            ("action", "refused"),
            ("compensation", "skipped"),
        ] {
            assert_eq!(barrier("early", operation), outcome, "{operation}");
        }
    }

    #[pg_test]
    fn a_compensation_is_remembered_as_long_as_its_action_would_have_been() {
        assert_eq!(barrier("late", "action"), "run");
        after("29 days");
        assert_eq!(barrier("late", "compensation"), "run");
        after("58 days");
        assert_eq!(barrier("late", "action"), "refused");
        after("60 days");
        assert_eq!(barrier("late", "action"), "run");
    }
}
