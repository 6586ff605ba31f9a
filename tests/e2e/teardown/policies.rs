//! Items that policies hide, from everything or from updates only: refund tells, and nothing ends without them.

use crate::playground::Playground;
use crate::shop::{self, Job};

/// A role that may use machines, and read and update the story's tables.
async fn clerk(play: &Playground) {
    play.show(
        "create role clerk_of_policies;
         select once.grant_role('clerk_of_policies', 'use');
         grant usage on schema public to clerk_of_policies;
         grant select, update on batch_job, batch_item, wallet to clerk_of_policies",
    )
    .await;
}

async fn items(play: &Playground, job: &Job) -> String {
    play.show(&format!(
        "select string_agg(settled is not null || '', ' ' order by id) from batch_item where job_id = {}",
        job.id
    ))
    .await
}

#[tokio::test]
async fn an_item_that_may_be_seen_and_not_updated_is_told_of_at_every_level() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[10, 20]).await;
    clerk(&play).await;
    play.show(
        "alter table batch_item enable row level security;
         create policy seen on batch_item for select using (true);
         create policy ours on batch_item for update using (points < 20)",
    )
    .await;
    play.show(&job.call("outcome", "cancel_request", "")).await;
    play.show("set role clerk_of_policies").await;
    let refund = job.call("items, remaining", "cancel_refund", "");
    assert_eq!(play.show(&refund).await, "1|t");
    for level in ["read committed", "repeatable read", "serializable"] {
        for more in ["", ", 5"] {
            play.show(&format!("begin isolation level {level}")).await;
            let refusal = play
                .refused(&job.call("items", "cancel_refund", more))
                .await;
            assert_eq!(refusal.code, "ON002", "{level}: {refusal:?}");
            assert!(refusal.hint.contains("policy"), "{refusal:?}");
            play.show("rollback").await;
        }
    }
    // One that somebody has locked is no policy's: it may be marked later.
    play.show("reset role").await;
    play.show(
        "drop policy ours on batch_item; create policy ours on batch_item for update using (true)",
    )
    .await;
    let holder = play.another().await;
    holder
        .show("begin; select from batch_item where settled is null for update")
        .await;
    play.show("set role clerk_of_policies; set lock_timeout = '50ms'")
        .await;
    assert_eq!(play.code(&refund).await, "55P03");
    holder.show("rollback").await;
    assert_eq!(play.show(&refund).await, "1|f");
    play.show("reset role").await;
    assert_eq!(items(&play, &job).await, "true true");
}

/// The owner's policies are forced for the owner's calls, and not for the check that nothing is left: the statements are
/// the same, and a backend keeps each of them with or without the policies.
#[tokio::test]
async fn no_row_is_cancelled_while_an_item_is_hidden_from_its_owner() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[10, 20]).await;
    play.show(&job.call("outcome", "cancel_request", "")).await;
    play.show(
        "create role app_of_policies;
         grant usage on schema public to app_of_policies;
         select once.grant_role('app_of_policies', 'use');
         alter table batch_job owner to app_of_policies;
         alter table batch_item owner to app_of_policies;
         alter table wallet owner to app_of_policies;
         alter table batch_item force row level security;
         alter table batch_item enable row level security;
         create policy ours on batch_item using (points < 20)",
    )
    .await;
    play.show("set role app_of_policies; set search_path = pg_catalog, pg_temp")
        .await;
    play.ask(&job.call("items", "cancel_refund", ", 10"))
        .is("1")
        .await;
    play.show(&job.call("confirmed", "cancel_confirm", ", 1"))
        .await;
    let refusal = play.refused(&job.call("status", "cancel_finish", "")).await;
    assert_eq!(refusal.code, "ON005", "{refusal:?}");
    play.show("reset role; reset search_path").await;
    assert_eq!(items(&play, &job).await, "true false");
}
