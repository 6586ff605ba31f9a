//! The guard: whoever writes by hand meets the machine's declaration, and the API's own writes pass.
//!
//! One binary and one cluster for all tests, a database of its own for each. Every statement here is run
//! by a superuser who owns the tables: the guard is no question of rights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod by_hand;
mod columns;
mod conditions;
mod items;
mod life;
mod locks;
mod stale;
mod statements;
mod triggers;
mod waits;

use pg_once_tests::{machine as world, playground, waiting};
use playground::{Playground, Refusal};
use world::{jobs, token};

/// The machine of `world` with its guard on.
async fn guarded() -> Playground {
    let play = world::world().await;
    play.show("select once.machine_guard('job', true)").await;
    play
}

/// Jobs 1 new, 2 ready, 3 running, 4 done, 5 archived, 6 flagged and ready, 7 cancelled, 8 flagged and
/// running; the token of 3. Items 61 and 62 of job 6 are undecided, 71 of job 7 is marked.
async fn with_jobs(play: &Playground) -> i64 {
    jobs(play, 1, 1, "new").await;
    jobs(play, 2, 3, "ready").await;
    jobs(play, 4, 4, "done").await;
    jobs(play, 5, 5, "archived").await;
    jobs(play, 6, 8, "ready").await;
    play.show(
        "insert into item (id, job_id, state, points) values (61, 6, 'succeeded', 5), (62, 6, 'failed', 7),
            (71, 7, 'succeeded', 3)",
    )
    .await;
    let held = token(play, 3, "run", ", lease => '1 h', holder => 'h'").await;
    token(play, 8, "run", ", lease => '1 h'").await;
    play.show("select once.cancel_request('job', id::text) from job where id in (6, 7, 8)")
        .await;
    play.show(
        "select once.cancel_refund('job', '7'); select once.cancel_confirm('job', '7', 1);
         select once.cancel_finish('job', '7')",
    )
    .await;
    held
}

/// The refusal of a statement by the guard, which says what to do about it.
async fn illegal(play: &Playground, sql: &str) -> Refusal {
    let refusal = play.refused(sql).await;
    refusal.tells("ON002", &["job"], sql);
    refusal
}

/// Everything in the tables.
async fn rows(play: &Playground) -> String {
    play.show(
        "select (select string_agg(job::text, ';' order by id) from job),
                (select string_agg(item::text, ';' order by id) from item), (select wallet::text from wallet)",
    )
    .await
}
