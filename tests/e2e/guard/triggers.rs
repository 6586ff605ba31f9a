//! The guard beside the table's own triggers: it judges what they make of a row, and what switches it off is told.

use crate::playground::Playground;
use crate::statements::partitioned;
use crate::world::{jobs, token};
use crate::{guarded, illegal, with_jobs};

/// A BEFORE trigger of this name on job with this body.
async fn with_trigger(play: &Playground, name: &str, event: &str, body: &str) {
    play.show(&format!(
        "create function f_{event}_{} () returns trigger language plpgsql as $$ begin {body} return new; end $$;
         create trigger \"{name}\" before {event} on job for each row execute function f_{event}_{}()",
        name.trim_matches('~').to_lowercase(),
        name.trim_matches('~').to_lowercase(),
    ))
    .await;
}

#[tokio::test]
async fn what_a_trigger_of_the_table_makes_of_a_row_is_what_is_judged() {
    for name in [
        "a_first",
        "once",
        "zz_last",
        "zzzzzzzzzzzzzzzz",
        "~~~tilde~~~",
    ] {
        let play = guarded().await;
        jobs(&play, 1, 3, "new").await;
        with_trigger(
            &play,
            name,
            "update",
            "if new.note = 'skip' then new.status := 'done'; end if;
             if new.note = 'unflag' then new.cancel_requested := false; end if;
             if new.note = 'fix' then new.status := 'ready'; end if;",
        )
        .await;
        // An update that does not name the status is judged by what the trigger makes of it, too.
        illegal(&play, "update job set note = 'skip' where id = 1").await;
        play.show("select once.cancel_request('job', '2')").await;
        illegal(&play, "update job set note = 'unflag' where id = 2").await;
        // An undeclared move that the table itself mends is none.
        play.show("update job set note = 'fix', status = 'done' where id = 3")
            .await;
        assert_eq!(
            play.show("select status from job where id = 3").await,
            "ready",
            "{name}"
        );
        play.show("select once.sweep()").await;
        let check = "select * from once.machine_check('job')";
        assert_eq!(play.show(check).await, "", "{name}");
    }
}

/// Whatever would be wrong with the row besides, or be done about it.
#[tokio::test]
async fn the_guard_comes_before_foreign_keys_and_the_tables_own_triggers_after_the_row() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show(
        "alter table item add foreign key (job_id) references job;
         create function fail() returns trigger language plpgsql as 'begin return 1 / 0; end';
         create trigger \"AA first\" after insert or update or delete on job for each row
            when (pg_trigger_depth() = 0) execute function fail()",
    )
    .await;
    for sql in [
        "delete from job where id = 6",
        "update job set id = 600 where id = 6",
        "update job set status = 'done' where id = 1",
        "insert into job (id, status) values (50, 'running')",
    ] {
        illegal(&play, sql).await;
    }
    play.ask("update job set note = 'x' where id = 1")
        .fails("22012")
        .await;
}

/// A guard before the row cannot be followed by another trigger.
#[tokio::test]
async fn a_trigger_behind_the_guard_of_a_partitioned_table_is_told() {
    let play = partitioned().await;
    with_jobs(&play).await;
    let check =
        "select count(*) from once.machine_check('job') where problem ~ 'fires after the guard'";
    let skip = "if new.note = 'skip' then new.status := 'done'; end if;";
    with_trigger(&play, "zz_last", "update", skip).await;
    assert_eq!(play.show(check).await, "0");
    illegal(&play, "update job set note = 'skip' where id = 1").await;
    with_trigger(&play, "~~~tilde~~~", "update", skip).await;
    assert_ne!(play.show(check).await, "0");
}

#[tokio::test]
async fn an_insert_that_a_trigger_puts_into_a_claim_state_is_refused() {
    let play = guarded().await;
    with_trigger(
        &play,
        "zz_put",
        "insert",
        "if new.note = 'odd' then new.status := 'running'; end if;",
    )
    .await;
    illegal(&play, "insert into job (id, note) values (1, 'odd')").await;
    play.show("insert into job (id, note) values (1, 'fine')")
        .await;
}

#[tokio::test]
async fn a_trigger_that_writes_other_rows_of_the_table_meets_the_guard_too() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show(
        "create function more() returns trigger language plpgsql as $$ begin
            if new.note = 'more' then update job set status = 'ready' where id = 7; end if; return null; end $$;
         create trigger more after update on job for each row execute function more()",
    )
    .await;
    illegal(&play, "update job set note = 'more' where id = 1").await;
    // And while a function of the API makes its own write.
    let refusal = play
        .refused("select once.transition('job', '1', 'ready', patch => '{\"note\": \"more\"}')")
        .await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
    let refusal = play
        .refused("select once.transition('job', '1', 'ready', patch => '{\"note\": \"more\"}', version => 0)")
        .await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
}

#[tokio::test]
async fn a_trigger_that_turns_the_apis_own_write_into_another_is_refused() {
    let play = guarded().await;
    jobs(&play, 1, 2, "ready").await;
    with_trigger(
        &play,
        "aa_turn",
        "update",
        "if new.note = 'turn' and new.status = 'running' then new.status := 'retrying'; end if;
         if new.note = 'turn' and new.status = 'failed' then new.status := 'done'; end if;",
    )
    .await;
    play.show("update job set note = 'turn'").await;
    let refusal = play
        .refused("select * from once.action_claim('job', '1', 'run')")
        .await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
    let refusal = play
        .refused("select * from once.transition('job', '2', 'failed')")
        .await;
    assert_eq!(refusal.code, "ON002", "{refusal:?}");
    play.ask("select count(*) from job where status = 'ready'")
        .is("2")
        .await;
    play.ask("select count(*) from once.action_lease")
        .is("0")
        .await;
}

#[tokio::test]
async fn replica_mode_is_not_seen() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("set session_replication_role = replica").await;
    play.show("update job set status = 'ready' where id = 7; update item set settled = null where id = 71")
        .await;
    play.show("set session_replication_role = origin").await;
    illegal(
        &play,
        "update job set cancel_requested = false where id = 7",
    )
    .await;
}

#[tokio::test]
async fn a_disabled_guard_is_reported_and_turning_it_on_again_enables_it() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("select once.sweep()").await;
    let check = "select count(*) from once.machine_check('job')";
    assert_eq!(play.show(check).await, "0");
    for table in ["job", "item"] {
        play.show(&format!("alter table {table} disable trigger user"))
            .await;
        assert_ne!(play.show(check).await, "0", "{table}");
        play.show("select once.machine_guard('job', true)").await;
        assert_eq!(play.show(check).await, "0", "{table}");
    }
    illegal(&play, "update job set status = 'ready' where id = 7").await;
    illegal(&play, "update item set settled = null where id = 71").await;
}

#[tokio::test]
async fn truncate_is_not_seen_and_leaves_leases_that_are_dead() {
    let play = guarded().await;
    let held = with_jobs(&play).await;
    play.show("truncate job, item").await;
    play.ask(&format!("select once.action_finish('job', '3', {held})"))
        .fails("ON001")
        .await;
    jobs(&play, 3, 3, "ready").await;
    token(&play, 3, "run", "").await;
}
