//! A database with everything at once, half-way: live leases, parked and finished keys, steps, teardowns, actions,
//! refunds, batches that are out, delayed, failed and dead events, messages, sagas, options, owners, grants.
//!
//! Each line of the day notes the tokens that somebody holds; each line of the next day says what the database
//! must answer, wherever it has been moved to. A row is its columns joined by `|`.

use std::collections::BTreeMap;

use crate::playground::Playground;
use pg_once_tests::script;

pub const JOBS: &str = concat!(
    include_str!("../../../sql/examples/batch_job.sql"),
    "create table visit (id int primary key, status text not null);"
);
const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

pub const ROLES: &str = "
create role team; create role worker login in role team; create role boss login; create role stranger login";

/// Tokens by name: a statement's `{name}` is replaced by it.
pub type Tokens = BTreeMap<&'static str, String>;

pub const GRANTS: &str =
    "grant all on schema public to worker; grant usage on schema once to worker";

const SETUP: [&str; 11] = [
    GRANTS,
    "select once.grant_role('worker', 'use'), once.grant_role('boss', 'operate'), once.grant_role('stranger', 'use')",
    r#"select once.scope_set('s', '{"keep_request": true, "max_attempts": 9, "gone_for": "3 days"}')"#,
    r#"select once.scope_set('team', '{"owner": "team", "lease": "1 hour"}')"#,
    r#"select once.topic_set('t', '{"lanes": 4, "dedupe_for": "2 days", "subscribers": ["default", "idle"]}')"#,
    r#"select once.topic_set('team', '{"owner": "team"}')"#,
    r#"select once.machine_define('{"machine": "visit", "owner": "team", "table": "public.visit", "id": "id",
        "status": "status", "status_types": ["open", "done"], "transitions": [{"from": ["open"], "to": "done"}]}')"#,
    "select once.topic_set('undo', '{}')",
    r#"select once.subscriber_set('t', 'default', '{"backoff_base": "10 min", "backoff_cap": "10 min"}')"#,
    "select once.machine_guard('batch_job', true)",
    // Ten jobs of ten customers, each with two successes (3 and 4 points) and an item to be done.
    "insert into wallet select 'c' || g, 993 from generate_series(1, 10) as g;
     insert into batch_job (customer) select 'c' || g from generate_series(1, 10) as g;
     insert into batch_item (job_id, input, state, points, artifact)
     select j.id, i.n, i.s, i.p, j.id || '-' || i.n from batch_job as j,
            (values ('1', 'succeeded', 3), ('2', 'succeeded', 4), ('3', 'pending', 5)) as i(n, s, p) order by 1, 2",
];

