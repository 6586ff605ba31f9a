//! In-database tests of the noun `role`: nothing is open that no kind opens.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn names(sql: &str) -> Option<String> {
        Spi::get_one::<String>(sql).expect(sql)
    }

    #[pg_test]
    fn public_may_call_nothing_but_shard_of_and_read_nothing() {
        let open = names(
            "SELECT pg_catalog.string_agg(p.proname, ', ') FROM pg_catalog.pg_proc p \
              WHERE p.pronamespace = 'once'::regnamespace \
                AND pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE')",
        );
        assert_eq!(open.as_deref(), Some("shard_of"));
        let open = names(
            "SELECT pg_catalog.string_agg(c.relname, ', ') FROM pg_catalog.pg_class c \
              WHERE c.relnamespace = 'once'::regnamespace AND c.relkind IN ('r', 'v', 'S') \
                AND pg_catalog.has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE')",
        );
        assert_eq!(open, None);
    }

    #[pg_test]
    fn every_function_belongs_to_a_kind_but_those_of_the_owner() {
        let unlisted = names(
            "SELECT pg_catalog.string_agg(p.proname, ', ' ORDER BY p.proname) FROM pg_catalog.pg_proc p \
              WHERE p.pronamespace = 'once'::regnamespace \
                AND p.prorettype <> 'pg_catalog.trigger'::pg_catalog.regtype \
                AND p.proname NOT IN (SELECT function_name FROM once.role_function)",
        );
        // A trigger's function is called by its trigger, whose maker needs the right.
        assert_eq!(
            unlisted.as_deref(),
            Some("grant_role, incarnation, incarnation_renew, revoke_role, shard_of")
        );
        let missing = names(
            "SELECT pg_catalog.string_agg(f.function_name, ', ') FROM once.role_function f \
              WHERE f.function_name NOT IN (SELECT proname FROM pg_catalog.pg_proc \
                                             WHERE pronamespace = 'once'::regnamespace)",
        );
        assert_eq!(missing, None);
    }
}
