//! once.janitor: who served, when, and as little writing as that needs.

use crate::playground::Playground;
use crate::serving::expired;
use crate::world::JOBS;

#[tokio::test]
async fn a_row_for_every_task_and_every_machine_whether_it_ran_or_not() {
    let play = Playground::open().await;
    let never =
        "select count(*), count(last_end), count(served_by), sum(done) from once.janitor_status()";
    assert_eq!(play.show(never).await, "10|0|0|0");
    play.show(JOBS).await;
    play.show("set application_name = 'cron 7'; select * from once.sweep()")
        .await;
    assert_eq!(
        play.show("select task, machine, last_end is not null, done, failed, last_error, served_by from once.janitor_status()").await,
        ["action_release", "key_abandon", "key_reap", "key_tombstone", "outbox_requeue", "inbox_reap", "dedupe_reap", "dead_reap", "history_reap", "outbox_retire"]
                .map(|task| format!("{task}|~|t|0|0|~|postgres (cron 7)"))
                .join("\n")
            .replacen("\n", "\naction_release|job|t|0|0|~|postgres (cron 7)\n", 1)
    );
}

#[tokio::test]
async fn what_found_nothing_is_noted_again_after_a_while_or_by_somebody_else() {
    let play = Playground::open().await;
    play.show(JOBS).await;
    let ends = "select string_agg(last_end::text, ' ' order by task, machine) from once.janitor";
    play.clock("0").await;
    play.show("select * from once.sweep()").await;
    let first = play.show(ends).await;
    play.clock("29 s").await;
    play.show("begin; select * from once.sweep()").await;
    play.ask("select pg_current_xact_id_if_assigned() is null")
        .is("t")
        .await;
    play.show("commit").await;
    assert_eq!(play.show(ends).await, first);
    // Somebody else did it; and the first again.
    play.show("set application_name = 'by hand'; select * from once.sweep()")
        .await;
    let second = play.show(ends).await;
    assert_ne!(second, first);
    play.clock("60 s").await;
    play.show("select * from once.sweep()").await;
    assert_ne!(play.show(ends).await, second);
    // What was done is always noted, and a shorter grace is never missed.
    play.clock("61 s").await;
    play.show("set once.janitor_grace = '4 s'; select * from once.sweep()")
        .await;
    let at = "select last_end from once.janitor where task = 'action_release' and machine = 'job'";
    assert!(play.show(at).await.contains("00:01:01") || play.show(at).await.contains("00:01:00"));
    play.clock("62 s").await;
    play.show("select * from once.sweep(); select once.machine_assert()")
        .await;
}

#[tokio::test]
async fn what_was_done_and_what_failed_adds_up() {
    let play = Playground::open().await;
    for _ in 0..2 {
        expired(&play.client, 30).await;
        play.show("call once.sweep_all(20)").await;
    }
    let seen = "select done, failed, last_end > clock_timestamp() - interval '1 min' from once.janitor_status() where task = 'key_reap'";
    assert_eq!(play.show(seen).await, "60|0|t");
}
