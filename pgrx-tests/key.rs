//! In-database tests of the noun `key`: what a person could not see from outside, such as that the
//! Rust and the SQL side of the extension agree. The tests run at once, each in a transaction that is rolled
//! back: every one has a key of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn one(sql: &str) -> Option<String> {
        Spi::get_one::<String>(sql).expect(sql)
    }

    #[pg_test]
    fn a_key_goes_from_claimed_to_replayed() {
        assert_eq!(
            one("SELECT outcome FROM once.key_claim('s', 'k1', '{}')").as_deref(),
            Some("claimed")
        );
        assert_eq!(
            one("SELECT outcome FROM once.key_claim('s', 'k1', '{}')").as_deref(),
            Some("in_progress")
        );
        Spi::run("SELECT once.key_complete('s', 'k1', token, 200, '{\"a\":  1}') FROM once.key WHERE key = 'k1'")
            .unwrap();
        assert_eq!(
            one("SELECT outcome || response_body::text FROM once.key_claim('s', 'k1', '{}')")
                .as_deref(),
            Some("replayed{\"a\":  1}")
        );
    }

    #[pg_test]
    fn a_composite_result_agrees_with_the_declared_columns() {
        // Read as a record and re-read through the catalog: a mismatch raises an error in the executor.
        let row = one(
            "SELECT pg_catalog.row_to_json(c)::text FROM once.key_claim('s', 'k2') c \
             WHERE c.token > 0 AND c.attempt = 1 AND c.recovery_point = 'started' \
               AND c.lease_left > '1 s' AND c.retry_after IS NULL",
        );
        assert!(row.is_some());
        let declared = one(
            "SELECT pg_catalog.string_agg(name || ' ' || type::regtype, ', ' ORDER BY n) \
               FROM pg_catalog.pg_proc, \
                    ROWS FROM (pg_catalog.unnest(proargnames), pg_catalog.unnest(proallargtypes), \
                               pg_catalog.unnest(proargmodes)) \
                    WITH ORDINALITY u(name, type, mode, n) \
              WHERE proname = 'key_claim' AND mode = 'o'",
        );
        assert_eq!(
            declared.as_deref(),
            Some(
                "outcome text, token bigint, attempt integer, recovery_point text, state json, \
                 response_code integer, response_body json, response_headers json, \
                 lease_left interval, retry_after interval"
            )
        );
    }

    #[pg_test]
    fn key_get_and_key_derive_derive_the_same_key() {
        Spi::run(
            "SELECT once.key_step('s é', 'k3', token, 'st ü') FROM once.key_claim('s é', 'k3');
             SELECT once.key_rotate('s é', 'k3', token, 'st ü', 1) FROM once.key WHERE key = 'k3'",
        )
        .unwrap();
        assert_eq!(
            one("SELECT steps -> 0 ->> 'derived_key' FROM once.key_get('s é', 'k3')"),
            one("SELECT once.key_derive('s é', 'k3', 'st ü')")
        );
    }

    #[pg_test]
    fn derived_keys_never_change_between_versions() {
        // Other systems remember these: a change of the formula would charge cards twice.
        assert_eq!(
            one("SELECT once.key_derive('payments', 'order-1', 'charge')"),
            one("SELECT 'once-' || pg_catalog.encode(pg_catalog.sha256(\
                 '\\x7061796d656e7473006f726465722d31006368617267650031'), 'hex')")
        );
    }

    #[pg_test]
    fn every_function_table_and_column_that_needs_it_has_a_comment() {
        let bare = one(
            "SELECT pg_catalog.string_agg(p.oid::regprocedure::text, ', ') FROM pg_catalog.pg_proc p \
              WHERE p.pronamespace = 'once'::regnamespace \
                AND pg_catalog.obj_description(p.oid, 'pg_proc') IS NULL",
        );
        assert_eq!(bare, None);
        let bare = one(
            "SELECT pg_catalog.string_agg(c.relname, ', ') FROM pg_catalog.pg_class c \
              WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'r' \
                AND pg_catalog.obj_description(c.oid, 'pg_class') IS NULL",
        );
        assert_eq!(bare, None);
    }

    #[pg_test]
    fn a_dbas_own_index_is_kept_up_to_date() {
        Spi::run(
            "CREATE INDEX mine ON once.key (holder, response_code);
             SELECT once.key_complete('s', 'k6', token, 207) FROM once.key_claim('s', 'k6', holder => 'me');
             SET LOCAL enable_seqscan = off",
        )
        .unwrap();
        let count = Spi::get_one::<i64>(
            "SELECT pg_catalog.count(*) FROM once.key WHERE holder = 'me' AND response_code = 207",
        );
        assert_eq!(count, Ok(Some(1)));
    }

    #[pg_test]
    fn a_large_answer_comes_back_byte_for_byte() {
        Spi::run(
            "CREATE TEMP TABLE big AS SELECT ('[' || repeat('\"é  \", ', 1000000) || '1]')::json AS body;
             SELECT once.key_complete('s', 'k7', token, 200, body) FROM big, once.key_claim('s', 'k7')",
        )
        .unwrap();
        let same = Spi::get_one::<bool>(
            "SELECT response_body::text = body::text FROM big, once.key_claim('s', 'k7')",
        );
        assert_eq!(same, Ok(Some(true)));
    }
}
