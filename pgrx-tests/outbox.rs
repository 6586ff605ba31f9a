//! In-database tests of the noun `outbox`: what one session sees of topics and events within a transaction. Every
//! test has a topic of its own, and none of them commits.

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

    fn run(sql: &str) {
        Spi::run(sql).expect(sql);
    }

    #[pg_test]
    fn a_topic_made_in_a_transaction_works_in_it() {
        run("SELECT once.topic_set('o1', '{\"lanes\": 2}')");
        run("SELECT once.outbox_emit('o1', '{\"a\":  1}', 'key')");
        let taken = "SELECT payload::text || order_key FROM once.outbox_take('o1')";
        assert_eq!(one(taken).as_deref(), Some("{\"a\":  1}key"));
        let left = "SELECT count(*)::text FROM once.outbox_take('o1')";
        assert_eq!(one(left).as_deref(), Some("0"), "it is out");
    }

    #[pg_test]
    fn topics_count_their_subscribers() {
        run("SELECT once.topic_set('o2', '{\"subscribers\": [\"a\", \"b\"]}')");
        run("SELECT once.subscriber_set('o2', 'c')");
        run("SELECT once.subscriber_set('o2', 'c', '{\"lease\": \"1 s\"}')");
        run("SELECT once.subscriber_drop('o2', 'a')");
        let counted = "SELECT subscribers || ' ' || (once.topic_get('o2') ->> 'subscribers') \
                         FROM once.topic WHERE topic = 'o2'";
        assert_eq!(one(counted).as_deref(), Some("2 [\"b\", \"c\"]"));
    }

    #[pg_test]
    fn options_that_are_not_set_are_those_that_the_other_functions_use() {
        run("SELECT once.topic_set('o3', '{}')");
        let shown = one(
            "SELECT (once.topic_get('o3')::jsonb - 'subscribers')::text \
                             || once.subscriber_get('o3', 'default')::text",
        );
        assert_eq!(
            shown.as_deref(),
            Some(
                "{\"lanes\": 16, \"owner\": null, \"dedupe_for\": \"24:00:00\"}\
                 {\"lease\": \"00:01:00\", \"paused\": false, \"dead_for\": null, \"backoff_cap\": \"01:00:00\", \"backoff_base\": \"00:00:01\", \
                 \"max_attempts\": 10, \"max_lease_life\": \"24:00:00\"}"
            )
        );
        // The lease of a take that names none.
        run("SELECT once.outbox_emit('o3', '1')");
        run("SELECT once.outbox_take('o3')");
        let lease = "SELECT (lease_until - taken_at)::text FROM once.batch JOIN once.subscriber USING (subscriber_id) \
                       JOIN once.topic USING (topic_id) WHERE topic = 'o3'";
        assert_eq!(one(lease).as_deref(), Some("00:01:00"));
    }

    #[pg_test]
    fn a_steps_event_is_emitted_with_the_end_of_its_key() {
        run("SELECT once.topic_set('o4', '{}')");
        run("SELECT once.key_claim('o4', 'k')");
        let call = |function: &str, more: &str| {
            run(&format!(
                "SELECT once.{function}('o4', 'k', token, {more}) FROM once.key WHERE scope = 'o4'"
            ));
        };
        call(
            "key_step",
            "'pay', '{\"topic\":\"o4\", \"payload\":[1,  2]}'",
        );
        call(
            "key_step_done",
            "'mail', on_complete => '{\"topic\":\"o4\", \"payload\":3}'",
        );
        call("key_abort", "500");
        let emitted = "SELECT string_agg(payload::text, ' ') FROM once.outbox_take('o4')";
        assert_eq!(one(emitted).as_deref(), Some("[1,  2]"));
    }
}
