//! Items under the guard: what is decided stays decided, and nothing undecided comes under a cancelled row.

use crate::playground::Playground;
use crate::world::jobs;
use crate::{guarded, illegal, rows, with_jobs};

/// Job 6 refunded and not yet finished: items 61 and 62 are marked.
async fn refunded() -> Playground {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("select once.cancel_refund('job', '6')").await;
    play
}

/// Its stored value ends in blanks.
#[tokio::test]
async fn a_marker_of_fixed_length_is_not_reset() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show(
        "alter table item alter settled type char(12); select once.cancel_refund('job', '6')",
    )
    .await;
    illegal(&play, "update item set settled = null where id = 61").await;
}

#[tokio::test]
async fn a_marker_is_not_reset() {
    let play = refunded().await;
    let before = rows(&play).await;
    for sql in [
        "update item set settled = null where id = 61",
        "update item set settled = 'kept' where id = 61",
        "update item set settled = '' where id = 62",
        "update item set settled = null where id = 71",
        "update item set settled = null",
    ] {
        let refusal = illegal(&play, sql).await;
        let told = format!("{} {}", refusal.message, refusal.detail);
        assert!(
            ["61", "62", "71"].iter().any(|id| told.contains(id)),
            "{refusal:?}"
        );
    }
    assert_eq!(rows(&play).await, before);
}

#[tokio::test]
async fn what_was_given_back_for_a_marked_item_does_not_change() {
    let play = refunded().await;
    jobs(&play, 9, 9, "ready").await;
    let before = rows(&play).await;
    for sql in [
        "update item set points = 6 where id = 61",
        "update item set points = 0 where id = 61",
        "update item set points = 4 where id = 71",
        // What did not match `when` does not begin to, and the other way round.
        "update item set state = 'failed' where id = 61",
        "update item set state = 'succeeded' where id = 62",
        "update item set state = 'failed' where id = 71",
        // Another job's item.
        "update item set job_id = 9 where id = 61",
        "update item set job_id = 9 where id = 71",
        "update item set job_id = 7 where id = 62",
    ] {
        illegal(&play, sql).await;
    }
    assert_eq!(rows(&play).await, before);
    // What does not count may change.
    play.show("update item set note = 'x', points = points, state = state, settled = settled")
        .await;
    play.show("update item set state = 'broken' where id = 62")
        .await;
}

#[tokio::test]
async fn a_marked_item_is_deleted_only_once_its_row_is_cancelled() {
    let play = refunded().await;
    illegal(&play, "delete from item where id = 61").await;
    illegal(&play, "delete from item").await;
    play.show("delete from item where id = 71").await;
    play.show("select once.cancel_confirm('job', '6', 1); select once.cancel_finish('job', '6')")
        .await;
    play.show("delete from item where id = 61").await;
    assert_eq!(play.show("select id from item").await, "62");
}

#[tokio::test]
async fn undecided_items_are_deleted_and_changed_as_before() {
    let play = guarded().await;
    with_jobs(&play).await;
    jobs(&play, 9, 9, "ready").await;
    play.show("update item set points = 9, state = 'succeeded', job_id = 9 where id = 62")
        .await;
    play.show("update item set settled = 'kept' where id = 62; update item set settled = null where id = 62")
        .await;
    play.show("delete from item where id = 62").await;
}

#[tokio::test]
async fn no_undecided_item_comes_under_a_cancelled_row() {
    let play = guarded().await;
    with_jobs(&play).await;
    jobs(&play, 9, 9, "ready").await;
    play.show("insert into item (id, job_id) values (91, 9)")
        .await;
    for sql in [
        "insert into item (id, job_id) values (100, 7)",
        "insert into item (id, job_id, settled) values (100, 7, null)",
        "insert into item (id, job_id) values (100, 9), (101, 7)",
        "update item set job_id = 7 where id = 91",
        "update item set job_id = 7, state = 'succeeded' where id = 91",
    ] {
        let refusal = illegal(&play, sql).await;
        let told = format!("{} {}", refusal.message, refusal.detail);
        assert!(told.contains('7'), "{refusal:?}");
    }
    // Decided otherwise, it owes nothing.
    play.show("insert into item (id, job_id, settled) values (102, 7, 'kept')")
        .await;
    illegal(&play, "update item set settled = null where id = 102").await;
    play.show("insert into item (id, job_id) values (103, 6)")
        .await;
}

