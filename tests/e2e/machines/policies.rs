//! A row that policies let a caller see but not update: every call says ON002, and none waits or tells of a
//! row that is not there.

use crate::playground::Playground;
use crate::world::{claim, jobs, role, transition, world};

/// Jobs 1 to 5, ready, and a clerk who sees all but 5 and may update all but 1.
async fn clerk() -> (Playground, Playground) {
    let play = world().await;
    jobs(&play, 1, 5, "ready").await;
    role(&play, "policies_clerk", "use").await;
    play.show(
        "alter table job enable row level security; create policy seen on job for select using (id <> 5);
         create policy updated on job for update using (id <> 1); grant all on job, item, wallet to policies_clerk",
    )
    .await;
    let clerk = play.another_as("policies_clerk").await;
    (play, clerk)
}

#[tokio::test]
async fn a_row_that_may_be_seen_but_not_updated_is_kept_back_whoever_asks() {
    let (play, clerk) = clerk().await;
    for call in [
        transition("1", "failed", ""),
        "select * from once.transition_many('job', '{2,1}', 'failed')".to_owned(),
        "select * from once.cancel_request('job', '1')".to_owned(),
        format!("select * from {}", claim(1, "run", "")),
    ] {
        let refusal = clerk.refused(&call).await;
        assert_eq!(refusal.code, "ON002", "{call}: {refusal:?}");
        assert!(
            refusal.message.contains("was suppressed"),
            "{call}: {refusal:?}"
        );
        assert!(refusal.hint.contains("policy"), "{call}: {refusal:?}");
    }
    let untouched = "select count(*) from job where status <> 'ready' or cancel_requested";
    assert_eq!(play.show(untouched).await, "0");
}
