//! Triggers that others have put on the outbox's tables, met by batches that are put back.

use crate::stage::Stage;

const OPTIONS: &str = r#"{"lease": "60 s", "backoff_base": "1 s", "backoff_cap": "1 s"}"#;

/// So many batches of one event each, whose leases have run out.
async fn overdue(stage: &Stage, names: &str) {
    stage.emit(names).await;
    for _ in names.split(' ') {
        stage.take(1).await;
    }
    stage.clock("61 s").await;
}

/// What only looks at the end of the transaction looks in time, and undoes nobody else's work.
#[tokio::test]
async fn a_deferred_constraint_on_the_retries_costs_its_batch_alone() {
    let stage = Stage::directly("CALL goes by the settings of its session", OPTIONS).await;
    overdue(&stage, "a b c d e").await;
    stage
        .play
        .show(
            "create function refuse() returns trigger language plpgsql as $$ begin
                if (select count(*) from once.retry r where r.event_id < new.event_id) = 1
                then raise 'refused'; end if; return null; end $$;
             create constraint trigger refuse after insert on once.retry deferrable initially deferred
                for each row execute function refuse();
             insert into once.inbox (expires_at, status, id, scope, name)
             values ('2020-01-01', 'm', gen_random_uuid(), 's', 'm')",
        )
        .await;
    let swept = "select done, failed from once.sweep() where done > 0 or failed > 0";
    // b is the second; once it is left out, c is.
    assert_eq!(stage.play.show(swept).await, "1|4\n1|0");
    stage.play.show("call once.sweep_all()").await;
    stage
        .play
        .show("alter table once.retry disable trigger refuse")
        .await;
    stage.clock("1 hour").await;
    let swept = "select done, failed from once.sweep_outbox_requeue()";
    assert_eq!(stage.play.show(swept).await, "4|0");
}

/// A session with a lock that whatever is put back waits for.
async fn keeping_triggers_waiting(stage: &Stage) -> Stage {
    stage
        .play
        .show(
            "create table busy ();
             create function wait() returns trigger language plpgsql as $$ begin
                lock table public.busy in share mode; return new; end $$;
             create trigger wait before insert on once.retry for each row execute function wait();
             set statement_timeout = '30s'",
        )
        .await;
    let holder = stage.another().await;
    holder
        .play
        .show("begin; lock table busy in row exclusive mode")
        .await;
    holder
}

/// The sweep, and a take, which has more to give out.
#[tokio::test]
async fn a_lock_that_a_trigger_waits_for_is_waited_for_half_a_second() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a").await;
    let holder = keeping_triggers_waiting(&stage).await;
    let swept = "select done, failed from once.sweep_outbox_requeue()";
    assert_eq!(stage.play.show(swept).await, "0|1");
    // Put off; and once more, by a take.
    stage.clock("1 hour").await;
    stage.emit("fresh").await;
    let token = stage.expect(10, "fresh:1").await;
    stage.ack(token, "fresh").await;
    let failed = "select failed from once.janitor where task = 'outbox_requeue'";
    assert_eq!(stage.play.show(failed).await, "2");
    holder.play.show("rollback").await;
    stage.clock("5 hours").await;
    assert_eq!(stage.play.show(swept).await, "1|0");
    stage.clock("6 hours").await;
    stage.expect(10, "a:2").await;
}

/// Half a second once, not for each batch: whoever has that lock and waits for one of them would be a deadlock's victim.
#[tokio::test]
async fn all_batches_that_wait_for_one_lock_are_put_off_in_one_call() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a b c d e f g h").await;
    let holder = keeping_triggers_waiting(&stage).await;
    let swept = "select done, failed, more from once.sweep_outbox_requeue()";
    assert_eq!(stage.play.show(swept).await, "0|8|f");
    holder.play.show("rollback").await;
    stage.clock("1 hour").await;
    assert_eq!(stage.play.show(swept).await, "8|0|f");
}

/// A take says what could not be put back, and waits for nobody to note it.
#[tokio::test]
async fn a_failure_that_a_take_cannot_note_keeps_nothing_from_it() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a").await;
    stage
        .play
        .show(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
             create trigger refuse before insert on once.retry for each row execute function refuse();
             set statement_timeout = '30s'",
        )
        .await;
    let holder = stage.another().await;
    holder
        .play
        .show("begin; lock table once.janitor in access exclusive mode")
        .await;
    stage.emit("fresh").await;
    stage.expect(10, "fresh:1").await;
    holder.play.show("rollback").await;
}

