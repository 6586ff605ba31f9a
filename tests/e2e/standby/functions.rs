//! Every function of the schema in READ ONLY transactions and on a hot standby: each either answers, with what is
//! known there, or says with 25006 and a hint that it cannot. A function that is in no list here fails the test.

use std::collections::BTreeMap;

use crate::playground::Playground;
use crate::{on, primary};
use pg_once_tests::script;

pub const JOBS: &str = include_str!("../../../sql/examples/batch_job.sql");
pub const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

/// What is there when the standby is asked: keys held, finished, parked and lost, a job that runs and one that is
/// half torn down, a batch that is out, a dead event, a message and a saga, and a message that a sweep has removed.
const PREPARE: &[&str] = &[
    "select once.machine_guard('batch_job', true)",
    "insert into wallet values ('c', 1000)",
    "insert into batch_job (customer) select 'c' from generate_series(1, 3)",
    "insert into batch_item (job_id, input, state, points, artifact) values (2, 'i', 'succeeded', 3, 'a'), (2, 'i', 'succeeded', 3, 'b')",
    "select once.action_claim('batch_job', '1', 'run', 'worker', '1 hour', 'h')",
    "select once.cancel_request('batch_job', '2'), once.cancel_refund('batch_job', '2')",
    "select once.inbox_accept('i', 'old', '1 microsecond')",
    "select once.sweep()",
    "select once.key_complete('s', 'done', (once.key_claim('s', 'done')).token, 201, '1')",
    "select once.key_park('s', 'parked', (once.key_claim('s', 'parked')).token, 'unknown')",
    "select once.key_claim('s', 'lost', lease => '1 microsecond')",
    "select once.sweep(task => 'key_abandon')",
    "select once.key_complete('s', 'gone', (once.key_claim('s', 'gone', ttl => '1 microsecond')).token, 200)",
    "select once.key_step('s', 'held', (once.key_claim('s', 'held', lease => '1 hour', holder => 'h')).token, 'pay')",
    "select once.topic_set('t', '{}')",
    "select once.outbox_emit('t', '1')",
    "select once.outbox_nack('t', 'default', (select token from once.outbox_take('t')), kind => 'never')",
    "select once.outbox_emit('t', '2')",
    "select once.outbox_take('t')",
    "select once.outbox_emit('t', '3', dedupe_key => 'd')",
    "select once.inbox_accept('i', 'm'); select once.inbox_record('i', 'm', '\"v\"')",
    "select once.inbox_barrier('i', 'saga', 'step', 'action')",
    "select once.inbox_barrier('i', 'saga', 'skipped', 'compensation')",
];

/// A function, its call, and behind four spaces the answer or SQLSTATE; `TOKEN` is the token of the thing in question.
const ANSWER: &str = r#"
incarnation: select once.incarnation() > 0
    t
key_claim: select outcome, response_body from once.key_claim('s', 'done')
    replayed|1
key_claim: select outcome from once.key_claim('s', 'done', '7')
    mismatched
key_claim: select outcome from once.key_claim('s', 'gone')
    gone
key_claim: select outcome from once.key_claim('s', 'held')
    in_progress
key_claim: select outcome, token = TOKEN from once.key_claim('s', 'held', holder => 'h')
    claimed|t
key_claim: select outcome from once.key_claim('s', 'parked')
    parked
key_claim: select outcome from once.key_claim('s', 'done', fingerprint => sha256('x'))
    mismatched
key_derive: select length(once.key_derive('s', 'done', 'pay'))
    69
key_get: select status from once.key_get('s', 'parked')
    parked
key_list: select count(*) from once.key_list('s')
    5
key_step: select attempted from once.key_step('s', 'held', TOKEN, 'pay')
    0
scope_get: select once.scope_get('s') ->> 'keep_request'
    false
machine_get: select once.machine_get('batch_job') ->> 'machine'
    batch_job
machine_check: select count(*) from once.machine_check()
    0
machine_assert: select once.machine_assert()
    ~
cancel_items: select item ->> 'artifact' from once.cancel_items('batch_job', '2')
    a
    b
cancel_items: select item ->> 'artifact' from once.cancel_items('batch_job', '2', '1', 10)
    b
cancel_pending: select id from once.cancel_pending('batch_job')
    2
cancel_request: select outcome from once.cancel_request('batch_job', '2')
    teardown
cancel_audit: select count(*) from once.cancel_audit('batch_job')
    0
transition: select moved, reason from once.transition('batch_job', '99', 'failed')
    f|not_found
action_claim: select outcome from once.action_claim('batch_job', '1', 'run', 'worker')
    in_progress
topic_get: select once.topic_get('t') ->> 'lanes'
    16
subscriber_get: select once.subscriber_get('t', 'default') ->> 'max_attempts'
    10
outbox_dead: select payload, kind from once.outbox_dead('t', 'default')
    1|never
action_get: select status, attempts, step_key from once.action_get('batch_job', '1')
    running|1|run
