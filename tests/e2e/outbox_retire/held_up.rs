//! A sweep that cannot give anything back says so.

use crate::{open, retire, retire_until};

/// A defect once: nothing was done, and nobody was told.
#[tokio::test]
async fn an_open_transaction_that_changes_subscribers_is_told_as_a_failure() {
    let play = open().await;
    play.show("select fill('t', 1100); select drain('t') is not null")
        .await;
    let failed = "select failed, last_error like '%subscriber%' from once.janitor
                   where task = 'outbox_retire' and machine = ''";
    for (change, end) in [
        ("select once.subscriber_set('t', 'new')", "rollback"),
        (
            "select once.subscriber_set('t', 'default', '{\"lease\": \"5 s\"}')",
            "commit",
        ),
    ] {
        let other = play.another().await;
        other.show(&format!("begin; {change}")).await;
        let before: i64 = play
            .show("select coalesce(sum(failed), 0) from once.janitor where task = 'outbox_retire'")
            .await
            .parse()
            .unwrap();
        assert_eq!(retire(&play).await, "0|1|f", "{change}");
        assert_eq!(play.show(failed).await, format!("{}|t", before + 1));
        other.show(end).await;
    }
    retire_until(&play, "").await;
}