async fn keep_retries_back(stage: &Stage) {
    stage
        .play
        .show(
            "create function keep() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger keep before insert on once.retry for each row execute function keep()",
        )
        .await;
}

/// For a take as for a sweep or a nack: the events stay where they are.
#[tokio::test]
async fn events_whose_retry_is_kept_back_without_a_word_are_not_lost() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a").await;
    keep_retries_back(&stage).await;
    let swept = "select done, failed from once.sweep_outbox_requeue()";
    assert_eq!(stage.play.show(swept).await, "0|1");
    let said = "select last_error from once.janitor where task = 'outbox_requeue'";
    assert!(stage.play.show(said).await.contains("kept back events"));
    stage.clock("1 hour").await;
    stage.emit("fresh").await;
    let token = stage.expect(10, "fresh:1").await;
    let nack = stage.nack_sql(token, "fresh", "");
    assert_eq!(stage.play.code(&nack).await, "55006");
    stage.ack(token, "fresh").await;
    stage.play.show("drop trigger keep on once.retry").await;
    stage.clock("5 hours").await;
    assert_eq!(stage.play.show(swept).await, "1|0");
    stage.clock("6 hours").await;
    stage.expect(10, "a:2").await;
}

/// A segment is locked while it is truncated, until that transaction ends.
#[tokio::test]
async fn a_batch_whose_events_somebody_keeps_is_not_put_off() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a b").await;
    stage.play.show("set statement_timeout = '30s'").await;
    let holder = stage.another().await;
    let swept = "select done, failed, more from once.sweep_outbox_requeue()";
    for table in ["event_1", "event_kept"] {
        holder
            .play
            .show(&format!(
                "begin; lock table once.{table} in access exclusive mode"
            ))
            .await;
        assert_eq!(stage.play.show(swept).await, "0|1|f");
        holder.play.show("rollback").await;
    }
    assert_eq!(stage.play.show(swept).await, "2|0|f");
}

/// Not for each of its lanes.
#[tokio::test]
async fn a_take_waits_once_for_what_a_trigger_waits_for() {
    let stage = Stage::open(OPTIONS).await;
    let keys = 1..=40;
    for key in keys.clone() {
        stage
            .emit_keyed(&format!("e{key}"), &format!("k{key}"))
            .await;
    }
    for _ in keys {
        if stage.try_take(1).await.is_none() {
            break;
        }
    }
    let batches = "select count(distinct token) from once.batch";
    let out: u32 = stage.play.show(batches).await.parse().unwrap();
    assert!(out > 10, "{out}");
    stage.clock("61 s").await;
    let _holder = keeping_triggers_waiting(&stage).await;
    // Half a second for each lane would be more.
    stage.play.show("set statement_timeout = '3s'").await;
    stage
        .play
        .show("select count(*) from once.outbox_take('t', max => 1000)")
        .await;
}

/// What is delayed, a dead letter that is to rise, and what waits behind an earlier event of its key.
#[tokio::test]
async fn whatever_else_is_kept_from_the_retries_stays_where_it_is() {
    let stage = Stage::open(OPTIONS).await;
    stage.emit("dies").await;
    let token = stage.expect(10, "dies:1").await;
    stage.nack(token, "dies", ", kind => 'never'").await;
    stage.emit_keyed("first", "k").await;
    let token = stage.expect(10, "first:1").await;
    stage
        .nack(token, "first", ", retry_after => '1 hour'")
        .await;
    stage.emit_keyed("second", "k").await;
    keep_retries_back(&stage).await;
    for call in [
        "select once.outbox_emit('t', '1', delay => '1 hour')",
        "select once.outbox_redrive('t', 'default')",
        "select once.outbox_take('t')",
    ] {
        assert_eq!(stage.play.code(call).await, "55006", "{call}");
    }
    assert_eq!(stage.dead().await, "dies|1|never|~");
    stage.play.show("drop trigger keep on once.retry").await;
    assert_eq!(stage.redrive(10, "").await, "1");
    let token = stage.expect(10, "dies:1").await;
    stage.ack(token, "dies").await;
    stage.expect_nothing().await;
    stage.clock("1 hour").await;
    stage.expect(10, "first:2 second:1").await;
}

