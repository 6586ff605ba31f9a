//! A tour of every noun and every released function, each with an answer that tells whether it works.
//!
//! It may be made again and again in one database: before an update and after it, in old sessions and new ones.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::playground::Playground;
use crate::released::{old, update};
use crate::world::{JOB, TABLES};

/// One tour: a session, and a number that makes its names its own.
struct Guide<'a> {
    play: &'a Playground,
    n: u32,
    what: &'a str,
}

/// The tables and the machine of world.rs, and a topic, where they are not there yet.
pub async fn prepare(play: &Playground) {
    if play.show("select to_regclass('public.job') is null").await == "t" {
        play.show(TABLES).await;
        play.show(&format!("select once.machine_define($def${JOB}$def$)"))
            .await;
    }
    play.show(r#"select once.topic_set('tour', '{"subscribers": ["default", "other"]}')"#)
        .await;
    play.show(r#"select once.subscriber_set('tour', 'default', '{"max_attempts": 1}')"#)
        .await;
}

/// Calls everything there is in 0.1.0 and checks the answers; `what` says when, for the one who reads a failure.
pub async fn tour(play: &Playground, what: &str) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    prepare(play).await;
    let guide = Guide { play, n, what };
    guide.keys().await;
    guide.verdicts().await;
    guide.inbox().await;
    guide.moves().await;
    guide.actions().await;
    guide.teardown().await;
    guide.events().await;
    guide.dead_letters().await;
    guide.sweeps().await;
    guide.rights().await;
}

impl Guide<'_> {
    /// `$N` is the tour's number.
    async fn show(&self, sql: &str) -> String {
        let sql = sql.replace("$N", &self.n.to_string());
        match self.play.attempt(&sql).await {
            Ok(rows) => rows,
            Err(refusal) => panic!("{}: {sql}\n{refusal:?}", self.what),
        }
    }

    async fn is(&self, sql: &str, expected: &str) {
        assert_eq!(self.show(sql).await, expected, "{}: {sql}", self.what);
    }

    async fn keys(&self) {
        let token = self
            .show("select token from once.key_claim('s', 'a$N', '{\"n\": 1}', holder => 'h$N')")
            .await;
        let with = |sql: &str| sql.replace("$T", &token);
        self.is(
            "select outcome from once.key_claim('s', 'a$N', '{\"n\": 2}')",
            "mismatched",
        )
        .await;
        self.is(
            "select outcome from once.key_claim('s', 'a$N', '{\"n\": 1}')",
            "in_progress",
        )
        .await;
        self.is(
            &with("select outcome, token = $T from once.key_claim('s', 'a$N', '{\"n\": 1.0}', holder => 'h$N')"),
            "claimed|t",
        )
        .await;
        self.is(
            &with("select done, attempted from once.key_step('s', 'a$N', $T, 'pay')"),
            "f|0",
        )
        .await;
        self.is(
            &with("select once.key_rotate('s', 'a$N', $T, 'pay', 1)"),
            "2",
        )
        .await;
        self.is(
            &with("select recorded, result from once.key_step_done('s', 'a$N', $T, 'pay', '7', on_complete => '{\"topic\": \"tour\", \"payload\": \"step $N\"}')"),
            "t|7",
        )
        .await;
        self.is(
            "select once.key_derive('s', 'a$N', 'pay') = once.key_derive('s', 'a$N', 'pay')",
            "t",
        )
        .await;
        self.is(
            &with(
                "select once.key_advance('s', 'a$N', $T, 'paid', '{\"at\":  1}') > interval '50 s'",
            ),
            "t",
        )
        .await;
        self.is(
            &with("select once.key_extend('s', 'a$N', $T, '5 min') > interval '4 min'"),
            "t",
        )
        .await;
        self.is(
            &with("select once.key_complete('s', 'a$N', $T, 201, '{\"b\":  2}', '{\"h\":  3}')"),
            "~",
        )
        .await;
        self.is(
            "select outcome, response_code, response_body, response_headers from once.key_claim('s', 'a$N', '{\"n\": 1}')",
            "replayed|201|{\"b\":  2}|{\"h\":  3}",
        )
        .await;
        self.is(
            "select status, recovery_point, state, json_array_length(steps) from once.key_get('s', 'a$N')",
            "finished|paid|{\"at\":  1}|1",
        )
        .await;
        self.is(
            "select outcome from once.key_claim_hashed('s', 'hashed$N', sha256('x'))",
            "claimed",
        )
        .await;
        self.is(
            "select once.scope_set('tour$N', '{\"lease\": \"5 s\"}') = once.scope_get('tour$N')",
            "t",
        )
        .await;
    }

    async fn verdicts(&self) {
        let claim = |key: &str| format!("select token from once.key_claim('v$N', '{key}')");
        let aborted = self.show(&claim("aborted")).await;
        self.show(&format!(
            "select once.key_abort('v$N', 'aborted', {aborted}, 500)"
        ))
        .await;
        self.is(
            "select once.key_forget('v$N', 'aborted'), once.key_forget('v$N', 'aborted')",
            "t|f",
        )
        .await;
        let released = self.show(&claim("released")).await;
        self.show(&format!(
            "select once.key_release('v$N', 'released', {released}, 'no')"
        ))
        .await;
        self.is(
            "select key, attempt, outcome from once.key_take_abandoned('v$N')",
            "released|2|resumed",
        )
        .await;
        let parked = self.show(&claim("parked")).await;
        self.show(&format!(
            "select once.key_park('v$N', 'parked', {parked}, 'timed out')"
        ))
        .await;
        self.is(
            "select outcome from once.key_claim('v$N', 'parked')",
            "parked",
        )
        .await;
        self.show("select once.key_resolve('v$N', 'parked', 1, 'complete', 200, '1')")
            .await;
        self.is(
            "select outcome, response_body from once.key_claim('v$N', 'parked')",
            "replayed|1",
        )
        .await;
    }

    async fn inbox(&self) {
        self.show("begin").await;
        self.is("select accepted from once.inbox_accept('s', 'm$N')", "t")
            .await;
        self.show("select once.inbox_record('s', 'm$N', '{\"v\":  1}')")
            .await;
        self.show("commit").await;
        self.is(
            "select accepted, verdict from once.inbox_accept('s', 'm$N')",
            "f|{\"v\":  1}",
        )
        .await;
        for (operation, outcome) in [("compensation", "skipped"), ("action", "refused")] {
            self.is(
                &format!("select once.inbox_barrier('s', 'saga$N', 'pay', '{operation}')"),
                outcome,
            )
            .await;
        }
    }

    async fn moves(&self) {
        self.show("insert into job (id, status) select $N * 100 + g, 'ready' from generate_series(0, 9) g")
            .await;
        self.is(
            "select moved, status, version, reason from once.transition('job', ($N * 100)::text, 'failed')",
            "t|failed|1|~",
        )
        .await;
        self.is(
            "select moved, reason from once.transition('job', ($N * 100)::text, 'failed', array['ready'])",
            "f|status",
        )
        .await;
        self.is(
            "select count(*) filter (where moved) from once.transition_many('job', array[($N * 100)::text, ($N * 100 + 1)::text], 'new')",
            "2",
        )
        .await;
        self.is("select once.machine_get('job') ->> 'machine'", "job")
            .await;
        self.show("select once.machine_guard('job', true)").await;
        let by_hand = "update job set status = 'done' where id = $N * 100 + 1";
        let by_hand = by_hand.replace("$N", &self.n.to_string());
        assert_eq!(self.play.code(&by_hand).await, "ON002", "{}", self.what);
        self.show("select once.machine_guard('job', false)").await;
        self.show("select count(*) from once.machine_check('job')")
            .await;
        self.show(
            "select * from once.sweep_action_release(10, 'job'); select once.machine_assert()",
        )
        .await;
        // Another machine comes and goes.
        self.show(
            "create table other$N (id int primary key, status text not null);
             select once.machine_define('{\"machine\": \"other$N\", \"table\": \"other$N\", \"id\": \"id\",
                \"status\": \"status\", \"status_types\": [\"a\", \"b\"], \"terminal\": [\"b\"],
                \"transitions\": [{\"from\": [\"a\"], \"to\": \"b\"}]}');
             select once.machine_drop('other$N')",
        )
        .await;
    }

    async fn actions(&self) {
        let claim = |at: &str, more: &str| {
            format!(
                "select token from once.action_claim('job', ($N * 100 + {at})::text, 'run'{more})"
            )
        };
        let token = self.show(&claim("2", ", holder => 'h$N'")).await;
        self.is(
            &format!(
                "select cancelling from once.action_extend('job', ($N * 100 + 2)::text, {token})"
            ),
            "f",
        )
        .await;
        self.is(
            &format!("select outcome, status, version from once.action_finish('job', ($N * 100 + 2)::text, {token}, '{{\"note\": \"x\"}}')"),
            "finished|done|2",
        )
        .await;
        let token = self.show(&claim("3", "")).await;
        self.is(
            &format!(
                "select status from once.action_release('job', ($N * 100 + 3)::text, {token}, 'no')"
            ),
            "ready",
        )
        .await;
        self.show(&claim("3", ", lease => '1 microsecond'")).await;
        self.show("update job set status = 'running' where id = $N * 100 + 4")
            .await;
        self.is("select once.action_adopt('job')", "1").await;
        self.is(
            "select done, failed from once.sweep_action_release()",
            "2|0",
        )
        .await;
        self.is(
            "select string_agg(status, ' ') from job where id between $N * 100 + 3 and $N * 100 + 4",
            "ready ready",
        )
        .await;
    }

    async fn teardown(&self) {
        self.show(
            "insert into item (id, job_id, state, points)
                select $N * 100 + g, $N * 100 + 5, case when g < 2 then 'succeeded' else 'failed' end, 10
                  from generate_series(0, 2) g",
        )
        .await;
        let before = self.show("select points from wallet").await;
        self.is(
            "select outcome from once.cancel_request('job', ($N * 100 + 5)::text)",
            "teardown",
        )
        .await;
        self.is(
            "select count(*) from once.cancel_pending('job') where id = ($N * 100 + 5)::text",
            "1",
        )
        .await;
        self.is(
            "select items, amount, remaining, pass from once.refund('job', ($N * 100 + 5)::text)",
            "3|20|f|1",
        )
        .await;
        self.is(&format!("select points - {before} from wallet"), "20")
            .await;
        self.is(
            "select count(*) from once.cleanup_items('job', ($N * 100 + 5)::text)",
            "3",
        )
        .await;
        self.is(
            "select once.cleanup_confirm('job', ($N * 100 + 5)::text, 1)",
            "t",
        )
        .await;
        self.is(
            "select status, items_total, amount_total from once.cancel_finish('job', ($N * 100 + 5)::text)",
            "cancelled|3|20",
        )
        .await;
        self.is("select count(*) from once.refund_audit('job')", "0")
            .await;
    }

    async fn events(&self) {
        self.is(
            "select once.topic_get('tour') -> 'subscribers'",
            "[\"default\", \"other\"]",
        )
        .await;
        self.is(
            "select once.subscriber_get('tour', 'other') ->> 'max_attempts'",
            "10",
        )
        .await;
        self.show(
            "select once.outbox_emit('tour', '{\"p\":  $N}', 'key$N', 'dedupe$N', '{\"h\":  1}'),
                    once.outbox_emit('tour', '\"free\"'), once.outbox_emit('tour', '\"late\"', delay => '1 day')",
        )
        .await;
        self.is(
            "select emitted from once.outbox_emit('tour', '2', dedupe_key => 'dedupe$N')",
            "f",
        )
        .await;
        // The event of the step, the one with a key and the one without.
        let taken = self
            .show("select token, attempt, payload, headers from once.outbox_take('tour', 'other', 100)")
            .await;
        let token = taken.split('|').next().unwrap();
        let mut payloads: Vec<_> = taken
            .lines()
            .map(|l| l.split_once('|').unwrap().1)
            .collect();
        payloads.sort_unstable();
        let expected = [
            "1|\"free\"|~",
            "1|\"step $N\"|~",
            "1|{\"p\":  $N}|{\"h\":  1}",
        ];
        let expected: Vec<_> = expected
            .map(|e| e.replace("$N", &self.n.to_string()))
            .into();
        assert_eq!(payloads, expected, "{}", self.what);
        self.is(
            &format!("select once.outbox_extend('tour', 'other', {token}) > interval '50 s'"),
            "t",
        )
        .await;
        self.is(
            &format!("select once.outbox_ack('tour', 'other', {token})"),
            "3",
        )
        .await;
    }

    async fn dead_letters(&self) {
        let taken = "select token, event_id, payload from once.outbox_take('tour', 'default', 100)";
        let rows = self.show(taken).await;
        let (token, rest) = rows.split_once('|').unwrap();
        assert_eq!(rows.lines().count(), 3, "{}: {rows}", self.what);
        let event = rest.split('|').next().unwrap();
        self.is(
            &format!("select dead from once.outbox_nack('tour', 'default', {token}, array[{event}], 'no such shop')"),
            "t",
        )
        .await;
        self.is(
            &format!("select once.outbox_ack('tour', 'default', {token})"),
            "2",
        )
        .await;
        self.is(
            "select event_id, attempts, error from once.outbox_dead('tour', 'default')",
            &format!("{event}|1|no such shop"),
        )
        .await;
        self.is(
            &format!("select attempt, kind, error from once.outbox_deliveries('tour', 'default', {event})"),
            "1|error|no such shop",
        )
        .await;
        self.is("select once.outbox_redrive('tour', 'default')", "1")
            .await;
        let again = self
            .show("select token, event_id from once.outbox_take('tour', 'default', 100)")
            .await;
        let (token, redriven) = again.split_once('|').unwrap();
        assert_eq!(redriven, event, "{}", self.what);
        self.show(&format!(
            "select once.outbox_ack('tour', 'default', {token})"
        ))
        .await;
        self.show("select once.subscriber_set('tour', 'third'); select once.subscriber_drop('tour', 'third')")
            .await;
    }

    async fn sweeps(&self) {
        for task in [
            "key_reap",
            "key_tombstone",
            "outbox_requeue",
            "inbox_reap",
            "dedupe_reap",
            "outbox_retire",
        ] {
            self.is(
                &format!("select task, failed from once.sweep_{task}(10)"),
                &format!("{task}|0"),
            )
            .await;
        }
        self.is("select count(*), sum(failed) from once.sweep(10)", "7|0")
            .await;
    }

    async fn rights(&self) {
        self.play.ensure_role("tour_role").await;
        let may =
            "select has_function_privilege('tour_role', 'once.machine_check(text)', 'execute')";
        self.show("select once.grant_role('tour_role', 'observe')")
            .await;
        self.is(may, "t").await;
        self.show("select once.revoke_role('tour_role', 'observe')")
            .await;
        self.is(may, "f").await;
    }
}

#[tokio::test]
async fn the_new_library_serves_the_old_schema_and_the_upgraded_one() {
    let why = "asks what one backend has called, and what it remembers after the update";
    let play = old().await.another_directly("postgres", why).await;
    play.show("set track_functions = 'all'").await;
    tour(&play, "before the update").await;
    // The tour leaves out nothing that was released but the functions of triggers.
    play.show("select pg_stat_force_next_flush()").await;
    let left_out = play
        .show(
            "select string_agg(p.proname, ' ') from pg_proc p left join pg_stat_user_functions f on f.funcid = p.oid
              where p.pronamespace = 'once'::regnamespace and coalesce(f.calls, 0) = 0
                and p.prorettype <> 'trigger'::regtype",
        )
        .await;
    assert_eq!(left_out, "~");
    tour(&play, "before the update, again").await;
    let another = play.another().await;
    tour(&another, "another session before the update").await;
    update(&play).await;
    tour(&play, "an old session after the update").await;
    tour(&another, "another old session after the update").await;
    tour(&play.another().await, "a new session after the update").await;
}
