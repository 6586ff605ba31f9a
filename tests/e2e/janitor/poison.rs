//! What keeps rows from being swept: rows of a user's table that are refused keep no other waiting, and what somebody has
//! put on the extension's own tables is named.

use crate::playground::Playground;
use crate::world::JOBS;

/// What is due for the inbox and the dedupe keys.
const DUE: &str = "
insert into once.inbox (expires_at, status, id, scope, name)
select clock_timestamp() - interval '1 day', 'm', gen_random_uuid(), 's', g from generate_series(1, 3) as g;
insert into once.dedupe (topic_id, event_id, until, id)
select 1, g, clock_timestamp() - interval '1 day', gen_random_uuid() from generate_series(1, 3) as g;
create function keep() returns trigger language plpgsql as $$ begin return null; end $$;
create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$";

/// done and failed of a task.
async fn swept(play: &Playground, task: &str) -> String {
    play.show(&format!(
        "select done, failed from once.sweep() where task = '{task}'"
    ))
    .await
}

#[tokio::test]
async fn a_trigger_before_rows_or_a_rule_on_our_tables_fails_its_task_with_its_name() {
    for (object, named) in [
        (
            "trigger keep before delete on once.inbox for each row execute function keep()",
            "TRIGGER keep ON once.inbox",
        ),
        (
            "rule keep as on delete to once.inbox do instead nothing",
            "RULE keep ON once.inbox",
        ),
    ] {
        let play = Playground::open().await;
        play.show(DUE).await;
        play.show(&format!("create {object}")).await;
        assert_eq!(swept(&play, "inbox_reap").await, "0|1");
        assert_eq!(play.show("select count(*) from once.dedupe").await, "0");
        let said = "select last_error from once.janitor_status() where task = 'inbox_reap'";
        let said = play.show(said).await;
        assert!(
            said.contains(named) && said.contains(&format!("DROP {named}")),
            "{said}"
        );
        let doctor =
            "select count(*) from once.doctor() where problem = 'the sweep task inbox_reap fails'";
        assert_eq!(play.show(doctor).await, "1");
        play.show(&format!("drop {named}")).await;
        assert_eq!(swept(&play, "inbox_reap").await, "3|0");
    }
}

#[tokio::test]
async fn what_refuses_after_rows_fails_its_task_alone_and_the_next_sweep_tries_again() {
    for (refuse, told, mend) in [
        (
            "create trigger refuse after delete on once.inbox for each row when (old.name = '2') execute function refuse()",
            "not today",
            "drop trigger refuse on once.inbox",
        ),
        (
            "create table mine (id uuid references once.inbox (id)); insert into mine select id from once.inbox limit 1",
            "update or delete on table \"inbox\" violates foreign key constraint \"mine_id_fkey\" on table \"mine\"",
            "drop table mine",
        ),
    ] {
        let play = Playground::open().await;
        play.show(DUE).await;
        play.show(refuse).await;
        assert_eq!(swept(&play, "inbox_reap").await, "0|1");
        let said = "select last_error from once.janitor_status() where task = 'inbox_reap'";
        assert_eq!(play.show(said).await, told);
        assert_eq!(play.show("select count(*) from once.dedupe").await, "0");
        play.show(mend).await;
        assert_eq!(swept(&play, "inbox_reap").await, "3|0");
    }
}

/// Each of them is waited for; after a second of that the rest is left for the next sweep.
#[tokio::test]
async fn rows_whose_trigger_waits_for_a_lock_keep_no_other_waiting_for_ever() {
    let play = Playground::open().await;
    play.show(JOBS).await;
    play.show(
        "create table parent (id int primary key);
         insert into parent values (1);
         create function wait() returns trigger language plpgsql as
            $$ begin perform 1 from public.parent for update; return new; end $$;
         create trigger wait before update on job for each row
            when (new.status = 'ready' and old.id <= 30) execute function wait();
         select count(*) from generate_series(1, 100) as g,
                lateral once.action_claim('job', g::text, 'run', lease => '1 us')",
    )
    .await;
    let holder = play.another().await;
    holder.show("begin; select 1 from parent for update").await;
    let mut calls = 0;
    while play
        .show("select count(*) from job where status = 'ready' and id between 31 and 100")
        .await
        != "70"
    {
        play.show("select once.sweep(task => 'action_release')")
            .await;
        calls += 1;
        assert!(calls < 30, "it does not come to an end");
    }
    let told = "select failed > 0, last_error ~ 'lock timeout' from once.janitor_status() where machine = 'job'";
    assert_eq!(play.show(told).await, "t|t");
    holder.show("rollback").await;
    play.show("select once.action_expire('job', id) from once.action_list('job')")
        .await;
    play.ask("select failed from once.sweep(task => 'action_release')")
        .is("0")
        .await;
    play.ask("select count(*) from job where status = 'running'")
        .is("0")
        .await;
}
