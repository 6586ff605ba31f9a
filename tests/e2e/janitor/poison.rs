//! Rows that cannot be swept, a thousand of them at the head: those behind them are not kept waiting.

use crate::world::{JOBS, claim, launch, show, until};

#[tokio::test]
async fn a_thousand_rows_that_cannot_be_reverted_keep_the_one_behind_them_waiting_for_a_pass_at_most()
 {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    show(&client, JOBS).await;
    show(
        &client,
        "insert into job select g from generate_series(101, 1500) as g;
         alter table job add constraint poison check (status <> 'ready' or id not between 1 and 1000) not valid",
    )
    .await;
    show(&client, "begin").await;
    claim(&client, 1, 1000, "1 us").await;
    claim(&client, 1001, 1001, "1 us").await;
    show(&client, "commit").await;
    until(&client, "select status from job where id = 1001", "ready").await;
    until(
        &client,
        "select done, failed >= 1000, last_error ~ 'poison' from once.janitor_status() where machine = 'job'",
        "1|t|t",
    )
    .await;
    // Put off: they come back one by one, and what comes meanwhile is done at once.
    let again = "select count(*) from once.action_lease where state = 'h' and failures > 0 and look_at > clock_timestamp()";
    until(&client, again, "1000").await;
    claim(&client, 1002, 1500, "1 us").await;
    until(
        &client,
        "select count(*) from job where id > 1000 and status = 'ready'",
        "500",
    )
    .await;
    show(&client, "alter table job drop constraint poison").await;
    show(
        &client,
        "update once.action_lease set look_at = clock_timestamp() where state = 'h'",
    )
    .await;
    until(&client, "select distinct status from job", "ready").await;
}
