//! Refund and cleanup in pages: by the order of the items' keys, each item in one page, every time.

use crate::playground::Playground;
use crate::shop::{self, Job};

const REFUND: &str = "items, amount, items_total, amount_total, remaining, pass";

async fn flagged(points: &[i64]) -> (Playground, Job) {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", points).await;
    let request = job.call("outcome", "cancel_request", "");
    assert_eq!(play.show(&request).await, "teardown");
    (play, job)
}

#[tokio::test]
async fn max_items_refunds_page_by_page_and_each_page_is_a_pass() {
    let (play, job) = flagged(&[1, 2, 4, 8, 16]).await;
    let refund = job.call(REFUND, "cancel_refund", ", 2");
    assert_eq!(play.show(&refund).await, "2|3|2|3|t|1");
    let marked = "select string_agg(points::text, ' ' order by id) from batch_item where settled = 'returned'";
    assert_eq!(play.show(marked).await, "1 2");
    assert_eq!(play.show(&refund).await, "2|12|4|15|t|2");
    assert_eq!(play.show(&refund).await, "1|16|5|31|f|3");
    assert_eq!(play.show(&refund).await, "0|0|5|31|f|3");
    let whole = job.call(REFUND, "cancel_refund", "");
    assert_eq!(play.show(&whole).await, "0|0|5|31|f|3");
    let records = "select string_agg(pass || ':' || items || ':' || amount || ':' || wallet || ':' || role, ' ' order by pass)
                     from once.refund";
    let expected = "1:2:3:w:postgres 2:2:12:w:postgres 3:1:16:w:postgres";
    assert_eq!(play.show(records).await, expected);
}

#[tokio::test]
async fn a_last_page_that_is_full_says_that_nothing_remains() {
    let (play, job) = flagged(&[1, 2]).await;
    let told = play.show(&job.call(REFUND, "cancel_refund", ", 2")).await;
    assert_eq!(told, "2|3|2|3|f|1");
}

#[tokio::test]
async fn cleanup_lists_everything_marked_every_time_in_pages_by_key() {
    let (play, job) = flagged(&[1; 12]).await;
    let first: i64 = play
        .show("select min(id) from batch_item")
        .await
        .parse()
        .unwrap();
    let list = |more: &str| job.call("item_id", "cancel_items", more);
    assert_eq!(play.show(&list("")).await, "");
    play.show(&job.call("items", "cancel_refund", ", 11")).await;
    let ids = |from: i64, to: i64| {
        let ids = (first + from..first + to).map(|id| id.to_string());
        ids.collect::<Vec<_>>().join("\n")
    };
    for _ in 0..2 {
        assert_eq!(play.show(&list("")).await, ids(0, 11));
        assert_eq!(play.show(&list(", max => 5")).await, ids(0, 5));
        let after = |id: i64| list(&format!(", '{}', 5", first + id));
        assert_eq!(play.show(&after(4)).await, ids(5, 10));
        assert_eq!(play.show(&after(9)).await, ids(10, 11));
        assert_eq!(play.show(&after(11)).await, "");
    }
    play.show(&job.call("items", "cancel_refund", "")).await;
    assert_eq!(play.show(&list("")).await, ids(0, 12));
    let item = job.call(
        "item ->> 'points', item ->> 'settled', item ->> 'artifact', json_typeof(item)",
        "cancel_items",
        ", max => 1",
    );
    let expected = format!("1|returned|{}-0|object", job.id);
    assert_eq!(play.show(&item).await, expected);
    let bad = list(", 'x'");
    assert!(matches!(play.code(&bad).await.as_str(), "22P02" | "22023"));
}

#[tokio::test]
async fn kept_items_are_neither_refunded_nor_listed() {
    let play = shop::open().await;
    let job = shop::job_of(&play, "w", &[1, 2, 4]).await;
    play.show("update batch_item set settled = 'kept' where points = 2")
        .await;
    play.show(&job.call("outcome", "cancel_request", "")).await;
    let told = play.show(&job.call(REFUND, "cancel_refund", "")).await;
    assert_eq!(told, "2|5|2|5|f|1");
    let listed = job.call("item ->> 'points'", "cancel_items", "");
    assert_eq!(play.show(&listed).await, "1\n4");
}

#[tokio::test]
async fn ten_thousand_items_are_refunded_in_one_call() {
    let (play, job) = flagged(&[]).await;
    play.show(&format!(
        "insert into batch_item (job_id, input, state, points, artifact)
         select {}, g, case when g % 2 = 0 then 'succeeded' else 'failed' end, 3, g
           from generate_series(1, 10000) as g",
        job.id
    ))
    .await;
    let told = play.show(&job.call(REFUND, "cancel_refund", "")).await;
    assert_eq!(told, "10000|15000|10000|15000|f|1");
    play.ask(&job.call("count(*)", "cancel_items", ", max => 100000"))
        .is("10000")
        .await;
    play.ask(&job.call("count(*)", "cancel_items", ""))
        .is("1000")
        .await;
}
