//! key_tombstone and key_reap: bounded, in the order of time, never an unfinished key, from anywhere.
//!
//! Time is pretended with `once.fake_now`; what a claim answers never depends on whether they have run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abandon;
mod answers;
mod bounds;
mod meanwhile;
mod unfinished;

use pg_once_tests::{history, playground, waiting};
use playground::Playground;

/// An answer that key_tombstone empties.
const LARGE: &str = "to_json(repeat('x', 900))";
/// One that stays until key_reap deletes its row.
const SMALL: &str = r#"'"ok"'"#;

/// Finishes so many keys named `prefix1`, `prefix2`, ... with one step each, and with this answer.
async fn finish(play: &Playground, prefix: &str, count: usize, ttl: &str, answer: &str) {
    let sql = format!(
        "do $$ declare t bigint; begin
            for i in 1 .. {count} loop
                select token into t from once.key_claim('s', '{prefix}' || i, '1', ttl => {ttl});
                perform once.key_step('s', '{prefix}' || i, t, 'pay');
                perform once.key_complete('s', '{prefix}' || i, t, 200, {answer});
            end loop;
         end $$"
    );
    play.show(&sql).await;
}

async fn tombstone(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select done, failed, more from once.sweep({max}, 'key_tombstone')"
    ))
    .await
}

async fn reap(play: &Playground, max: u32) -> String {
    play.show(&format!(
        "select done, failed, more from once.sweep({max}, 'key_reap')"
    ))
    .await
}

async fn counts(play: &Playground) -> String {
    play.show("select (select count(*) from once.key), (select count(*) from once.key_step)")
        .await
}

/// Sweeps until nothing is left to do, and says how much was done; fails if it does not end.
async fn drain(play: &Playground, max: u32) -> u64 {
    let mut done = 0;
    for _ in 0..1000 {
        let shown = play
            .show(&format!(
                "select sum(done) filter (where task <> 'key_abandon'), bool_or(more) from once.sweep({max})"
            ))
            .await;
        let (now, more) = shown.split_once('|').unwrap();
        done += now.parse::<u64>().unwrap();
        if more == "f" && now == "0" {
            return done;
        }
    }
    panic!("the sweep does not end");
}