action_list: select machine, id from once.action_list('batch_job') limit 1
    batch_job|1
machine_list: select machine, guarded from once.machine_list() where machine = 'batch_job'
    batch_job|t
machine_history: select count(*) from once.machine_history('batch_job', '1')
    0
machine_diagram: select once.machine_diagram('batch_job') like 'stateDiagram-v2%'
    t
scope_list: select count(*) > 0 from once.scope_list()
    t
role_list: select count(*) from once.role_list() where role like 'role_list%'
    0
shard_of: select once.shard_of('acme', 16)
    1
shard_get: select once.shard_get()
    ~
verify: select count(*) from once.verify()
    0
outbox_peek: select state from once.outbox_peek('t') limit 1
    leased
topic_list: select topic, subscriber, dead from once.topic_list() where topic = 't'
    t|default|1
outbox_deliveries: select d.kind from once.outbox_dead('t', 'default') as e, once.outbox_deliveries('t', 'default', e.event_id) as d
    never
inbox_accept: select accepted, verdict from once.inbox_accept('i', 'm')
    f|"v"
inbox_record: select once.inbox_record('i', 'm', '"v"')
    ON006
inbox_barrier: select once.inbox_barrier('i', 'saga', 'step', 'action')
    duplicate
inbox_barrier: select once.inbox_barrier('i', 'saga', 'skipped', 'action')
    refused
inbox_barrier: select once.inbox_barrier('i', 'saga', 'skipped', 'compensation')
    skipped
janitor_status: select due, done, failed from once.janitor_status() where task = 'inbox_reap'
    0|1|0
metrics: select labels ->> 'topic', value from once.metrics() where name = 'outbox_dead_letters'
    t|1
metrics: select labels ->> 'state', value from once.metrics() where name = 'pg_once_action_leases' order by 1
    alive|1
    deferred|0
    overdue|0
metrics: select labels ->> 'state', value from once.metrics() where name = 'pg_once_key_leases' order by 1
    alive|1
    overdue|1
    waiting|0
doctor: select level, problem, hint <> '' from once.doctor() where problem ~ 'parked|dead letters' order by 2
    info|1 keys are parked|t
    warning|dead letters are growing: topic "t", subscriber "default"|t
"#;

/// Calls that end with 25006, whatever they would find.
const REFUSED: &str = r#"
once.key_claim('s', 'new')
once.key_claim('s', 'lost')
once.key_claim('s', 'new', fingerprint => sha256('x'))
once.key_advance('s', 'held', TOKEN, 'p')
once.key_complete('s', 'held', TOKEN, 200)
once.key_abort('s', 'held', TOKEN, 500)
once.key_release('s', 'held', TOKEN)
once.key_park('s', 'held', TOKEN, 'why')
once.key_resolve('s', 'parked', 1, 'retry')
once.key_extend('s', 'held', TOKEN)
once.key_step('s', 'held', TOKEN, 'other')
once.key_step_done('s', 'held', TOKEN, 'pay')
once.key_rotate('s', 'held', TOKEN, 'pay', 1)
once.key_take_abandoned('s')
once.key_expire('s', 'held')
once.key_forget('s', 'done')
once.scope_set('s', '{"lease": "1 s"}')
once.machine_define('{"machine": "m", "table": "batch_job", "id": "id", "status": "result", "status_types": ["a"], "terminal": ["a"], "transitions": []}')
once.machine_drop('batch_job')
once.machine_guard('batch_job', false)
once.transition('batch_job', '3', 'failed')
once.transition_many('batch_job', array['3'], 'failed')
once.action_claim('batch_job', '3', 'run', 'worker')
once.action_extend('batch_job', '1', TOKEN)
once.action_finish('batch_job', '1', TOKEN)
once.action_release('batch_job', '1', TOKEN)
once.action_expire('batch_job', '1')
once.action_adopt('batch_job')
once.cancel_request('batch_job', '3')
once.cancel_refund('batch_job', '2')
once.cancel_confirm('batch_job', '2', 1)
once.cancel_finish('batch_job', '2')
once.outbox_emit('t', '4')
once.outbox_emit('t', '4', dedupe_key => 'new')
once.outbox_emit('t', '4', delay => '1 s')
once.outbox_take('t')
once.outbox_ack('t', 'default', TOKEN)
once.outbox_nack('t', 'default', TOKEN)
once.outbox_extend('t', 'default', TOKEN)
once.outbox_redrive('t', 'default')
once.outbox_discard('t', 'default', array[1])
once.topic_set('t', '{"dedupe_for": "1 day"}')
once.subscriber_set('t', 'other')
once.subscriber_set('t', 'default')
once.shard_set(0, 16)
once.topic_drop('t')
once.subscriber_drop('t', 'default')
once.inbox_accept('i', 'new')
once.inbox_barrier('i', 'saga', 'step', 'compensation')
once.sweep()
once.sweep(task => 'key_abandon')
once.sweep(task => 'key_reap')
once.sweep(task => 'key_tombstone')
once.sweep(task => 'action_release')
once.sweep(task => 'outbox_requeue')
once.sweep(task => 'outbox_retire')
once.sweep(task => 'inbox_reap')
once.sweep(task => 'dedupe_reap')
once.sweep(task => 'dead_reap')
once.sweep(task => 'history_reap')
once.incarnation_renew()
once.grant_role('pg_monitor', 'use')
once.revoke_role('pg_monitor', 'use')
"#;

