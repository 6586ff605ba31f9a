//! dedupe_reap: dedupe_keys go when their topic's window is over.

use crate::open;

#[tokio::test]
async fn keys_whose_window_is_over_go_in_bounded_passes_and_no_others() {
    let play = open().await;
    play.clock("0").await;
    play.show("select once.topic_set('t', '{\"dedupe_for\": \"1 hour\"}')")
        .await;
    play.show("select count(once.outbox_emit('t', '1', dedupe_key => 'k' || i)) from generate_series(1, 5) i")
        .await;
    play.clock("30 minutes").await;
    play.show("select once.outbox_emit('t', '1', dedupe_key => 'later')")
        .await;
    let reap = "select task, done, failed, more from once.sweep_dedupe_reap(3)";
    assert_eq!(play.show(reap).await, "dedupe_reap|0|0|f");
    play.clock("61 minutes").await;
    assert_eq!(play.show(reap).await, "dedupe_reap|3|0|t");
    let rest = "select done from once.sweep() where task = 'dedupe_reap'";
    assert_eq!(play.show(rest).await, "2");
    assert_eq!(play.show("select count(*) from once.dedupe").await, "1");
    let emit = |key: &str| {
        format!("select emitted from once.outbox_emit('t', '1', dedupe_key => '{key}')")
    };
    assert_eq!(play.show(&emit("later")).await, "f");
    assert_eq!(play.show(&emit("k1")).await, "t");
}

#[tokio::test]
async fn a_key_that_somebody_emits_anew_is_passed_over() {
    let play = open().await;
    play.clock("0").await;
    let emit = "select emitted from once.outbox_emit('t', '1', dedupe_key => 'k')";
    play.show(emit).await;
    play.clock("25 hours").await;
    let other = play.another().await;
    other.clock("25 hours").await;
    other.show("begin").await;
    assert_eq!(other.show(emit).await, "t");
    assert_eq!(
        play.show("select done from once.sweep_dedupe_reap()").await,
        "0"
    );
    other.show("commit").await;
    assert_eq!(
        play.show("select done from once.sweep_dedupe_reap()").await,
        "0"
    );
    assert_eq!(play.show(emit).await, "f");
}
