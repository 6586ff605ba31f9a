//! What doctor says of machines and tasks: to who may only observe, of another owner's, and of damaged ones.

use super::doctor::{assert_told, story, told};
use super::{orders, problems};
use crate::playground::Playground;

#[tokio::test]
async fn who_may_only_observe_is_told_what_a_sweep_said_of_anybodys_machine() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show(
        "drop role if exists doctors_stranger; create role doctors_stranger login;
         select once.grant_role('doctors_stranger', 'observe');
         select once.machine_define((once.machine_get('orders')::jsonb || '{\"owner\": \"postgres\"}')::json);
         select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 us');
         create function refuse() returns trigger language plpgsql as $$ begin raise 'not for 4711'; end $$;
         create trigger refuse before update on orders for each row execute function refuse();
         select * from once.sweep()",
    )
    .await;
    let fails = "the sweep task action_release fails for machine \"orders\"";
    let rows = "1 rows could not be reverted";
    for problem in [fails, rows] {
        assert_told(&play, problem, "warning", "not for 4711").await;
    }
    let stranger = play.another_as("doctors_stranger").await;
    for problem in [fails, rows] {
        assert_told(&stranger, problem, "warning", "not for 4711").await;
    }
}

#[tokio::test]
async fn a_table_that_cannot_be_handled_at_all_is_said_to_be_tried_in_each_pass() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show(
        "select * from once.sweep(); select once.action_claim('orders', '1', 'pay', lease => '1 us');
         alter table orders rename status to state; select * from once.sweep()",
    )
    .await;
    let problem = "the sweep task action_release fails for machine \"orders\"";
    assert_told(
        &play,
        problem,
        "warning",
        "retry a failed task or table in a later pass",
    )
    .await;
    assert!(told(&play, problem).await.contains("once.machine_check()"));
    // Not deferred: the row goes back with the next pass once the table is as it was.
    play.show("alter table orders rename state to status; select * from once.sweep()")
        .await;
    assert_eq!(play.show("select status from orders").await, "new");
    assert_eq!(problems(&play).await, "");
}

#[tokio::test]
async fn a_task_that_fails_as_a_whole() {
    let play = Playground::directly("lock_timeout is its session's").await;
    let holder = play.another().await;
    holder
        .show("begin; lock table once.inbox in access exclusive mode")
        .await;
    play.show("set lock_timeout = '1ms'; select * from once.sweep(); reset lock_timeout")
        .await;
    holder.show("rollback").await;
    let lines = "
        ! warning | the sweep task inbox_reap fails | canceling statement due to lock timeout
        select * from once.sweep()
        well";
    story(&play, lines).await;
}

#[tokio::test]
async fn a_machine_whose_definition_is_damaged_hides_no_other() {
    let play = Playground::open().await;
    orders(&play).await;
    play.show(
        "create table orders_2 (like orders including all);
         select once.machine_define((once.machine_get('orders')::jsonb || '{\"machine\": \"broken\", \"table\": \"orders_2\"}')::json);
         select * from once.sweep();
         update once.machine set definition = '{\"x\": 1}', revision = revision + 1 where machine = 'broken'",
    )
    .await;
    let problem = "machine \"broken\" cannot be checked";
    assert_told(&play, problem, "error", "once.machine_check(machine)").await;
    play.show("alter table orders rename status to state").await;
    assert!(!told(&play, "machine \"orders\": ").await.is_empty());
}