/// Each function of `REFUSED`, and its call.
fn refused() -> impl Iterator<Item = (&'static str, &'static str)> {
    script::lines(REFUSED).map(|call| (call["once.".len()..].split('(').next().unwrap(), call))
}

/// Called by triggers and by the extension's own SQL only, or a procedure of its own (`CALL`).
const NOT_CALLED: [&str; 3] = ["machine_guard_row", "machine_guard_item", "sweep_all"];

/// Functions of the schema that nobody needs a right for are none: those that are not C are parts of others.
const FUNCTIONS: &str = "
select p.proname from pg_proc as p join pg_depend as d on d.objid = p.oid and d.deptype = 'e'
 where p.pronamespace = 'once'::regnamespace and p.proname not like '\\_%' group by p.proname order by 1";

async fn tokens(play: &Playground) -> BTreeMap<&'static str, String> {
    let of = |sql: &'static str| play.show(sql);
    BTreeMap::from([
        (
            "key",
            of("select token from once.key where key = 'held'").await,
        ),
        (
            "action",
            of("select token from once.action_lease where row_id = '1'").await,
        ),
        ("outbox", of("select max(token) from once.batch").await),
    ])
}

/// Puts the token of the thing that the function is about into its call.
fn with_token(function: &str, call: &str, tokens: &BTreeMap<&'static str, String>) -> String {
    let noun = function.split('_').next().unwrap();
    let token = tokens.get(noun).map_or("0", String::as_str);
    call.replace("TOKEN", token)
}

/// Every row of the extension and of the machine's tables.
async fn stored(play: &Playground) -> String {
    let rows = play
        .show(
            "select string_agg(format('select %L || t::text from %s as t', oid::regclass, oid::regclass), ' union all ')
               from pg_class where relkind = 'r' and relnamespace in ('once'::regnamespace, 'public'::regnamespace)",
        )
        .await;
    play.show(&format!("{rows} order by 1")).await
}

/// What answers otherwise than the tables say, where nothing can be written.
async fn wrong_answers(session: &Playground, tokens: &BTreeMap<&'static str, String>) -> String {
    let mut wrong = Vec::new();
    for asked in script::steps(ANSWER) {
        let (call, answer) = (with_token(asked.name, asked.sql, tokens), asked.answer);
        match session.attempt(&call).await {
            Ok(shown) if shown == answer => {}
            Err(refusal) if refusal.code == answer => {}
            other => wrong.push(format!("{call}: {other:?}, not {answer}")),
        }
    }
    let refused = refused()
        .map(|(function, call)| format!("select * from {}", with_token(function, call, tokens)));
    for call in refused.chain(["call once.sweep_all()".to_owned()]) {
        match session.attempt(&call).await {
            Err(refusal) if refusal.code == "25006" && !refusal.hint.is_empty() => {}
            other => wrong.push(format!("{call}: {other:?}, not 25006 with a hint")),
        }
    }
    wrong.join("\n")
}

#[tokio::test]
async fn every_function_answers_where_nothing_can_be_written_or_says_that_it_cannot() {
    let (cluster, play) = primary().await;
    play.show(JOBS).await;
    play.show(&format!("select once.machine_define($m${MACHINE}$m$)"))
        .await;
    for sql in PREPARE {
        play.show(sql).await;
    }
    let functions = play.show(FUNCTIONS).await;
    let named = |function: &str| {
        script::steps(ANSWER).any(|asked| asked.name == function)
            || refused().any(|(name, _)| name == function)
            || NOT_CALLED.contains(&function)
    };
    let unnamed: Vec<&str> = functions.lines().filter(|f| !named(f)).collect();
    assert!(
        unnamed.is_empty(),
        "say here what these do where nothing can be written: {unnamed:?}"
    );

    let tokens = tokens(&play).await;
    let before = stored(&play).await;
    // A session of its own: CALL goes by the settings of its session.
    let reader = Playground::of(cluster.connect("shop").await.unwrap(), "shop");
    reader.show("set default_transaction_read_only = on").await;
    for level in ["read committed", "repeatable read", "serializable"] {
        reader
            .show(&format!("set default_transaction_isolation = '{level}'"))
            .await;
        assert_eq!(wrong_answers(&reader, &tokens).await, "", "{level}");
    }
    assert_eq!(stored(&play).await, before);

    let standby = cluster.standby().unwrap();
    standby.wait_caught_up(&cluster).await.unwrap();
    assert_eq!(wrong_answers(&on(&standby).await, &tokens).await, "");
}
