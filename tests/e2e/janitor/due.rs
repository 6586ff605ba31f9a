//! `janitor_status()`: what is due, changing nothing, for the same cost however much that is.

use crate::playground::Playground;
use crate::serving::expired;
use crate::world::JOBS;

async fn due(play: &Playground) -> String {
    play.show("select string_agg(due::text, ' ') from once.janitor_status() where machine is null")
        .await
}

#[tokio::test]
async fn each_task_shows_what_it_would_do_and_since_when() {
    let play = Playground::open().await;
    play.show(JOBS).await;
    play.show(
        "select once.topic_set('t', '{}'); select once.topic_set('u', '{}');
         select once.outbox_emit('t', '1', dedupe_key => g::text) from generate_series(1, 7) as g;
         select * from once.outbox_take('t', max => 3, lease => '1 min');
         select accepted from generate_series(1, 4) as g, lateral once.inbox_accept('s', g::text, '1 min')",
    )
    .await;
    play.show("select count(*) from generate_series(1, 5) as g, lateral once.action_claim('job', g::text, 'run', lease => '1 min')").await;
    play.show("select once.key_complete('s', g::text, token, 200, to_json(repeat('x', 450 * (g % 3)))) from generate_series(1, 6) as g, lateral once.key_claim('s', g::text, ttl => '1 min')").await;
    assert_eq!(due(&play).await, "0 0 0 0 0 0 0 0 0 0");
    let before = play.stored().await;
    let at = |later: &str| {
        format!(
            "select set_config('once.fake_now', (clock_timestamp() + interval '{later}')::text, false)"
        )
    };
    play.show(&at("2 min")).await;
    assert_eq!(due(&play).await, "5 0 0 2 3 4 0 0 0 0");
    play.show(&at("2 days")).await;
    assert_eq!(due(&play).await, "5 0 4 2 3 4 7 0 0 0");
    // A key is to be deleted from the end of gone_for on, a day after its ttl.
    let ages = "select string_agg(coalesce((oldest > interval '1 day' and oldest < interval '2 days')::text, '~'), ' ')
                  from once.janitor_status() where machine is null";
    assert_eq!(
        play.show(ages).await,
        "true ~ false true true true true ~ ~ ~"
    );
    play.show("begin read only").await;
    assert_eq!(due(&play).await, "5 0 4 2 3 4 7 0 0 0");
    play.show("commit; set default_transaction_isolation = 'serializable'")
        .await;
    assert_eq!(due(&play).await, "5 0 4 2 3 4 7 0 0 0");
    assert_eq!(play.stored().await, before);
    play.show("set default_transaction_isolation = 'read committed'; select * from once.sweep()")
        .await;
    play.ask("select string_agg(due::text, ' ') from once.janitor_status() where task <> 'outbox_retire' and machine is null")
        .is("0 0 0 0 0 0 0 0 0")
        .await;
}

/// Each machine has a row of its own; a table that somebody has locked hides its own tasks alone.
#[tokio::test]
async fn what_is_due_is_told_for_each_machine_and_beside_a_locked_table() {
    let play = Playground::open().await;
    play.show(JOBS).await;
    play.show("select once.action_claim('job', '1', 'run', lease => '1 us')")
        .await;
    let holder = play.another().await;
    holder.show("begin; lock table once.inbox").await;
    let told = "select string_agg(format('%s %s', coalesce(machine, task), due), ', ') from once.janitor_status()
                 where task in ('action_release', 'inbox_reap')";
    play.ask(told)
        .is("action_release 1, job 1, inbox_reap ")
        .await;
}

#[tokio::test]
async fn its_cost_does_not_grow_with_what_is_due() {
    let play = Playground::open().await;
    expired(&play.client, 200_000).await;
    play.show("vacuum analyze once.key").await;
    play.show("select * from once.janitor_status()").await;
    assert_eq!(due(&play).await, "0 0 10000 0 0 0 0 0 0 0");
    let read = "select sum(idx_tup_read)::int from pg_stat_user_indexes where relname = 'key' and schemaname = 'once'";
    play.show("select pg_stat_force_next_flush()").await;
    let before: i64 = play.show(read).await.parse().unwrap();
    due(&play).await;
    play.show("select pg_stat_force_next_flush()").await;
    let after: i64 = play.show(read).await.parse().unwrap();
    assert!(after - before <= 40_000, "{} index entries", after - before);
}
