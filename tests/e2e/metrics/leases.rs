//! Leases that are alive, overdue, waiting, parked or deferred; sweeps and refunds.

use super::depth::pages_of;
use super::files::read;
use super::{orders, value};
use crate::history::{abandoned, finished};
use crate::playground::Playground;

const KEYS: &str = "select string_agg(labels ->> 'state' || ' ' || value, ', ') from once.metrics() where name = 'pg_once_key_leases'";

async fn keys(play: &Playground) -> String {
    play.show(KEYS).await
}

#[tokio::test]
async fn keys_are_counted_by_what_they_are_at_in_every_scope() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show("create role owner_of_keys; grant owner_of_keys to postgres; select once.scope_set('closed', '{\"owner\": \"owner_of_keys\"}')").await;
    play.show("select once.scope_set('strict', '{\"on_expiry\": \"park\"}')")
        .await;
    for scope in ["a", "b", "closed", "strict"] {
        play.show(&format!(
            "select once.key_claim('{scope}', 'k', lease => '1 min')"
        ))
        .await;
    }
    let done = play.token("done", "").await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 200)"
    ))
    .await;
    let held = play.token("held", ", lease => '10 s'").await;
    play.show(&format!(
        "select once.key_extend('s', 'held', {held}, '1 h')"
    ))
    .await;
    let later = play.token("later", "").await;
    play.show(&format!(
        "select once.key_release('s', 'later', {later}, retry_after => '2 min')"
    ))
    .await;
    let parked = play.token("parked", "").await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'why')"
    ))
    .await;
    assert_eq!(keys(&play).await, "alive 5, overdue 0, waiting 1");
    assert_eq!(value(&play, "pg_once_keys_parked", "{}").await, "1");
    assert_eq!(
        value(&play, "pg_once_leases_complete", r#"{"of": "keys"}"#).await,
        "1"
    );

    // The extended one is alive still, that of the strict scope is parked by its expiry.
    play.clock("90 s").await;
    play.show("select once.sweep(task => 'key_abandon')").await;
    assert_eq!(keys(&play).await, "alive 1, overdue 3, waiting 1");
    assert_eq!(value(&play, "pg_once_keys_parked", "{}").await, "2");
    assert_eq!(
        value(&play, "pg_once_keys_overdue_seconds", "{}").await,
        "30"
    );
    play.show("select count(*) from once.key_take_abandoned('a')")
        .await;
    assert_eq!(keys(&play).await, "alive 2, overdue 2, waiting 1");
}

/// For how long the oldest overdue key has waited, in seconds.
async fn overdue(play: &Playground) -> f64 {
    let seconds = value(play, "pg_once_keys_overdue_seconds", "{}").await;
    seconds.parse().unwrap()
}

/// From when on RequestsAbandoned says so.
fn alert() -> f64 {
    let rules = read("alerts.yml");
    let rule = rules.split("- alert: RequestsAbandoned").nth(1).unwrap();
    let expression = "expr: pg_once_keys_overdue_seconds > ";
    let seconds = rule.split(expression).nth(1).unwrap();
    seconds.lines().next().unwrap().parse().unwrap()
}

