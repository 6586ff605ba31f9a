//! A task that raises is counted and told of; the others go on, and the caller's transaction with them.

use crate::playground::Playground;
use crate::serving::expired;

/// Somebody keeps a table of one task locked; the sweeper does not wait for it.
async fn blocked(table: &str) -> (Playground, Playground) {
    let play = Playground::directly("CALL goes by the settings of its session").await;
    expired(&play.client, 10).await;
    let holder = play.another().await;
    holder
        .show(&format!(
            "begin; lock table once.{table} in access exclusive mode"
        ))
        .await;
    (play, holder)
}

#[tokio::test]
async fn one_task_fails_and_the_others_are_done() {
    let (play, holder) = blocked("inbox").await;
    play.show("begin; create table mine (id int)").await;
    play.ask("select task, done, failed, more from once.sweep()")
        .is("action_release|0|0|f\nkey_abandon|0|0|f\nkey_reap|10|0|f\nkey_tombstone|0|0|f\noutbox_requeue|0|0|f\n\
         inbox_reap|0|1|f\ndedupe_reap|0|0|f\ndead_reap|0|0|f\nhistory_reap|0|0|f\noutbox_retire|0|0|f").await;
    play.show("commit").await;
    assert_eq!(play.show("select count(*) from once.key").await, "0");
    play.show("select * from mine").await;
    let told = "select done, failed, last_error, good_end is null, last_end is null from once.janitor where task = 'inbox_reap'";
    let timeout = "canceling statement due to lock timeout";
    assert_eq!(play.show(told).await, format!("0|1|{timeout}|t|f"));
    play.ask("select failed from once.sweep(task => 'inbox_reap')")
        .is("1")
        .await;
    play.show("call once.sweep_all()").await;
    assert_eq!(play.show(told).await, format!("0|3|{timeout}|t|f"));
    holder.show("rollback").await;
    play.ask("select done, failed from once.sweep(task => 'inbox_reap')")
        .is("0|0")
        .await;
    assert_eq!(play.show(told).await, format!("0|3|{timeout}|f|f"));
}

#[tokio::test]
async fn a_cancelled_query_is_no_failure_of_a_task() {
    let (play, holder) = blocked("key").await;
    play.show("set lock_timeout = 0; set statement_timeout = '100ms'")
        .await;
    assert_eq!(play.code("select * from once.sweep()").await, "57014");
    assert_eq!(play.code("call once.sweep_all()").await, "57014");
    holder.show("rollback").await;
    play.show("set statement_timeout = 0").await;
    play.ask("select sum(failed) from once.janitor_status()")
        .is("0")
        .await;
}
