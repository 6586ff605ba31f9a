//! Leases that are alive, overdue, waiting, parked or put off; sweeps and refunds.

use super::{orders, value};
use crate::playground::Playground;

async fn keys(play: &Playground) -> String {
    let sql = "select string_agg(labels ->> 'state' || ' ' || value, ', ') from once.metrics() where name = 'pg_once_key_leases'";
    play.show(sql).await
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

#[tokio::test]
async fn actions_are_counted_by_machine_and_a_row_that_cannot_be_reverted_is_put_off() {
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
    assert_eq!(of("put_off").await, "1");
    let failed = r#"{"task": "action_release", "machine": "orders"}"#;
    assert_eq!(
        value(&play, "pg_once_sweep_failed_total", failed).await,
        "1"
    );
    play.show("drop trigger refuse on orders").await;
    play.clock("10 min").await;
    play.show("select * from once.sweep()").await;
    assert_eq!(
        (of("overdue").await, of("put_off").await),
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
         select once.cancel_request('jobs', '1'), once.cancel_request('jobs', '2'); select once.refund('jobs', '1')",
    )
    .await;
    play.clock("1 min").await;
    let of = async |name: &str| value(&play, name, r#"{"machine": "jobs"}"#).await;
    assert_eq!(of("pg_once_machine_refunds").await, "1");
    assert_eq!(of("pg_once_machine_refund_items").await, "3");
    assert_eq!(of("pg_once_machine_teardowns_open").await, "2");
    assert_eq!(of("pg_once_machine_teardown_oldest_seconds").await, "60");
    play.show("select once.cleanup_confirm('jobs', '1', 1), once.cancel_finish('jobs', '1')")
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
    assert_eq!(
        watcher
            .show("begin read only; select count(*) > 20 from once.metrics()")
            .await,
        "t"
    );
    watcher.show("rollback").await;
    watcher.show("select count(*) from once.doctor()").await;
    assert_eq!(
        watcher
            .code("select * from once.outbox_take('closed')")
            .await,
        "42501"
    );
    assert_eq!(watcher.code("select * from once.event_0").await, "42501");
    let nobody = "set role secret_owner; select * from once.metrics()";
    assert_eq!(play.code(nobody).await, "42501");
    play.show("reset role").await;
}
