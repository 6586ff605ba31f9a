//! Each problem that doctor knows is provoked for real, found, mended, and gone.

use super::{counted, orders, problems, shop};
use crate::playground::Playground;
use pg_once_tests::{Cluster, race};

/// Level and detail of a problem, by a part of its words; an empty text where nobody complains.
pub async fn told(play: &Playground, problem: &str) -> String {
    play.show(&format!(
        "select level, problem, detail, hint from once.doctor() where problem like '%{problem}%'"
    ))
    .await
}

/// The level of the only such problem, and a word that its row must have.
pub async fn assert_told(play: &Playground, problem: &str, level: &str, word: &str) {
    let told = told(play, problem).await;
    assert!(told.starts_with(&format!("{level}|")), "{problem}: {told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains(word), "{word}: {told}");
}

#[tokio::test]
async fn a_new_database_and_one_at_work_are_well() {
    for play in [Playground::open().await, counted("well").await] {
        assert_eq!(problems(&play).await, "");
        orders(&play).await;
        play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}')")
            .await;
        let token = play.token("a", "").await;
        play.show(&format!("select once.key_complete('s', 'a', {token}, 200)"))
            .await;
        play.show("select * from once.sweep()").await;
        play.show("select once.action_claim('orders', '1', 'pay')")
            .await;
        assert_eq!(problems(&play).await, "");
        play.show("begin read only").await;
        assert_eq!(problems(&play).await, "");
        play.show("rollback; begin isolation level serializable")
            .await;
        assert_eq!(problems(&play).await, "");
        play.show("rollback").await;
    }
}

#[tokio::test]
async fn a_claim_state_that_nobody_sweeps_and_a_machine_that_does_not_fit() {
    let play = Playground::open().await;
    orders(&play).await;
    assert_told(&play, "claim states are not covered", "error", "paying").await;
    play.show("select * from once.sweep()").await;
    assert_eq!(problems(&play).await, "");
    play.show("alter table orders rename status to state").await;
    assert_told(&play, "machine \"orders\": ", "warning", "status").await;
    play.show("alter table orders rename state to status").await;
    assert_eq!(problems(&play).await, "");
    play.show("drop table orders").await;
    assert!(!told(&play, "machine \"orders\"").await.is_empty());
    play.show("select once.machine_drop('orders')").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn a_janitor_that_never_ran_that_stopped_and_that_fails() {
    let play = Playground::open().await;
    assert_told(&play, "no sweep has ever run", "info", "once.sweep()").await;
    let token = play.token("a", ", ttl => '1 s'").await;
    play.show(&format!("select once.key_complete('s', 'a', {token}, 200)"))
        .await;
    play.show("select set_config('once.fake_now', (now() + '30 min')::text, false)")
        .await;
    assert_told(&play, "no sweep has ever run", "warning", "once.sweep()").await;
    // A task that somebody calls by hand hides none that nobody calls, and is none of them.
    play.show("select * from once.sweep(task => 'inbox_reap')")
        .await;
    let never = "these tasks have never run: action_release, key_abandon, key_reap, key_tombstone, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire";
    assert_told(&play, never, "warning", "once.sweep()").await;
    play.show("select once.sweep(task => 'key_abandon'), once.sweep(task => 'key_reap'), once.sweep(task => 'key_tombstone')")
        .await;
    let never = "these tasks have never run: action_release, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire";
    assert_told(&play, never, "info", "once.sweep()").await;
    // A log that nobody retires.
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}')")
        .await;
    assert_told(&play, never, "info", "once.sweep()").await;
    play.show("select set_config('once.fake_now', (now() + '41 min')::text, false)")
        .await;
    assert_told(&play, never, "warning", "once.sweep()").await;
    play.show("select * from once.sweep()").await;
    assert_eq!(told(&play, "janitor").await, "");
    play.show("select set_config('once.fake_now', (now() + '52 min')::text, false)")
        .await;
    assert_told(
        &play,
        "the janitor is not running: action_release, ",
        "warning",
        "key_reap",
    )
    .await;
    orders(&play).await;
    play.show("select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 s')").await;
    assert_eq!(told(&play, "janitor is not running").await, "");
    play.show(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
         create trigger refuse before update on orders for each row execute function refuse();
         select set_config('once.fake_now', (now() + '55 min')::text, false); select * from once.sweep()",
    )
    .await;
    assert_told(
        &play,
        "the sweep task action_release fails for machine \"orders\"",
        "warning",
        "not today",
    )
    .await;
    assert_told(
        &play,
        "1 rows could not be reverted",
        "warning",
        "not today",
    )
    .await;
    play.show("drop trigger refuse on orders; select set_config('once.fake_now', (now() + '2 h')::text, false)").await;
    play.show("select * from once.sweep(); reset once.fake_now")
        .await;
    assert_eq!(problems(&play).await, "");
}

