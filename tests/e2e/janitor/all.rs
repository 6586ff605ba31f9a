//! `CALL once.sweep_all()`: to the end, a commit after each batch, from anywhere, and not where it must not commit.

use crate::playground::{Playground, cluster};
use crate::serving::expired;
use crate::waiting::{at_once, sessions};
use crate::world::JOBS;

#[tokio::test]
async fn four_sessions_at_once_sweep_everything_and_each_row_once() {
    let play = Playground::open().await;
    expired(&play.client, 20_000).await;
    play.show(JOBS).await;
    play.show("select count(*) from generate_series(1, 100) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 us')").await;
    let four = sessions(&play, 4).await;
    for answer in at_once(&four, |_| "call once.sweep_all(500)".to_owned()).await {
        answer.unwrap();
    }
    assert_eq!(play.show("select count(*) from once.key").await, "0");
    play.ask("select distinct status, version from job")
        .is("ready|2")
        .await;
    // What sessions note of a task at the same moment is noted by one of them.
    play.ask("select max(failed) from once.janitor_status()")
        .is("0")
        .await;
}

#[tokio::test]
async fn each_batch_is_committed_by_itself() {
    let play = Playground::open().await;
    expired(&play.client, 3_000).await;
    // It stops at the last of them, and what went before stays done.
    play.show(
        "create function stop() returns trigger language plpgsql as
            $$ begin if old.key = '1' then perform pg_catalog.pg_sleep(60); end if; return null; end $$;
         create trigger stop after delete on once.key for each row execute function stop();
         update once.key set reap_at = reap_at + interval '1 hour' where key = '1'",
    )
    .await;
    let sweeper = play
        .another_directly("postgres", "its backend is watched from outside")
        .await;
    let pid = pg_once_tests::race::backend_pid(&sweeper.client)
        .await
        .unwrap();
    let call = tokio::spawn(async move { sweeper.code("call once.sweep_all(100)").await });
    crate::world::until(
        &play.client,
        &format!("select wait_event from pg_stat_activity where pid = {pid}"),
        "PgSleep",
    )
    .await;
    let left: u32 = play
        .show("select count(*) from once.key")
        .await
        .parse()
        .unwrap();
    assert!(left <= 100, "{left}");
    let seen = "select xact_start > query_start from pg_stat_activity where pid = ";
    assert_eq!(play.show(&format!("{seen}{pid}")).await, "t");
    play.show(&format!("select pg_cancel_backend({pid})")).await;
    assert_eq!(call.await.unwrap(), "57014");
    assert_eq!(
        play.show("select count(*) from once.key").await,
        left.to_string()
    );
}

#[tokio::test]
async fn it_is_refused_with_a_way_out_where_it_must_not_commit() {
    let play = Playground::open().await;
    expired(&play.client, 10).await;
    let in_block = play.refused("begin; call once.sweep_all()").await;
    assert_eq!(in_block.code, "2D000");
    assert!(
        in_block.message.contains("inside a transaction block"),
        "{in_block:?}"
    );
    assert!(
        in_block.hint.contains("SELECT * FROM once.sweep()"),
        "{in_block:?}"
    );
    play.show("rollback").await;
    play.show("create function f() returns void language plpgsql as $$ begin call once.sweep_all(); end $$").await;
    let atomic = [
        "select f()",
        "call once.sweep_all(); select 1",
        "do $$ begin begin call once.sweep_all(); exception when no_data_found then null; end; end $$",
    ];
    for call in atomic {
        assert_eq!(play.code(call).await, "2D000", "{call}");
    }
    for max in ["0", "-1", "1000001", "null"] {
        play.ask(&format!("call once.sweep_all({max})"))
            .fails("22023")
            .await;
    }
    assert_eq!(play.show("select count(*) from once.key").await, "10");
    play.show("do $$ begin call once.sweep_all(); end $$").await;
    assert_eq!(play.show("select count(*) from once.key").await, "0");
}

#[tokio::test]
async fn it_tells_what_it_did() {
    let play = Playground::open().await;
    expired(&play.client, 50).await;
    let name = &play.database.name;
    let run = cluster()
        .command("psql")
        .args(["-X", "-d", name, "-c", "call once.sweep_all(20)"])
        .output()
        .unwrap();
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!(told, "NOTICE:  key_reap: 50 done\n");
}

#[tokio::test]
async fn callers_above_read_committed_sweep_too() {
    for level in ["repeatable read", "serializable"] {
        let play = Playground::directly("CALL goes by the settings of its session").await;
        expired(&play.client, 500).await;
        play.show(JOBS).await;
        play.show("select count(*) from generate_series(1, 50) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 us')").await;
        play.show(&format!("set default_transaction_isolation = '{level}'"))
            .await;
        play.show(&format!("begin isolation level {level}")).await;
        let done = play
            .show("select sum(done), sum(failed) from once.sweep(25)")
            .await;
        // Jobs and keys.
        assert_eq!(done, "50|0", "{level}");
        play.show("commit").await;
        play.show("call once.sweep_all(100)").await;
        assert_eq!(play.show("select count(*) from once.key").await, "0");
        play.ask("select count(*) from job where status = 'ready'")
            .is("100")
            .await;
    }
}

#[tokio::test]
async fn who_may_operate_may_call_it_and_nobody_else() {
    let play = Playground::open().await;
    expired(&play.client, 10).await;
    play.show(
        "do $$ declare r text; begin
            foreach r in array array['janitor_op', 'janitor_obs', 'janitor_use', 'janitor_none'] loop
                if not exists (select from pg_roles where rolname = r) then execute 'create role ' || r || ' login'; end if;
            end loop; end $$;
         select once.grant_role('janitor_op', 'operate');
         select once.grant_role('janitor_obs', 'observe');
         select once.grant_role('janitor_use', 'use')",
    )
    .await;
    let (operator, observer) = (
        play.another_as("janitor_op").await,
        play.another_as("janitor_obs").await,
    );
    for other in ["janitor_obs", "janitor_use", "janitor_none"] {
        let session = play.another_as(other).await;
        assert_eq!(
            session.code("call once.sweep_all()").await,
            "42501",
            "{other}"
        );
        assert_eq!(
            session.code("select * from once.sweep()").await,
            "42501",
            "{other}"
        );
    }
    observer
        .ask("select due from once.janitor_status() where task = 'key_reap'")
        .is("10")
        .await;
    operator.show("call once.sweep_all()").await;
    // With the name of the session, where it has one.
    let served = observer
        .show("select done, served_by from once.janitor_status() where task = 'key_reap'")
        .await;
    assert_eq!(served.split(" (").next(), Some("10|janitor_op"));
    for call in ["select * from once.janitor_status()"] {
        operator.show(call).await;
        let user = play.another_as("janitor_use").await;
        assert_eq!(user.code(call).await, "42501");
    }
    play.show("select once.revoke_role('janitor_op', 'operate')")
        .await;
    assert_eq!(operator.code("call once.sweep_all()").await, "42501");
}
