//! action_adopt: rows that wear a claim state or a cancel flag, but not by a call of ours, become known.

use crate::coverage::problems;
use crate::world::{drain, job, jobs, outcome, sweep, token, world};

#[tokio::test]
async fn rows_in_a_claim_state_without_a_lease_are_told_adopted_and_reverted() {
    let play = world().await;
    play.show("select once.sweep()").await;
    jobs(&play, 1, 3, "running").await;
    jobs(&play, 4, 4, "retrying").await;
    jobs(&play, 5, 6, "ready").await;
    token(&play, 5, "run", "").await;
    let shown = problems(&play).await;
    assert!(
        shown.contains("3 rows in claim state \"running\" without a lease: 1, 2, 3"),
        "{shown}"
    );
    assert!(
        shown.contains("1 row in claim state \"retrying\" without a lease: 4"),
        "{shown}"
    );
    assert!(shown.contains("action_adopt"), "{shown}");
    // Without a lease a row in a claim state is nobody's, and yet nobody's to claim.
    assert_ne!(outcome(&play, 1, "run", "").await, "claimed|running");
    assert_eq!(play.show("select once.action_adopt('job')").await, "4");
    assert_eq!(play.show("select once.action_adopt('job')").await, "0");
    assert_eq!(problems(&play).await, "");
    assert_eq!(sweep(&play, 10).await, "4|0|f");
    play.ask("select string_agg(status, ',' order by id) from job")
        .is("ready,ready,ready,failed,running,ready")
        .await;
}

#[tokio::test]
async fn rows_in_a_claim_state_are_found_by_an_index_on_the_status() {
    let play = world().await;
    jobs(&play, 1, 5000, "ready").await;
    play.show("create index on job (status); analyze job; set enable_seqscan = off")
        .await;
    let looked = "select idx_scan from pg_stat_xact_user_tables where relname = 'job'";
    play.show("begin; select count(*) from once.machine_check('job')")
        .await;
    assert_ne!(play.show(looked).await, "0");
}

/// A check in an older snapshot looked for the leases in a newer one, and told of orphans on a busy machine.
#[tokio::test]
async fn a_lease_or_teardown_that_ends_during_a_check_makes_no_orphan() {
    let play = world().await;
    play.show("select once.sweep()").await;
    jobs(&play, 1, 2, "ready").await;
    let mine = token(&play, 1, "run", "").await;
    let reader = play.another().await;
    reader
        .show("begin isolation level repeatable read; select 1")
        .await;
    play.show(&crate::world::finish(1, mine, "")).await;
    play.show("select once.cancel_request('job', '2')").await;
    assert_eq!(problems(&reader).await, "");
    reader.show("commit").await;
    assert_eq!(problems(&reader).await, "");
}

#[tokio::test]
async fn adopting_is_bounded_and_skips_locked_rows() {
    let play = world().await;
    jobs(&play, 1, 25, "running").await;
    assert_eq!(play.show("select once.action_adopt('job', 10)").await, "10");
    let other = play.another().await;
    play.show("set lock_timeout = '1ms'").await;
    other
        .show("begin; select from job where id in (3, 17, 25) for update")
        .await;
    let mut adopted = 10;
    for _ in 0..5 {
        adopted += play
            .show("select once.action_adopt('job', 10)")
            .await
            .parse::<u32>()
            .unwrap();
    }
    assert!((22..=25).contains(&adopted), "{adopted}");
    other.show("rollback").await;
    play.show("select once.action_adopt('job')").await;
    assert_eq!(drain(&play, 10).await, (25, 0));
    for max in ["0", "-1", "1000001", "null"] {
        let call = format!("select once.action_adopt('job', {max})");
        assert_eq!(play.code(&call).await, "22023", "{max}");
    }
}

#[tokio::test]
async fn a_dead_lease_does_not_keep_a_row_from_being_adopted() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let ended = token(&play, 1, "run", "").await;
    play.show(&crate::world::finish(1, ended, "")).await;
    play.show("update job set status = 'running' where id = 1")
        .await;
    assert_eq!(play.show("select once.action_adopt('job')").await, "1");
    assert_eq!(
        play.code(&crate::world::finish(1, ended, "")).await,
        "ON006",
        "it had finished"
    );
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    assert!(job(&play, 1).await.starts_with("ready|"));
}

#[tokio::test]
async fn adopting_needs_the_right_to_update_the_table() {
    let play = world().await;
    jobs(&play, 1, 1, "running").await;
    crate::world::role(&play, "adopt_reader", "operate").await;
    play.show("grant select on job to adopt_reader").await;
    let reader = play.another_as("adopt_reader").await;
    assert_eq!(
        reader.code("select once.action_adopt('job')").await,
        "42501"
    );
    play.show("grant update on job to adopt_reader").await;
    assert_eq!(reader.show("select once.action_adopt('job')").await, "1");
}

#[tokio::test]
async fn rows_whose_flag_was_set_before_the_machine_knew_them_are_told_adopted_and_pending() {
    let play = world().await;
    play.show("select once.sweep()").await;
    jobs(&play, 1, 2, "ready").await;
    play.show("update job set cancel_requested = true where id = 2")
        .await;
    assert_ne!(problems(&play).await, "");
    play.show("select once.action_adopt('job')").await;
    assert_eq!(problems(&play).await, "");
    play.ask("select id, status from once.cancel_pending('job')")
        .is("2|ready")
        .await;
    play.show("select once.cancel_refund('job', '2'); select once.cancel_confirm('job', '2', 1)")
        .await;
    play.ask("select status from once.cancel_finish('job', '2')")
        .is("cancelled")
        .await;
}

#[tokio::test]
async fn adopting_never_gives_more_than_max() {
    let play = world().await;
    jobs(&play, 1, 4, "running").await;
    jobs(&play, 5, 8, "ready").await;
    play.show("update job set cancel_requested = true where id >= 5")
        .await;
    for max in [1, 3] {
        let adopted = play
            .show(&format!("select once.action_adopt('job', {max})"))
            .await;
        assert_eq!(adopted, max.to_string());
    }
}