/// VACUUM FULL or an ALTER TABLE keeps a table locked: whoever watches is not kept waiting, and told the rest.
#[tokio::test]
async fn what_somebody_keeps_locked_is_told_and_hides_nothing_else() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}'); select * from once.sweep()")
        .await;
    let failed = "select labels ->> 'of' from once.metrics() where name = 'pg_once_metrics_failed' and value = 1";
    let lag = "select count(*) from once.metrics() where name = 'outbox_lag_seconds'";
    let holder = play.another().await;
    holder
        .show("begin; lock table once.key in access exclusive mode")
        .await;
    play.show("set statement_timeout = '30s'").await;
    assert_told(
        &play,
        "keys could not be looked at",
        "warning",
        "lock timeout",
    )
    .await;
    assert_eq!(told(&play, "machine \"orders\"").await, "");
    assert_eq!(told(&play, "settings could not").await, "");
    assert!(play.show(failed).await.contains("keys"));
    assert_eq!(play.show(lag).await, "1");
    // What is swept meanwhile does not wait for that table either.
    play.show("set lock_timeout = '1ms'").await;
    let swept = "select count(*) from once.sweep() where task in ('inbox_reap', 'dedupe_reap') and failed = 0";
    assert_eq!(play.show(swept).await, "2");
    play.show("reset lock_timeout").await;
    holder
        .show("rollback; begin; lock table orders in access exclusive mode")
        .await;
    let locked = told(&play, "machine \"orders\"").await;
    assert!(locked.contains("lock timeout"), "{locked}");
    assert_eq!(told(&play, "keys could not").await, "");
    holder.show("rollback").await;
    assert_eq!(told(&play, "could not be looked at").await, "");
    assert_eq!(play.show(failed).await, "");
}

#[tokio::test]
async fn a_worker_that_is_to_serve_a_database_that_is_not_there_or_not_this_one() {
    let builder = Cluster::builder()
        .setting("shared_preload_libraries", "pg_once")
        .setting("once.janitor_databases", "shop, nowhere, \"no, where\"");
    let (_cluster, play) = shop(builder).await;
    assert_told(
        &play,
        "names database \"nowhere\"",
        "warning",
        "create the database",
    )
    .await;
    assert_told(&play, "names database \"no, where\"", "warning", "create").await;
    assert_eq!(told(&play, "does not serve this database").await, "");
    play.show("alter system set once.janitor_databases = 'postgres'")
        .await;
    play.show("select pg_reload_conf()").await;
    reloaded(&play, "postgres").await;
    assert_eq!(told(&play, "names database").await, "");
    assert_told(
        &play,
        "does not serve this database",
        "info",
        "pg_reload_conf",
    )
    .await;
    play.show("alter system set once.janitor_databases = 'shop'")
        .await;
    play.show("select pg_reload_conf()").await;
    reloaded(&play, "shop").await;
    assert_eq!(told(&play, "serve").await, "");
    assert_eq!(problems(&play).await, "");
}

