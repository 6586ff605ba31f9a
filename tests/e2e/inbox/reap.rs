//! The sweep task inbox_reap: bounded, in the order of time, beside whoever is at a message.

use crate::playground::Playground;
use crate::{accept, barrier};

async fn reap(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select task, done, failed, more from once.sweep({max}, 'inbox_reap')"
    ))
    .await
}

#[tokio::test]
async fn what_is_past_its_ttl_goes_in_bounded_passes_and_nothing_else() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.show("select once.inbox_accept('s', 'm' || g, g * interval '1 minute') from generate_series(1, 10) g")
        .await;
    play.show(&barrier("x", "action")).await;
    assert_eq!(reap(&play, 100).await, "inbox_reap|0|0|f");
    play.clock("5 minutes").await;
    assert_eq!(reap(&play, 3).await, "inbox_reap|3|0|t");
    play.ask("select string_agg(name, ' ' order by expires_at) from once.inbox")
        .is("m4 m5 m6 m7 m8 m9 m10 g")
        .await;
    assert_eq!(reap(&play, 3).await, "inbox_reap|2|0|f");
    assert_eq!(play.show(&accept("m6")).await, "f|~");
    play.clock("30 days").await;
    play.ask("select done from once.sweep() where task = 'inbox_reap'")
        .is("6")
        .await;
    assert_eq!(play.show("select count(*) from once.inbox").await, "0");
}

#[tokio::test]
async fn a_message_that_somebody_accepts_anew_is_passed_over() {
    let play = Playground::open().await;
    let other = play.another().await;
    play.show("select once.inbox_accept('s', 'm', '1 microsecond'), once.inbox_accept('s', 'n', '1 microsecond')")
        .await;
    other.show("begin").await;
    assert_eq!(other.show(&accept("m")).await, "t|~");
    assert_eq!(reap(&play, 100).await, "inbox_reap|1|0|f");
    other.show("commit").await;
    assert_eq!(play.show(&accept("m")).await, "f|~");
    assert_eq!(reap(&play, 100).await, "inbox_reap|0|0|f");
}

#[tokio::test]
async fn an_accept_that_meets_a_sweep_waits_for_it_and_accepts() {
    let play = Playground::open().await;
    play.show("select once.inbox_accept('s', 'm', '1 microsecond')")
        .await;
    for end in ["rollback", "commit"] {
        let other = play.another().await;
        play.show("begin").await;
        assert_eq!(reap(&play, 100).await, "inbox_reap|1|0|f");
        let waiting = crate::waiting::Waiting::begin(
            &play,
            other,
            "select accepted from once.inbox_accept('s', 'm', '1 microsecond')",
        )
        .await;
        play.show(end).await;
        assert_eq!(waiting.end().await.1.unwrap(), "t", "{end}");
    }
    assert_eq!(play.show("select count(*) from once.inbox").await, "1");
}
