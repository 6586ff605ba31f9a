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

/// Goes through a story, line by line. `! level | problem | word` is what doctor has to say then, see [`assert_told`];
/// `no problem` is what it must not say; `well` is that there is nothing worse than good to know. `in 2 h` pretends
/// that so much time has passed. Everything else is a statement.
pub async fn story(play: &Playground, lines: &str) {
    let mut last = "";
    for line in lines.trim().lines().map(str::trim_start) {
        if let Some(expected) = line.strip_prefix("! ") {
            let cells: Vec<_> = expected.split(" | ").collect();
            assert_told(play, cells[1], cells[0], cells[2]).await;
        } else if let Some(problem) = line.strip_prefix("no ") {
            assert_eq!(told(play, problem).await, "", "after {last}");
        } else if line == "well" {
            assert_eq!(problems(play).await, "", "after {last}");
        } else if let Some(time) = line.strip_prefix("in ") {
            let clock = format!("set_config('once.fake_now', (now() + '{time}')::text, false)");
            play.show(&format!("select {clock}")).await;
        } else {
            last = line;
            play.show(line).await;
        }
    }
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
    let lines = r#"
        ! error | claim states are not covered | paying
        select * from once.sweep()
        well
        alter table orders rename status to state
        ! warning | machine "orders":  | status
        alter table orders rename state to status
        well
        drop table orders"#;
    story(&play, lines).await;
    assert!(!told(&play, "machine \"orders\"").await.is_empty());
    let lines = "
        select once.machine_drop('orders')
        well";
    story(&play, lines).await;
}

#[tokio::test]
async fn a_janitor_that_never_ran_that_stopped_and_that_fails() {
    let play = Playground::open().await;
    let lines = "
        ! info | no sweep has ever run | once.sweep()
        select once.key_complete('s', 'a', (once.key_claim('s', 'a', ttl => '1 s')).token, 200, to_json(repeat('x', 900)))
        in 30 min
        ! warning | no sweep has ever run | once.sweep()
        -- A task that somebody calls by hand hides none that nobody calls, and is none of them.
        select * from once.sweep(task => 'inbox_reap')
        ! warning | these tasks have never run: action_release, key_abandon, key_reap, key_tombstone, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire | once.sweep()
        select once.sweep(task => 'key_abandon'), once.sweep(task => 'key_reap'), once.sweep(task => 'key_tombstone')
        ! info | these tasks have never run: action_release, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire | once.sweep()
        -- A log that nobody retires.
        select once.topic_set('t', '{}'); select once.outbox_emit('t', '{}')
        ! info | these tasks have never run: action_release, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire | once.sweep()
        in 41 min
        ! warning | these tasks have never run: action_release, outbox_requeue, dedupe_reap, dead_reap, history_reap, outbox_retire | once.sweep()
        select * from once.sweep()
        no janitor
        in 52 min
        ! warning | the janitor is not running: action_release,  | key_reap";
    story(&play, lines).await;
    orders(&play).await;
    let lines = r#"
        select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 s')
        no janitor is not running
        create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$
        create trigger refuse before update on orders for each row execute function refuse()
        in 55 min
        select * from once.sweep()
        ! warning | the sweep task action_release fails for machine "orders" | not today
        ! warning | 1 rows could not be reverted | not today
        drop trigger refuse on orders
        in 2 h
        select * from once.sweep(); reset once.fake_now
        well"#;
    story(&play, lines).await;
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
    let lines = r#"
        ! warning | keys could not be looked at | lock timeout
        no machine "orders"
        no settings could not"#;
    story(&play, lines).await;
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
    let lines = r#"
        ! warning | names database "nowhere" | create the database
        ! warning | names database "no, where" | create
        no does not serve this database
        alter system set once.janitor_databases = 'postgres'
        select pg_reload_conf()"#;
    story(&play, lines).await;
    reloaded(&play, "postgres").await;
    let lines = "
        no names database
        ! info | does not serve this database | pg_reload_conf
        alter system set once.janitor_databases = 'shop'
        select pg_reload_conf()";
    story(&play, lines).await;
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
    let lines = r#"
        select * from once.sweep()
        -- A clock that went back by a week.
        in 7 days
        select once.key_claim('s', 'k'), once.action_claim('orders', '1', 'pay')
        reset once.fake_now
        ! warning | the lease of key "k" in scope "s" | once.key_expire('s', 'k')
        ! info | the lease of row 1 of machine "orders" | once.action_expire('orders', '1')
        select once.key_expire('s', 'k'), once.action_expire('orders', '1')
        no the lease of"#;
    story(&play, lines).await;
}

#[tokio::test]
async fn requests_that_nobody_resumes_and_keys_that_wait_for_a_verdict() {
    let play = Playground::open().await;
    let lines = "
        select once.key_claim('s', 'a')
        select once.key_park('s', 'b', (once.key_claim('s', 'b')).token, 'why')
        ! info | 1 keys are parked | key_resolve
        well
        in 20 min
        select count(*) from once.sweep()
        ! warning | 1 unfinished requests wait | key_take_abandoned
        select count(*) from once.key_take_abandoned('s')
        no unfinished
        reset once.fake_now; select once.key_resolve('s', 'b', 1, 'complete', 200)
        no parked";
    story(&play, lines).await;
}

#[tokio::test]
async fn dead_letters_that_grow_and_old_ones() {
    let play = Playground::open().await;
    let lines = r#"
        select once.topic_set('t', '{}'); select once.outbox_emit('t', '{"secret": 1}')
        select once.outbox_nack('t', 'default', token, kind => 'never') from once.outbox_take('t')
        ! warning | dead letters are growing | 1 died within the last hour"#;
    story(&play, lines).await;
    assert!(!told(&play, "dead letters").await.contains("secret"));
    let lines = "
        in 2 h
        ! info | there are dead letters | outbox_redrive
        reset once.fake_now; select once.outbox_redrive('t', 'default')
        no dead letters";
    story(&play, lines).await;
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
        assert_told(&play, &problem, "error", "CREATE INDEX").await;
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
    let lines = "
        alter table once.inbox set (autovacuum_enabled = false)
        select count(once.inbox_accept('s', i::text)) from generate_series(1, 60000) i
        delete from once.inbox
        select pg_stat_force_next_flush()
        ! warning | table once.inbox is full of dead rows | last vacuum: never
        vacuum once.inbox
        alter table once.inbox reset (autovacuum_enabled)
        well";
    story(&play, lines).await;
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
    let lines = "
        ! info | old transactions and locks of other roles cannot be seen | GRANT pg_read_all_stats TO blind_owner
        well
        grant pg_read_all_stats to blind_owner
        no old transactions and locks of other roles cannot be seen";
    story(&play, lines).await;
}

#[tokio::test]
async fn a_pretended_clock_and_commits_that_are_not_waited_for() {
    let play = Playground::open().await;
    let database = &play.database.name;
    let lines = "
        select set_config('once.fake_now', now()::text, false)
        ! error | a pretended clock | of this session
        reset once.fake_now";
    story(&play, lines).await;
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
    let lines = "
        ! warning | synchronous_commit is off | comes from: session
        reset synchronous_commit
        well";
    story(&play, lines).await;
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
    let older = "! warning | SQL (0.1.9) is older | ALTER EXTENSION pg_once UPDATE";
    story(&play, older).await;
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
