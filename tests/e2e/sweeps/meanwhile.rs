//! A key that has expired is claimed anew, finished and expires again between a sweep's look and its lock.
//!
//! The sweep waits in between for an index that is to be moved: it has its snapshot by then, and no row yet.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::{LARGE, SMALL, counts, finish};

/// What the sweep says while that happens to one of two keys, and what is there then.
async fn claimed_meanwhile(task: &str, max: u32) -> (Playground, String) {
    let play = Playground::open().await;
    let (holder, sweeper) = (play.another().await, play.another().await);
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    play.clock("0").await;
    let answer = match task {
        "key_reap" => SMALL,
        _ => LARGE,
    };
    finish(&play, "k", 2, "'1 h'", answer).await;
    holder.clock("2 h").await;
    sweeper.clock("1 day").await;
    sweeper.show("set once.sweep_lock_timeout = '30s'").await;
    holder
        .show("begin; alter index once.key_reap set tablespace pg_default")
        .await;
    let call = format!("select done, failed, more from once.sweep({max}, '{task}')");
    let sweeping = Waiting::begin(&play, sweeper, &call).await;
    holder
        .show(&format!(
            "do $$ declare t bigint; begin
                select token into t from once.key_claim('s', 'k1', '2', ttl => '1 h');
                perform once.key_step('s', 'k1', t, 'late');
                perform once.key_complete('s', 'k1', t, 200, {answer});
             end $$; commit",
        ))
        .await;
    let (sweeper, answer) = sweeping.end().await;
    (sweeper, answer.unwrap())
}

/// Neither goes without the other: a step alone would answer a new request.
#[tokio::test]
async fn neither_sweep_leaves_a_step_of_a_key_that_was_claimed_anew() {
    for task in ["key_reap", "key_tombstone"] {
        let (play, swept) = claimed_meanwhile(task, 10).await;
        assert_eq!(swept, "1|0|f");
        assert_eq!(counts(&play).await, "1|1");
        let again = format!("select done, failed, more from once.sweep(10, '{task}')");
        assert_eq!(play.show(&again).await, "1|0|f");
        assert_eq!(counts(&play).await, "0|0");
    }
}

/// Whoever goes on while there is more comes to the rest.
#[tokio::test]
async fn a_full_pass_says_more_though_one_of_its_keys_was_claimed_anew() {
    for task in ["key_reap", "key_tombstone"] {
        let (_, swept) = claimed_meanwhile(task, 2).await;
        assert_eq!(swept, "1|0|t", "{task}");
    }
}