/// A defect once: in a scope with traffic and without a completer the alert could not fire.
#[tokio::test]
async fn an_abandoned_request_is_told_however_many_newer_ones_are_finished() {
    let play = Playground::open().await;
    finished(&play, "s", "before", 5_000, "60 min").await;
    abandoned(&play, "s", "dead", "45 min").await;
    abandoned(&play, "s", "dead, too", "44 min").await;
    finished(&play, "s", "after", 12_000, "1 min").await;
    for key in ["a", "b", "c"] {
        play.token(key, ", lease => '1 h'").await;
    }
    assert_eq!(keys(&play).await, "alive 3, overdue 0, waiting 0");
    let done = "select sum(done) from once.sweep() where task = 'key_abandon'";
    assert_eq!(play.show(done).await, "2");
    assert!(overdue(&play).await > alert());
    assert!((2_700.0..4_000.0).contains(&overdue(&play).await));
    assert_eq!(keys(&play).await, "alive 3, overdue 2, waiting 0");
    let complete = value(&play, "pg_once_leases_complete", r#"{"of": "keys"}"#).await;
    assert_eq!(complete, "1");
    let doctor = "select problem from once.doctor() where problem like '%wait to be resumed%'";
    play.ask(doctor)
        .is("2 unfinished requests wait to be resumed")
        .await;
    // It stays so while there is more traffic and nobody goes on.
    finished(&play, "s", "still", 5_000, "10 s").await;
    for _ in 0..3 {
        play.show("select count(*) from once.sweep()").await;
        assert!(overdue(&play).await > alert());
    }
    let taken = "select string_agg(key, ', ' order by key) from once.key_take_abandoned('s', lease => '1 h')";
    assert_eq!(play.show(taken).await, "dead, dead, too");
    assert_eq!(overdue(&play).await, 0.0);
    assert_eq!(keys(&play).await, "alive 5, overdue 0, waiting 0");
}

#[tokio::test]
async fn one_call_of_sweep_all_is_enough() {
    let play = Playground::directly("sweep_all is a procedure that commits").await;
    finished(&play, "s", "before", 150_000, "60 min").await;
    abandoned(&play, "s", "dead", "45 min").await;
    finished(&play, "s", "after", 15_000, "1 min").await;
    assert_eq!(overdue(&play).await, 0.0);
    play.show("call once.sweep_all()").await;
    assert!(overdue(&play).await > 0.0);
}

#[tokio::test]
async fn keys_of_one_moment_are_each_counted_once() {
    let play = Playground::open().await;
    play.clock("0").await;
    let claim = "select count(*) from generate_series(1, 5000) g,
                        lateral once.key_claim('s', 'k' || g, lease => '1 min')";
    play.show(claim).await;
    // More than are looked at.
    let alive = value(&play, "pg_once_key_leases", r#"{"state": "alive"}"#).await;
    let alive: u32 = alive.parse().unwrap();
    assert!((3_900..=4_000).contains(&alive), "{alive}");
    play.show("delete from once.key where right(key, 1) in ('0', '1', '2', '3')")
        .await;
    play.show("vacuum once.key").await;
    assert_eq!(keys(&play).await, "alive 3000, overdue 0, waiting 0");
}

#[tokio::test]
async fn of_a_thousand_scopes_the_one_with_an_abandoned_request_is_told() {
    let play = Playground::open().await;
    finished(&play, "s", "k", 10_000, "30 min").await;
    play.show("update once.key set scope = 's' || right(key, 3) where right(key, 4) ~ '^[0-9]+$'")
        .await;
    for (scope, ago) in [("z", "45 min"), ("a", "52 min"), ("y", "50 min")] {
        play.show(&format!(
            "select once.key_claim('{scope}', 'alive ' || i, lease => '2 h') from generate_series(1, 8) i"
        ))
        .await;
        abandoned(&play, scope, "dead", ago).await;
    }
    play.show("select once.sweep(task => 'key_abandon')").await;
    assert!((3_120.0..3_600.0).contains(&overdue(&play).await));
    assert_eq!(keys(&play).await, "alive 24, overdue 3, waiting 0");
    for (call, bound) in [
        ("once.metrics()", 20_000),
        ("once.sweep(task => 'key_abandon')", 60_000),
    ] {
        let pages = pages_of(&play, call).await;
        assert!(pages < bound, "{call}: {pages} pages");
    }
}

#[tokio::test]
async fn actions_are_counted_by_machine_and_a_row_that_cannot_be_reverted_is_deferred() {
    let play = Playground::open().await;
    play.clock("0").await;
    orders(&play).await;
    let of = async |state: &str| {
        let labels = format!(r#"{{"machine": "orders", "state": "{state}"}}"#);
        value(&play, "pg_once_action_leases", &labels).await
    };
    assert_eq!(of("alive").await, "0");
    play.show("select once.action_claim('orders', '1', 'pay', lease => '1 min')")
        .await;
    assert_eq!(of("alive").await, "1");
    play.clock("2 min").await;
    assert_eq!(
        (of("alive").await, of("overdue").await),
        ("0".into(), "1".into())
    );
    let machine = r#"{"machine": "orders"}"#;
    assert_eq!(
        value(&play, "pg_once_machine_overdue_seconds", machine).await,
        "60"
    );
    play.show(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
         create trigger refuse before update on orders for each row execute function refuse();
         select * from once.sweep()",
    )
    .await;
    assert_eq!(of("deferred").await, "1");
    let failed = r#"{"task": "action_release", "machine": "orders"}"#;
    assert_eq!(
        value(&play, "pg_once_sweep_failed_total", failed).await,
        "1"
    );
    // Leases that have ended stand before it in the index until a sweep deletes them.
    play.show(
        "insert into once.action_lease select e.* from once.action_lease l, generate_series(1, 10100) g,
            jsonb_populate_record(l, jsonb_build_object('id', gen_random_uuid(), 'row_id', 'ended ' || g, 'state', 'f',
                'token', l.token + g, 'ended_at', l.lease_until, 'look_at', l.lease_until, 'failures', 0, 'note', null)) e",
    )
    .await;
    let told = "select count(*) from once.doctor() where problem like '%could not be reverted%'";
    assert_eq!(play.show(told).await, "1");
    play.show("drop trigger refuse on orders").await;
    play.clock("10 min").await;
    let due = "select due from once.janitor_status() where task = 'action_release' and machine = 'orders'";
    assert_eq!(play.show(due).await, "1");
    play.show("select * from once.sweep()").await;
    assert_eq!(
        (of("overdue").await, of("deferred").await),
        ("0".into(), "0".into())
    );
    assert_eq!(value(&play, "pg_once_sweep_done_total", failed).await, "1");
    let age = value(
        &play,
        "pg_once_sweep_age_seconds",
        r#"{"task": "key_reap", "machine": ""}"#,
    )
    .await;
    assert!(age.parse::<f64>().unwrap() < 60.0, "{age}");
}

#[tokio::test]
async fn a_task_that_was_never_swept_is_told() {
    let play = Playground::open().await;
    let tasks = async |age: &str| {
        play.show(&format!(
            "select string_agg(labels ->> 'task', ' ' order by labels ->> 'task') from once.metrics()
              where name = 'pg_once_sweep_age_seconds' and labels ->> 'machine' = '' and value {age} 'Infinity'"
        ))
        .await
    };
    let all = "action_release dead_reap dedupe_reap history_reap inbox_reap key_abandon key_reap key_tombstone outbox_requeue outbox_retire";
    assert_eq!(tasks("=").await, all);
    play.show("select once.sweep(task => 'inbox_reap')").await;
    assert_eq!(tasks("<").await, "inbox_reap");
    play.show("select once.sweep()").await;
    assert_eq!(tasks("<").await, all);
    assert_eq!(tasks("=").await, "~");
    // No exporter knows what to do with a NULL among its columns.
    let counters =
        "select count(*), count(value) from once.metrics() where name like 'pg_once_sweep%_total'";
    assert_eq!(play.show(counters).await, "20|20");
}

#[tokio::test]
async fn refunds_and_open_teardowns_are_counted_by_machine() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show(
        "create table wallets (id int primary key, balance bigint not null default 0);
         create table jobs (id int primary key, status text not null, stop bool not null default false, wallet int not null);
         create table items (id int primary key, job int not null, refunded bool, price bigint not null);
         create index on items (job);
         insert into wallets values (1); insert into jobs values (1, 'new', false, 1), (2, 'new', false, 1);
         insert into items select i, 1 + i % 2, null, 5 from generate_series(1, 6) i;
         select once.machine_define('{\"machine\": \"jobs\", \"table\": \"jobs\", \"id\": \"id\", \"status\": \"status\",
             \"status_types\": [\"new\", \"cancelled\"], \"terminal\": [\"cancelled\"],
             \"cancel\": {\"flag\": \"stop\", \"to\": \"cancelled\"},
             \"refund\": {\"items\": \"items\", \"item_id\": \"id\", \"subject\": \"job\", \"marker\": \"refunded\", \"marked\": \"true\",
                        \"amount\": \"price\", \"wallet\": \"wallets\", \"wallet_id\": \"id\", \"account\": \"wallet\", \"balance\": \"balance\"}}');
         select once.cancel_request('jobs', '1'), once.cancel_request('jobs', '2'); select once.cancel_refund('jobs', '1')",
    )
    .await;
    play.clock("1 min").await;
    let of = async |name: &str| value(&play, name, r#"{"machine": "jobs"}"#).await;
    assert_eq!(of("pg_once_machine_refunds").await, "1");
    assert_eq!(of("pg_once_machine_refund_items").await, "3");
    assert_eq!(of("pg_once_machine_teardowns_open").await, "2");
    assert_eq!(of("pg_once_machine_teardown_oldest_seconds").await, "60");
    play.show("select once.cancel_confirm('jobs', '1', 1), once.cancel_finish('jobs', '1')")
        .await;
    assert_eq!(of("pg_once_machine_teardowns_open").await, "1");
}

#[tokio::test]
async fn who_observes_sees_all_numbers_and_nothing_else() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show(
        "create role secret_owner; grant secret_owner to postgres;
         select once.topic_set('closed', '{\"owner\": \"secret_owner\"}'); select once.outbox_emit('closed', '{\"secret\": 1}');
         drop role if exists watcher; create role watcher login; select once.grant_role('watcher', 'observe')",
    )
    .await;
    let watcher = play.another_as("watcher").await;
    let labels = r#"{"topic": "closed", "subscriber": "default"}"#;
    assert_eq!(value(&watcher, "outbox_depth", labels).await, "1");
    watcher
        .ask("begin read only; select count(*) > 20 from once.metrics()")
        .is("t")
        .await;
    watcher.show("rollback").await;
    watcher.show("select count(*) from once.doctor()").await;
    watcher
        .ask("select * from once.outbox_take('closed')")
        .fails("42501")
        .await;
    assert_eq!(watcher.code("select * from once.event_0").await, "42501");
    let nobody = "set role secret_owner; select * from once.metrics()";
    assert_eq!(play.code(nobody).await, "42501");
    play.show("reset role").await;
}
