//! In-database tests of the noun `janitor`: a sweep changes no answer. Every test has a key of its own and
//! sees no other's, because none of them commits. One runs at a time: of two open transactions that sweep, only the
//! first one's end is noted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    /// Waits until no other test here runs.
    fn alone() {
        Spi::run(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('tests that sweep'))",
        )
        .unwrap();
    }

    fn outcome(key: &str) -> Option<String> {
        let claim =
            format!("SELECT outcome FROM once.key_claim('sweeps', '{key}', '{{\"a\": 1}}')");
        Spi::get_one(&claim).unwrap()
    }

    /// With an answer that is emptied at the end of its ttl.
    fn finish(key: &str) {
        finish_with(key, "to_json(repeat('x', 900))");
    }

    fn finish_with(key: &str, answer: &str) {
        Spi::run(&format!(
            "SELECT once.key_complete('sweeps', '{key}', token, 200, {answer}) \
               FROM once.key_claim('sweeps', '{key}', '{{\"a\": 1}}')"
        ))
        .unwrap();
    }

    fn after(interval: &str) {
        Spi::run(&format!(
            "SELECT pg_catalog.set_config('once.fake_now', \
             (pg_catalog.clock_timestamp() + interval '{interval}')::text, true)"
        ))
        .unwrap();
    }

    fn sweep() -> i64 {
        Spi::get_one("SELECT pg_catalog.sum(done)::bigint FROM once.sweep()")
            .unwrap()
            .unwrap()
    }

    #[pg_test]
    fn a_key_is_gone_at_its_ttl_swept_or_not() {
        alone();
        finish("k1");
        after("25 hours");
        assert_eq!(outcome("k1").as_deref(), Some("gone"));
        assert_eq!(sweep(), 1);
        assert_eq!(outcome("k1").as_deref(), Some("gone"));
        let empty = Spi::get_one::<bool>(
            "SELECT response_body IS NULL AND request IS NULL AND state IS NULL FROM once.key",
        );
        assert_eq!(empty, Ok(Some(true)));
    }

    #[pg_test]
    fn a_key_that_no_sweep_has_emptied_is_deleted_all_the_same() {
        alone();
        finish("k2");
        finish_with("k3", "'1'");
        after("49 hours");
        assert_eq!(sweep(), 2);
        assert_eq!(
            Spi::get_one("SELECT pg_catalog.count(*) FROM once.key"),
            Ok(Some(0i64))
        );
    }

    #[pg_test]
    fn an_unfinished_key_is_never_swept() {
        alone();
        outcome("k3");
        after("100 years");
        // It is shown to completers, once.
        let done = "SELECT pg_catalog.string_agg(task || ' ' || done, ', ') FROM once.sweep() WHERE done > 0";
        assert_eq!(Spi::get_one(done), Ok(Some("key_abandon 1".to_owned())));
        assert_eq!(outcome("k3").as_deref(), Some("resumed"));
    }

    #[pg_test]
    fn the_status_tells_what_the_sweep_then_does() {
        alone();
        finish("k4");
        finish("k5");
        after("25 hours");
        let due = "SELECT due FROM once.janitor_status() WHERE task = 'key_tombstone'";
        assert_eq!(Spi::get_one(due), Ok(Some(2i64)));
        assert_eq!(sweep(), 2);
        assert_eq!(Spi::get_one(due), Ok(Some(0i64)));
        let told = "SELECT done = 2 AND failed = 0 AND served_by IS NOT NULL \
                      FROM once.janitor_status() WHERE task = 'key_tombstone'";
        assert_eq!(Spi::get_one(told), Ok(Some(true)));
    }

    #[pg_test]
    fn a_task_that_raises_is_undone_and_counted_and_the_others_go_on() {
        alone();
        finish_with("k6", "'1'");
        Spi::run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'not this one'; END $$; \
             CREATE TRIGGER refuse AFTER DELETE ON once.key FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .unwrap();
        after("49 hours");
        // Other tests have the tables of the outbox for as long as they run.
        let all = "SELECT pg_catalog.string_agg(done || ':' || failed, ' ') FROM once.sweep() \
                    WHERE task <> 'outbox_retire'";
        let seen: Option<String> = Spi::get_one(all).unwrap();
        assert_eq!(seen.as_deref(), Some("0:0 0:0 0:1 0:0 0:0 0:0 0:0 0:0 0:0"));
        let told = "SELECT last_error FROM once.janitor_status() WHERE task = 'key_reap'";
        assert_eq!(Spi::get_one(told), Ok(Some("not this one".to_owned())));
    }

    #[pg_test(error = "once.sweep_all() cannot run inside a transaction block or a function")]
    fn sweep_all_does_not_commit_what_is_not_its_own() {
        Spi::run("CALL once.sweep_all()").unwrap();
    }
}
