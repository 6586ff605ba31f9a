//! A sweep waits for each lock no longer than once.sweep_lock_timeout, whatever lock_timeout says: a table that somebody has
//! locked is its task's failure, told in the result and, where that is possible, noted.

use crate::playground::Playground;

/// A message that is due, and a session that keeps a table. What waits for it for ever ends with 57014.
async fn kept(table: &str) -> (Playground, Playground) {
    let play = Playground::open().await;
    play.show(
        "insert into once.inbox (expires_at, status, id, scope, name)
         select clock_timestamp() - interval '1 day', 'm', gen_random_uuid(), 's', g from generate_series(1, 3) as g;
         set statement_timeout = '30s'",
    )
    .await;
    let holder = play.another().await;
    let lock = format!("begin; lock table once.{table} in access exclusive mode");
    holder.show(&lock).await;
    (play, holder)
}

/// The tasks that fail while a table is kept, and none afterwards; the others are done.
async fn fail_alone(table: &str, tasks: &str) {
    let (play, holder) = kept(table).await;
    let failed = "select string_agg(task, ' ' order by task) from once.sweep() where failed > 0";
    assert_eq!(play.show(failed).await, tasks, "{table}");
    assert_eq!(play.show("select count(*) from once.inbox").await, "0");
    let noted = "select string_agg(task, ' ' order by task) from once.janitor where failed > 0 and last_error is not null";
    assert_eq!(play.show(noted).await, tasks, "{table}");
    holder.show("rollback").await;
    assert_eq!(play.show(failed).await, "~", "{table}");
}

#[tokio::test]
async fn who_keeps_a_table_fails_what_asks_for_it_alone() {
    for (table, tasks) in [
        ("topic", "outbox_requeue outbox_retire"),
        ("subscriber", "dead_reap outbox_requeue outbox_retire"),
        ("scope", "key_reap key_tombstone"),
        ("machine", "action_release history_reap"),
        ("action_lease", "action_release"),
    ] {
        fail_alone(table, tasks).await;
    }
}

/// What is done is done, and the result says that nobody else can know of it.
#[tokio::test]
async fn a_run_that_cannot_be_noted_is_told_and_undoes_nothing() {
    for mode in ["access exclusive", "exclusive"] {
        let (play, holder) = kept("inbox").await;
        holder
            .show(&format!(
                "rollback; begin; lock table once.janitor in {mode} mode"
            ))
            .await;
        for (task, told) in [("inbox_reap", "3|1|f"), ("outbox_requeue", "0|1|f")] {
            let swept = format!("select done, failed, more from once.sweep(task => '{task}')");
            assert_eq!(play.show(&swept).await, told, "{mode}");
        }
        assert_eq!(play.show("select count(*) from once.inbox").await, "0");
        holder.show("rollback").await;
        let failed = "select count(*) from once.sweep() where failed > 0";
        assert_eq!(play.show(failed).await, "0", "{mode}");
    }
}

/// Rows that are reverted stay so.
#[tokio::test]
async fn a_machines_run_that_cannot_be_noted_undoes_no_row() {
    let (play, holder) = kept("inbox").await;
    holder.show("rollback").await;
    play.show(crate::world::JOBS).await;
    play.show("select once.action_claim('job', '1', 'run', lease => '1 us')")
        .await;
    holder
        .show("begin; lock table once.janitor in exclusive mode")
        .await;
    let swept = "select done, failed > 0 from once.sweep(task => 'action_release')";
    assert_eq!(play.show(swept).await, "1|t");
    play.ask("select status from job where id = 1")
        .is("ready")
        .await;
}