#[tokio::test]
async fn row_level_security_on_the_machines_table_hides_no_row_from_the_guard() {
    let play = Playground::open().await;
    play.ensure_role("guard_forced login").await;
    play.show(crate::world::TABLES).await;
    crate::world::define(&play, crate::world::JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    with_jobs(&play).await;
    play.show(
        "alter table job owner to guard_forced; alter table job enable row level security;
         alter table job force row level security; grant all on item to guard_forced",
    )
    .await;
    let writer = play.another_as("guard_forced").await;
    assert_eq!(writer.show("select count(*) from job").await, "0");
    illegal(&writer, "insert into item (id, job_id) values (100, 7)").await;
    illegal(&writer, "update item set settled = null where id = 71").await;
    illegal(&writer, "update item set job_id = 7 where id = 61").await;
    play.show("alter table job owner to postgres").await;
}

#[tokio::test]
async fn an_item_of_no_row_is_written_as_before() {
    let play = guarded().await;
    play.show("insert into item (id, job_id) values (1, 777)")
        .await;
    play.show("update item set points = 3").await;
    play.show("delete from item").await;
}

#[tokio::test]
async fn a_cascaded_delete_takes_marked_items_only_of_a_cancelled_row() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show("alter table item add foreign key (job_id) references job on delete cascade on update cascade")
        .await;
    play.show("select once.cancel_refund('job', '6')").await;
    let before = rows(&play).await;
    illegal(&play, "delete from job where id = 6").await;
    illegal(&play, "delete from job where id in (6, 7)").await;
    assert_eq!(rows(&play).await, before);
    play.show("delete from job where id = 7").await;
    play.ask("select count(*) from item where id = 71")
        .is("0")
        .await;
    play.show("insert into item (id, job_id) values (41, 4); delete from job where id = 4")
        .await;
    play.ask("select count(*) from item where id = 41")
        .is("0")
        .await;
    // A cascade that takes items with their row to another key changes their subject.
    illegal(&play, "update job set id = 66 where id = 6").await;
}

#[tokio::test]
async fn a_cascade_that_sets_null_takes_marked_items_off_a_cancelled_row_only() {
    let play = guarded().await;
    with_jobs(&play).await;
    play.show(
        "alter table item alter job_id drop not null,
            add foreign key (job_id) references job on delete set null; select once.cancel_refund('job', '6')",
    )
    .await;
    illegal(&play, "delete from job where id = 6").await;
    play.ask("select count(*) from item where job_id = 6")
        .is("2")
        .await;
    illegal(&play, "update item set job_id = null where id = 61").await;
    play.show("delete from job where id = 7").await;
    let item = "select job_id, settled from item where id = 71";
    assert_eq!(play.show(item).await, "~|returned");
    let audit = "select * from once.cancel_audit('job')";
    assert_eq!(play.show(audit).await, "");
}

#[tokio::test]
async fn only_a_refund_gives_an_item_the_marker() {
    let play = guarded().await;
    with_jobs(&play).await;
    for sql in [
        "update item set settled = 'returned' where id = 61",
        "insert into item (id, job_id, points, state, settled) values (100, 6, 5, 'succeeded', 'returned')",
    ] {
        let refusal = illegal(&play, sql).await;
        assert!(refusal.hint.contains("cancel_refund"), "{refusal:?}");
    }
    play.ask("select amount from once.cancel_refund('job', '6')")
        .is("5")
        .await;
}

#[tokio::test]
async fn an_undecided_value_other_than_null_is_guarded_alike() {
    let play = Playground::open().await;
    play.show(crate::world::TABLES).await;
    play.show("alter table item alter settled set default 'open', alter settled set not null")
        .await;
    let definition = crate::world::JOB.replace(
        r#""marked": "returned""#,
        r#""marked": "returned", "undecided": "open""#,
    );
    crate::world::define(&play, &definition).await;
    play.show("select once.machine_guard('job', true)").await;
    with_jobs(&play).await;
    illegal(&play, "insert into item (id, job_id) values (100, 7)").await;
    illegal(&play, "update item set settled = 'open' where id = 71").await;
    play.show("insert into item (id, job_id, settled) values (100, 7, 'kept')")
        .await;
    illegal(&play, "update item set settled = 'open' where id = 100").await;
}