async fn reloaded(play: &Playground, databases: &str) {
    race::poll_async("the setting to be reloaded", async || {
        let now = play.show("show once.janitor_databases").await;
        Ok((now == databases).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn leases_that_end_later_than_their_longest_life_from_now() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show("select * from once.sweep()").await;
    // A clock that went back by a week.
    play.show("select set_config('once.fake_now', (now() + '7 days')::text, false)")
        .await;
    play.show("select once.key_claim('s', 'k'), once.action_claim('orders', '1', 'pay')")
        .await;
    play.show("reset once.fake_now").await;
    let key = "the lease of key \"k\" in scope \"s\"";
    assert_told(&play, key, "warning", "once.key_expire('s', 'k')").await;
    let row = "the lease of row 1 of machine \"orders\"";
    assert_told(&play, row, "info", "once.action_expire('orders', '1')").await;
    play.show("select once.key_expire('s', 'k'), once.action_expire('orders', '1')")
        .await;
    assert_eq!(told(&play, "the lease of").await, "");
}

#[tokio::test]
async fn a_backend_that_keeps_an_overdue_lease_locked_or_rows_for_long() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show("select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 ms')").await;
    let holder = play.another().await;
    let token = play.show("select token from once.action_lease").await;
    holder
        .show(&format!(
            "begin; select once.action_extend('orders', '1', {token}, '1 ms')"
        ))
        .await;
    let pid = holder.show("select pg_backend_pid()").await;
    let problem =
        format!("backend {pid} keeps an overdue lease locked: row 1 of machine \"orders\"");
    race::poll_async("the lease to expire", async || {
        Ok((!told(&play, &problem).await.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    let hint = format!("pg_terminate_backend({pid})");
    assert_told(&play, &problem, "error", &hint).await;
    holder.show("rollback").await;
    assert_eq!(told(&play, "locked").await, "");
    play.show("select * from once.sweep()").await;
    // Long transactions that wrote: beside a foreign call, perhaps. One that only reads is none.
    let reader = play.another().await;
    reader
        .show("begin isolation level repeatable read; select count(*) from orders")
        .await;
    holder.show("begin; select once.key_claim('s', 'a')").await;
    let pid = holder.show("select pg_backend_pid()").await;
    play.show("select set_config('once.fake_now', (now() + '2 min')::text, false)")
        .await;
    assert_told(
        &play,
        "keeps rows locked",
        "warning",
        &format!("backend {pid} "),
    )
    .await;
    assert!(told(&play, "keeps rows locked").await.contains("once.key"));
    holder
        .show("commit; begin; select 1 from orders for no key update")
        .await;
    assert!(
        told(&play, "keeps rows locked")
            .await
            .contains("of public.orders;")
    );
    holder.show("commit").await;
    reader.show("commit; reset all").await;
    play.show("reset once.fake_now").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn requests_that_nobody_resumes_and_keys_that_wait_for_a_verdict() {
    let play = Playground::open().await;
    play.token("a", "").await;
    let parked = play.token("b", "").await;
    play.show(&format!("select once.key_park('s', 'b', {parked}, 'why')"))
        .await;
    assert_told(&play, "1 keys are parked", "info", "key_resolve").await;
    assert_eq!(problems(&play).await, "");
    play.show("select set_config('once.fake_now', (now() + '20 min')::text, false)")
        .await;
    play.show("select count(*) from once.sweep()").await;
    assert_told(
        &play,
        "1 unfinished requests wait",
        "warning",
        "key_take_abandoned",
    )
    .await;
    play.show("select count(*) from once.key_take_abandoned('s')")
        .await;
    assert_eq!(told(&play, "unfinished").await, "");
    play.show("reset once.fake_now; select once.key_resolve('s', 'b', 1, 'complete', 200)")
        .await;
    assert_eq!(told(&play, "parked").await, "");
}

#[tokio::test]
async fn dead_letters_that_grow_and_old_ones() {
    let play = Playground::open().await;
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '{\"secret\": 1}')")
        .await;
    let token = play.show("select token from once.outbox_take('t')").await;
    play.show(&format!(
        "select once.outbox_nack('t', 'default', {token}, kind => 'never')"
    ))
    .await;
    assert_told(
        &play,
        "dead letters are growing",
        "warning",
        "1 died within the last hour",
    )
    .await;
    assert!(!told(&play, "dead letters").await.contains("secret"));
    play.show("select set_config('once.fake_now', (now() + '2 h')::text, false)")
        .await;
    assert_told(&play, "there are dead letters", "info", "outbox_redrive").await;
    play.show("reset once.fake_now; select once.outbox_redrive('t', 'default')")
        .await;
    assert_eq!(told(&play, "dead letters").await, "");
}

#[tokio::test]
async fn an_index_that_is_missing_or_invalid() {
    let play = Playground::open().await;
    let plain = "select string_agg(i.relname, ' ' order by i.relname) from pg_index x join pg_class i on i.oid = x.indexrelid
          join pg_class c on c.oid = x.indrelid and c.relnamespace = 'once'::regnamespace and c.relkind = 'r'
         where not exists (select from pg_constraint k where k.conindid = i.oid)";
    let names = play.show(plain).await;
    for name in names.split(' ') {
        play.show(&format!("begin; drop index once.{name}")).await;
        let problem = format!("index once.{name} is missing");
        assert_told(&play, &problem, "error", "sql/").await;
        play.show("rollback").await;
    }
    play.token("a", "").await;
    play.token("b", "").await;
    play.ask("create unique index concurrently broken on once.key (scope)")
        .fails("23505")
        .await;
    assert_told(&play, "index once.broken is invalid", "error", "REINDEX").await;
    play.show("drop index once.broken").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn a_table_full_of_dead_rows() {
    let play = Playground::open().await;
    play.show("alter table once.inbox set (autovacuum_enabled = false)")
        .await;
    play.show("select count(once.inbox_accept('s', i::text)) from generate_series(1, 60000) i")
        .await;
    play.show("delete from once.inbox").await;
    play.show("select pg_stat_force_next_flush()").await;
    assert_told(
        &play,
        "table once.inbox is full of dead rows",
        "warning",
        "last vacuum: never",
    )
    .await;
    play.show("vacuum once.inbox").await;
    play.show("alter table once.inbox reset (autovacuum_enabled)")
        .await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn an_owner_that_is_gone() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show("select * from once.sweep(); create role shop_owner; grant shop_owner to postgres")
        .await;
    play.show(
        "select once.scope_set('s', '{\"owner\": \"shop_owner\"}'); select once.topic_set('t', '{\"owner\": \"shop_owner\"}');
         select once.machine_define((once.machine_get('orders')::jsonb || '{\"owner\": \"shop_owner\"}')::json)",
    )
    .await;
    assert_eq!(problems(&play).await, "");
    play.show("drop role shop_owner").await;
    play.ask("select level, problem from once.doctor() where problem like 'the owner of%' order by 2")
        .is("warning|the owner of machine \"orders\" is gone\nwarning|the owner of scope \"s\" is gone\nwarning|the owner of topic \"t\" is gone")
        .await;
    play.show("select once.scope_set('s', '{\"owner\": null}'); select once.topic_set('t', '{\"owner\": null}');
               select once.machine_define((once.machine_get('orders')::jsonb - 'owner')::json)").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn an_owner_of_the_extension_who_may_not_see_other_sessions() {
    let play = counted("blind").await;
    play.show(
        "create role blind_maker superuser; create role blind_owner; drop extension pg_once;
         set role blind_maker; create extension pg_once; reset role;
         reassign owned by blind_maker to blind_owner; drop role blind_maker; select * from once.sweep()",
    )
    .await;
    let problem = "old transactions and locks of other roles cannot be seen";
    assert_told(
        &play,
        problem,
        "info",
        "GRANT pg_read_all_stats TO blind_owner",
    )
    .await;
    assert_eq!(problems(&play).await, "");
    play.show("grant pg_read_all_stats to blind_owner").await;
    assert_eq!(told(&play, problem).await, "");
}

#[tokio::test]
async fn a_pretended_clock_and_commits_that_are_not_waited_for() {
    let play = Playground::open().await;
    let database = &play.database.name;
    play.show("select set_config('once.fake_now', now()::text, false)")
        .await;
    assert_told(&play, "a pretended clock", "error", "of this session").await;
    play.show("reset once.fake_now").await;
    play.show(&format!(
        "alter database {database} set once.fake_now = '2030-01-01'"
    ))
    .await;
    let why = "settings of a database are read when a session begins";
    let later = play.another_directly("postgres", why).await;
    assert_told(&later, "a pretended clock", "error", "comes from: database").await;
    play.show(&format!(
        "alter database {database} reset once.fake_now; set synchronous_commit = off"
    ))
    .await;
    let problem = "synchronous_commit is off";
    assert_told(&play, problem, "warning", "comes from: session").await;
    play.show("reset synchronous_commit").await;
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn sql_and_library_of_different_versions() {
    let play = Playground::open().await;
    let version = play
        .show("select extversion from pg_extension where extname = 'pg_once'")
        .await;
    let pretend = async |version: &str| {
        let sql =
            format!("update pg_extension set extversion = '{version}' where extname = 'pg_once'");
        play.show(&format!("set allow_system_table_mods = on; {sql}"))
            .await;
    };
    pretend("0.1.9").await;
    assert_told(
        &play,
        "SQL (0.1.9) is older",
        "warning",
        "ALTER EXTENSION pg_once UPDATE",
    )
    .await;
    pretend("100.0.0").await;
    assert_told(
        &play,
        "is older than the extension",
        "error",
        "newer library",
    )
    .await;
    pretend(&version).await;
    assert_eq!(problems(&play).await, "");
}