/// What is done, a statement a line; `name <-` keeps the token that it gives.
const DAY: &str = r#"
-- Keys.
key <- select token from once.key_claim('s', 'held', '{"n": 1.00}', '1 hour', holder => 'h')
select once.key_step('s', 'held', {key}, 'pay', '{"topic": "undo", "payload": "unpay"}')
select once.key_step_done('s', 'held', {key}, 'pay', '{"id":   1}', on_complete => '{"topic": "t", "payload": "paid"}')
select once.key_advance('s', 'held', {key}, 'paid', '{"b":  1,"a":2}')
select once.key_rotate('s', 'held', {key}, 'ship', 1)
derived <- select once.key_derive('s', 'held', 'ship')
select once.key_step('s', 'held', {key}, 'mail', '{"topic": "undo", "payload": "unmail"}')
step <- select token from once.key_claim('s', 'undone', '{}', '1 hour', holder => 'h')
select once.key_step('s', 'undone', {step}, 'pay', '{"topic": "undo", "payload": "unpay undone"}')
expired <- select token from once.key_claim('s', 'expired', '{"n": 1}', '1 microsecond')
select once.key_step('s', 'expired', {expired}, 'pay')
parked <- select token from once.key_claim('s', 'parked', '{}')
select once.key_park('s', 'parked', {parked}, 'timed out')
released <- select token from once.key_claim('s', 'released', '{}')
select once.key_release('s', 'released', {released}, 'no')
done <- select token from once.key_claim('s', 'done', '{"a": 1}')
select once.key_complete('s', 'done', {done}, 201, E'{"a":  1.0e3,\n "a": 2}', '{"X":  "y"}')
gone <- select token from once.key_claim('s', 'gone', '{}', ttl => '1 microsecond')
select once.key_complete('s', 'gone', {gone}, 200)
select once.sweep(task => 'key_tombstone')
select once.key_claim('team', 'k', '{}')
-- Jobs: 1 queued, 2 running, 3 running and flagged, 4 flagged, 5 half refunded, 6 refunded, 7 confirmed,
-- 8 cancelled, 9 done, 10 running with a lease that ran out.
run <- select token from once.action_claim('batch_job', '2', 'run', 'worker', '1 hour', 'w')
flagged <- select token from once.action_claim('batch_job', '3', 'run', 'worker', '1 hour', 'w')
select once.cancel_request('batch_job', g::text) from generate_series(3, 8) as g
select once.cancel_refund('batch_job', '5', 2)
select once.cancel_refund('batch_job', g::text) from generate_series(6, 8) as g
select once.cancel_confirm('batch_job', g::text, 1) from generate_series(7, 8) as g
select once.cancel_finish('batch_job', '8')
finished <- select token from once.action_claim('batch_job', '9', 'run', 'worker', '1 hour', 'w')
begin; select once.action_finish('batch_job', '9', {finished}); update batch_item set settled = 'kept' where job_id = 9; commit
overdue <- select token from once.action_claim('batch_job', '10', 'run', 'worker', '1 microsecond', 'w')
-- Events, for a subscriber at work and one that has got nothing yet.
select once.outbox_emit('t', '"acked"')
acked <- select token from once.outbox_take('t')
select once.outbox_ack('t', 'default', {acked})
select once.outbox_emit('t', '"dead"')
dead <- select token from once.outbox_take('t')
select once.outbox_nack('t', 'default', {dead}, kind => 'never', error => 'no')
select once.outbox_emit('t', '"failed"')
failed <- select token from once.outbox_take('t')
select once.outbox_nack('t', 'default', {failed}, error => 'not now')
select once.outbox_emit('t', '"whole"'), once.outbox_emit('t', '"whole 2"')
whole <- select max(token) from once.outbox_take('t', lease => '1 hour')
select once.outbox_emit('t', '"half"'), once.outbox_emit('t', '"half 2"')
half <- select max(token) from once.outbox_take('t', lease => '1 hour')
select once.outbox_ack('t', 'default', {half}, array[(select event_id from once.event_0 where payload #>> '{}' = 'half')])
select once.outbox_emit('t', '"k1"', 'key')
keyed <- select token from once.outbox_take('t', lease => '1 hour')
select once.outbox_emit('t', '"k2"', 'key'), once.outbox_emit('t', '"o1"', 'other'), once.outbox_emit('t', '"o2"', 'other')
select once.outbox_emit('t', '"delayed"', delay => '2 h')
deduped <- select event_id from once.outbox_emit('t', '"deduped"', dedupe_key => 'd')
select once.outbox_emit('t', '"pending"', headers => '{"h":  1}')
select once.outbox_emit('team', '"ours"')
-- Messages and sagas.
select once.inbox_accept('i', 'm'); select once.inbox_record('i', 'm', '{"v":  1}')
select once.inbox_barrier('i', 'saga', 'paid', 'action')
select once.inbox_barrier('i', 'saga', 'shipped', 'compensation')
"#;

/// What the moved database answers, in this order: a statement, and its answer behind four spaces. `role:` names who
/// asks; else it is a superuser.
const NEXT_DAY: &str = r#"
-- Emits before the first take: the new cluster's series begins here.
select emitted from once.outbox_emit('t', '"new"')
    t
select emitted, event_id = {deduped} from once.outbox_emit('t', '"again"', dedupe_key => 'd')
    f|t
select emitted from once.outbox_emit('t', '"o3"', 'other')
    t
select once.topic_set('later') is not null
    t
-- Keys.
select outcome, response_code, response_body, response_headers from once.key_claim('s', 'done', '{"a": 1.0}')
    replayed|201|{"a":  1.0e3,
     "a": 2}|{"X":  "y"}
select outcome from once.key_claim('s', 'done', '7')
    mismatched
select outcome from once.key_claim('s', 'gone', '{}')
    gone
select outcome from once.key_claim('s', 'parked', '{}')
    parked
select outcome from once.key_claim('s', 'held', '{"n": 1}')
    in_progress
select outcome, token, recovery_point, state from once.key_claim('s', 'held', '{"n": 1}', holder => 'h')
    resumed|{key}|paid|{"b":  1,"a":2}
select once.key_derive('s', 'held', 'ship')
    {derived}
select done, result from once.key_step('s', 'held', {key}, 'pay')
    t|{"id":   1}
select once.key_rotate('s', 'held', {key}, 'ship', 1), once.key_rotate('s', 'held', {key}, 'mail', 1)
    2|2
select lease_left > '59 min' from once.key_extend('s', 'held', {key}, '1 hour')
    t
select once.key_complete('s', 'held', {key}, 200)
    ~
select once.key_abort('s', 'undone', {step}, 500)
    ~
select done > 0 from once.sweep(task => 'key_abandon')
    t
select key, request from once.key_take_abandoned('s', holder => 'c') where key = 'expired'
    expired|{"n": 1}
select k.token > {expired}, s.attempted from once.key as k, once.key_step('s', 'expired', k.token, 'pay') as s where k.key = 'expired'
    t|1
select once.key_resolve('s', 'parked', 1, 'retry')
    ~
select outcome, attempt from once.key_claim('s', 'parked', '{}')
    resumed|2
select o ->> 'max_attempts', o ->> 'gone_for' from once.scope_get('s') as o
    9|72:00:00
select once.key_forget('s', 'gone')
    t
select outcome, attempt from once.key_claim('s', 'gone', '7')
    claimed|1
-- Owners and grants.
worker: select outcome from once.key_claim('team', 'k', '{}')
    in_progress
stranger: select outcome from once.key_claim('team', 'k', '{}')
    42501
stranger: select * from once.outbox_take('team')
    42501
worker: select payload, attempt from once.outbox_take('team')
    "ours"|1
worker: select count(*) from once.key
    42501
worker: select task from once.sweep(task => 'key_reap')
    42501
boss: select task from once.sweep(task => 'key_reap')
    key_reap
-- Jobs. Each row in a claim state has its lease.
select once.action_adopt('batch_job')
    0
update batch_job set status = 'running' where id = 1
    ON002
update batch_item set settled = null where job_id = 6
    ON002
update batch_job set status = 'queued' where id = 8
    ON002
update batch_job set status = 'queued' where id = 2
    ON002
select string_agg(id, ' ' order by id) from once.cancel_pending('batch_job')
    4 5 6 7
select outcome, token from once.action_claim('batch_job', '2', 'run', 'worker', holder => 'w')
    claimed|{run}
select cancelling from once.action_extend('batch_job', '2', {run})
    f
select outcome, status from once.action_finish('batch_job', '2', {run})
    finished|done
select outcome from once.action_finish('batch_job', '3', {flagged})
    cancelling
select status from once.action_release('batch_job', '3', {flagged})
    queued
select done, failed from once.sweep(10, 'action_release')
    1|0
select status from batch_job where id = 10
    queued
select once.action_finish('batch_job', '10', {overdue})
    ON001
select outcome, status from once.action_finish('batch_job', '9', {finished})
    ON006
select status from once.cancel_finish('batch_job', '6')
    ON005
select status from once.cancel_finish('batch_job', '7')
    cancelled
select sum(items), sum(amount), bool_or(remaining) from (values ('3'), ('4'), ('5'), ('6'), ('7'), ('8')) as j(id), once.cancel_refund('batch_job', j.id)
    7|14|f
select count(*) from (values ('3'), ('4'), ('5'), ('6')) as j(id), once.cancel_refund('batch_job', j.id) as r, once.cancel_confirm('batch_job', j.id, r.pass) as c where c
    4
select count(*) from (values ('3'), ('4'), ('5'), ('6')) as j(id), once.cancel_finish('batch_job', j.id)
    4
select string_agg(points::text, ' ' order by length(customer), customer) from wallet
    993 993 1000 1000 1000 1000 1000 1000 993 993
select count(*) from once.cancel_audit('batch_job')
    0
-- Events: whoever holds a batch goes on with it, and what was not acked comes, once.
select string_agg(payload #>> '{}', ' ' order by order_key, event_id) from once.outbox_take('t', max => 100) where once.outbox_ack('t', 'default', token, array[event_id]) > 0 and order_key is not null
    o1 o2 o3
select once.outbox_ack('t', 'default', {keyed})
    1
select once.outbox_extend('t', 'default', {whole}) > '0', once.outbox_ack('t', 'default', {whole}), once.outbox_ack('t', 'default', {whole})
    t|2|2
select once.outbox_ack('t', 'default', {half}), once.outbox_ack('t', 'default', {half})
    1|1
select once.outbox_ack('t', 'default', {acked})
    ON006
select payload #>> '{}', attempts, kind, error from once.outbox_dead('t', 'default')
    dead|1|never|no
select once.outbox_redrive('t', 'default')
    1
select kind, error from once.event_0 as e, once.outbox_deliveries('t', 'default', e.event_id) where payload #>> '{}' = 'failed'
    error|not now
-- Messages and sagas.
select accepted, verdict from once.inbox_accept('i', 'm')
    f|{"v":  1}
select once.inbox_barrier('i', 'saga', 'paid', 'action')
    duplicate
select once.inbox_barrier('i', 'saga', 'paid', 'compensation')
    run
select once.inbox_barrier('i', 'saga', 'shipped', 'action')
    refused
select count(*) from once.machine_check() where problem not like 'claim states are not covered%'
    0
"#;

/// Everything that must come to each subscriber after the lines above, whatever the order.
const DEFAULT_GETS: &str = "dead deduped delayed failed k2 new paid pending";
const IDLE_GETS: &str =
    "acked dead deduped delayed failed half half 2 k1 k2 new o1 o2 o3 paid pending whole whole 2";
const UNDO_GETS: &str = "unpay undone";

/// Everything that is stored, but for caches: equal before and after a move.
const STORED: &str = "
select string_agg(format('select %L || t::text from %s as t', relname || ' ', oid::regclass), ' union all ')
  from pg_class
 where relkind = 'r' and relname not in ('key_mark', 'key_locked')
   and relnamespace in ('once'::regnamespace, 'public'::regnamespace)";

fn filled(sql: &str, tokens: &Tokens) -> String {
    let mut filled = sql.to_owned();
    for (name, token) in tokens {
        filled = filled.replace(&format!("{{{name}}}"), token);
    }
    filled
}

/// Makes everything; the roles are there already.
pub async fn a_working_day(play: &Playground) -> Tokens {
    play.show(&format!("select once.machine_define($m${MACHINE}$m$)"))
        .await;
    for sql in SETUP {
        play.show(sql).await;
    }
    let mut tokens = Tokens::new();
    for line in script::lines(DAY) {
        let (name, sql) = line.split_once(" <- ").unwrap_or(("", line));
        let shown = play.show(&filled(sql, &tokens)).await;
        if !name.is_empty() {
            let is_token = !shown.is_empty() && !shown.contains('\n');
            assert!(is_token, "{name}: {shown}");
            tokens.insert(name, shown);
        }
    }
    tokens
}

/// All rows of all tables of the extension and the user, sorted.
pub async fn stored(play: &Playground) -> String {
    let union = play.show(STORED).await;
    let all = format!(
        "select coalesce(string_agg(r, E'\\n' order by r collate \"C\"), '') from ({union}) as t(r)"
    );
    play.show(&all).await
}

/// Goes through the next day; `sessions` gives a session of a role (empty: a superuser).
pub async fn goes_on(tokens: &Tokens, sessions: impl AsyncFn(&str) -> Playground) {
    let play = sessions("").await;
    for step in script::steps(NEXT_DAY) {
        let (sql, expected) = (filled(step.sql, tokens), filled(&step.answer, tokens));
        let role = step.name;
        let answer = match role {
            "" => play.attempt(&sql).await,
            role => sessions(role).await.attempt(&sql).await,
        };
        let answer = answer.unwrap_or_else(|refusal| refusal.code);
        assert_eq!(answer, expected, "{role} {sql}");
    }
    let mut rest = Vec::new();
    for (topic, subscriber) in [("t", "default"), ("t", "idle"), ("undo", "default")] {
        rest.push(drain(&play, topic, subscriber).await);
    }
    assert_eq!(rest, [DEFAULT_GETS, IDLE_GETS, UNDO_GETS]);
    // Far away everything that may go goes.
    for years in [1, 2, 3] {
        ahead(&play, &format!("{years} years")).await;
        let failed = "select coalesce(sum(failed), 0) from once.sweep(100000)";
        assert_eq!(play.show(failed).await, "0");
    }
}

async fn ahead(play: &Playground, interval: &str) {
    play.show(&format!(
        "select set_config('once.fake_now', (clock_timestamp() + interval '{interval}')::text, false)"
    ))
    .await;
}

/// All that is due now and later, each once; acked.
async fn drain(play: &Playground, topic: &str, subscriber: &str) -> String {
    let mut names = Vec::new();
    let take = format!(
        "select token, payload #>> '{{}}' from once.outbox_take('{topic}', '{subscriber}', 5)"
    );
    for hours in [0, 1, 3] {
        ahead(play, &format!("{hours} hours")).await;
        loop {
            let rows = play.show(&take).await;
            let Some((token, _)) = rows.split_once('|') else {
                break;
            };
            let taken = rows.lines().filter_map(|row| row.split_once('|'));
            names.extend(taken.map(|(_, name)| name.to_owned()));
            play.show(&format!(
                "select once.outbox_ack('{topic}', '{subscriber}', {token})"
            ))
            .await;
        }
    }
    play.show("reset once.fake_now").await;
    names.sort();
    names.join(" ")
}