/// For one of a topic's subscribers as for all.
#[tokio::test]
async fn a_delayed_event_that_one_subscriber_would_not_get_is_not_emitted() {
    let stage = Stage::open(OPTIONS).await;
    stage
        .play
        .show("select once.subscriber_set('t', 'other')")
        .await;
    stage
        .play
        .show(
            "create function keep() returns trigger language plpgsql as $$ begin
                if new.subscriber_id = (select max(subscriber_id) from once.subscriber) then return null; end if;
                return new; end $$;
             create trigger keep before insert on once.retry for each row execute function keep()",
        )
        .await;
    let emit = "select once.outbox_emit('t', '1', delay => '1 hour')";
    assert_eq!(stage.play.code(emit).await, "55006");
    let waiting =
        "select (select count(*) from once.retry), (select count(*) from once.event_kept)";
    assert_eq!(stage.play.show(waiting).await, "0|0");
    stage.play.show("drop trigger keep on once.retry").await;
    stage.play.show(emit).await;
    assert_eq!(stage.play.show(waiting).await, "2|1");
}

/// A rule that only looks on keeps nothing back.
#[tokio::test]
async fn a_delayed_event_goes_past_a_rule_that_writes_something_else_as_well() {
    let stage = Stage::open(OPTIONS).await;
    stage
        .play
        .show(
            "create table audit (n int);
             create rule audit as on insert to once.retry do also insert into public.audit values (1)",
        )
        .await;
    stage
        .play
        .show("select once.outbox_emit('t', '1', delay => '1 hour')")
        .await;
    assert_eq!(stage.play.show("select count(*) from audit").await, "1");
}

/// A machine of a table of that name, with a row whose claim is overdue.
async fn claimed(stage: &Stage, name: &str) {
    stage
        .play
        .show(&format!(
            r#"create table {name} (id int primary key, status text not null);
            select once.machine_define('{{"machine": "{name}", "table": "{name}", "id": "id", "status": "status",
                "status_types": ["a", "w", "b"], "steps": [{{"step_key": "s", "status": "a",
                "claim_state": {{"*": ["w", "a"]}}, "successful_state": {{"*": "b"}}}}]}}');
            insert into {name} values (1, 'a');
            select once.action_claim('{name}', '1', 's', lease => '1 us')"#
        ))
        .await;
}

/// What other tasks have waited for is none of this one's waits: each subscriber has its turn.
#[tokio::test]
async fn batches_of_all_subscribers_are_put_back_after_another_task_has_waited() {
    let stage = Stage::open(OPTIONS).await;
    let other = format!("select once.subscriber_set('t', 'other', '{OPTIONS}')");
    stage.play.show(&other).await;
    stage.emit("a").await;
    stage.take(1).await;
    stage.try_take_as("other", 1).await.unwrap();
    stage
        .play
        .show(
            "create function slow() returns trigger language plpgsql as $$ begin
                if new.status = 'a' then perform pg_sleep(0.3); end if; return new; end $$",
        )
        .await;
    for name in ["kept", "slow"] {
        claimed(&stage, name).await;
    }
    stage
        .play
        .show("create trigger slow before update on slow for each row execute function slow()")
        .await;
    stage.clock("61 s").await;
    let migration = stage.another().await;
    migration
        .play
        .show("begin; lock table kept in share mode")
        .await;
    let swept = "select task, done, failed from once.sweep() where done > 0 or failed > 0";
    assert_eq!(
        stage.play.show(swept).await,
        "action_release|1|1\noutbox_requeue|2|0"
    );
    migration.play.show("rollback").await;
}

/// One that waits is found among the others also where another task has lost the patience.
#[tokio::test]
async fn a_batch_that_waits_keeps_no_other_one_after_another_task_has_waited() {
    let stage = Stage::open(OPTIONS).await;
    overdue(&stage, "a b c d").await;
    claimed(&stage, "kept").await;
    stage
        .play
        .show(
            "create table gate ();
            create function wait() returns trigger language plpgsql as $$ begin
                if new.event_id = (select min(event_ids[1]) from once.batch) then
                    lock table public.gate in share mode; end if; return new; end $$;
            create trigger wait before insert on once.retry for each row execute function wait()",
        )
        .await;
    stage.clock("2 min").await;
    let holder = stage.another().await;
    holder
        .play
        .show("begin; lock table kept in share mode; lock table gate in row exclusive mode")
        .await;
    let swept = "select task, done, failed from once.sweep() where done > 0 or failed > 0";
    assert_eq!(
        stage.play.show(swept).await,
        "action_release|0|1\noutbox_requeue|3|1"
    );
    holder.play.show("rollback").await;
}
