//! Sessions that have the extension in use while it is updated: kept plans, caches and prepared statements go on,
//! nobody fails, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pg_once_tests::race;
use tokio_postgres::Client;

use crate::released::{UPDATE, old, version};

/// Why some of them go past a pooler.
const PREPARED: &str = "prepared statements are a session's";

#[tokio::test]
async fn prepared_statements_of_open_sessions_go_on() {
    let play = old().await;
    play.show("select once.topic_set('t', '{}')").await;
    let client = play.another_directly("postgres", PREPARED).await.client;
    let calls = [
        "select outcome from once.key_claim('s', gen_random_uuid()::text)",
        "select emitted::text from once.outbox_emit('t', '1')",
        "select count(*)::text from once.outbox_take('t', max => 1)",
        "select accepted::text from once.inbox_accept('s', gen_random_uuid()::text)",
        "select string_agg(task || failed, ' ' order by task) from once.sweep()",
        "select (select distinct once.scope_get('s'))::text",
        "select count(*)::text from once.machine_check()",
    ];
    let mut prepared = Vec::new();
    for call in calls {
        let statement = client.prepare(call).await.unwrap();
        // Generic plans come after the fifth.
        let mut answer = String::new();
        for _ in 0..7 {
            answer = client.query_one(&statement, &[]).await.unwrap().get(0);
        }
        prepared.push((statement, answer));
    }
    play.another().await.show(UPDATE).await;
    for (call, (statement, before)) in calls.iter().zip(prepared) {
        for _ in 0..3 {
            let after: String = client.query_one(&statement, &[]).await.unwrap().get(0);
            assert_eq!(after, before, "{call}");
        }
    }
}

/// Claims and completes, or emits, takes and acks, until it is told to stop; how often it did, and how many
/// events it acked.
async fn worker(n: u32, client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> (u64, i64) {
    let prepare = async |sql| client.prepare(sql).await.unwrap();
    let claim = prepare("select token from once.key_claim('s', $1)").await;
    let complete = prepare("select once.key_complete('s', $1, $2, 200)").await;
    let emit = prepare("select event_id from once.outbox_emit('t', '1', $1)").await;
    let take = prepare("select token from once.outbox_take('t')").await;
    let ack = prepare("select acked::bigint from once.outbox_ack('t', 'default', $1)").await;
    let (mut did, mut acked) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let name = format!("{n}-{did}");
        if n.is_multiple_of(2) {
            let token: i64 = client.query_one(&claim, &[&name]).await.unwrap().get(0);
            client.query_one(&complete, &[&name, &token]).await.unwrap();
        } else {
            client.query_one(&emit, &[&name]).await.unwrap();
            let taken = client.query(&take, &[]).await.unwrap();
            if let Some(row) = taken.first() {
                let token: i64 = row.get(0);
                acked += client
                    .query_one(&ack, &[&token])
                    .await
                    .unwrap()
                    .get::<_, i64>(0);
            }
        }
        did += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    (did, acked)
}

#[tokio::test]
async fn eight_sessions_at_work_notice_nothing_of_the_update() {
    let play = old().await;
    play.show("select once.topic_set('t', '{}')").await;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut workers = Vec::new();
    for n in 0..8 {
        let client = play.another_directly("postgres", PREPARED).await.client;
        workers.push(tokio::spawn(worker(
            n,
            client,
            Arc::clone(&stop),
            Arc::clone(&done),
        )));
    }
    // And somebody sweeps all the time, which writes the table that the update alters.
    let (sweeper, ended) = (play.another().await, Arc::clone(&stop));
    let sweeps = tokio::spawn(async move {
        while !ended.load(Ordering::Relaxed) {
            assert_eq!(
                sweeper
                    .show("select sum(failed) from once.sweep(100)")
                    .await,
                "0"
            );
        }
    });
    let progress = async |more: u64| {
        let from = done.load(Ordering::Relaxed);
        race::poll_async("the workers to go on", async || {
            Ok((done.load(Ordering::Relaxed) >= from + more).then_some(()))
        })
        .await
        .unwrap();
    };
    progress(200).await;
    let dba = play.another().await;
    dba.show("begin").await;
    dba.show(UPDATE).await;
    // Whoever needs what the update has locked waits; the others go on.
    progress(20).await;
    dba.show("commit").await;
    progress(200).await;
    stop.store(true, Ordering::Relaxed);
    let (mut claims, mut emits, mut acked) = (0, 0, 0);
    for (n, worker) in workers.into_iter().enumerate() {
        let (did, its_acked) = worker.await.unwrap();
        assert!(did > 0, "worker {n}");
        *(if n % 2 == 0 { &mut claims } else { &mut emits }) += did;
        acked += its_acked;
    }
    sweeps.await.unwrap();
    assert_eq!(version(&play).await, env!("CARGO_PKG_VERSION"));
    let finished = play
        .show("select count(*) from once.key where status = 'c'")
        .await;
    assert_eq!(finished, claims.to_string());
    // Every event was delivered once, or is still there.
    let mut rest = 0;
    loop {
        let taken = play
            .show("select token from once.outbox_take('t', max => 1000)")
            .await;
        let Some(token) = taken.lines().next() else {
            break;
        };
        rest += taken.lines().count();
        play.show(&format!("select once.outbox_ack('t', 'default', {token})"))
            .await;
    }
    assert_eq!(
        u64::try_from(acked).unwrap() + u64::try_from(rest).unwrap(),
        emits
    );
}

#[tokio::test]
async fn an_update_that_has_to_wait_too_long_gives_up_and_leaves_everything_as_it_was() {
    let play = old().await;
    let sweeper = play.another().await;
    sweeper.show("begin; select * from once.sweep()").await;
    let dba = play.another().await;
    dba.show("set lock_timeout = '100 ms'").await;
    assert_eq!(dba.code(UPDATE).await, "55P03");
    assert_eq!(version(&play).await, "0.1.0");
    sweeper.show("select * from once.sweep(); commit").await;
    dba.show(UPDATE).await;
    assert_eq!(version(&play).await, env!("CARGO_PKG_VERSION"));
    sweeper.show("select * from once.sweep()").await;
}

/// As a VACUUM of each table would: the update changes no statistics of these, and comments lock nothing.
#[tokio::test]
async fn an_update_waits_for_no_vacuum() {
    const VACUUMED: &str = "
        begin; lock table once.key, once.key_step, once.scope, once.machine, once.action_lease, once.cancel, once.refund,
            once.topic, once.subscriber, once.segment, once.event_0, once.event_1, once.event_2, once.event_3,
            once.event_kept, once.retry, once.dead, once.delivery, once.dedupe, once.inbox, once.key_bookmark
            in share update exclusive mode";
    let play = old().await;
    let vacuum = play.another().await;
    vacuum.show(VACUUMED).await;
    let dba = play.another().await;
    dba.show("set lock_timeout = '1 s'").await;
    dba.show(UPDATE).await;
    assert_eq!(version(&play).await, env!("CARGO_PKG_VERSION"));
    vacuum.show("rollback").await;
}

#[tokio::test]
async fn whoever_waits_for_the_update_goes_on_with_the_new_schema() {
    let play = old().await;
    let dba = play.another().await;
    let sweeper = play.another().await;
    sweeper.show("select * from once.sweep()").await;
    for end in ["rollback", "commit"] {
        dba.show("begin").await;
        dba.show(UPDATE).await;
        let asked = race::Session::of(&sweeper.client).await.unwrap();
        let sweep = sweeper.show("select sum(failed) from once.sweep()");
        let watch = async {
            race::wait_until_waiting(&play.client, asked).await.unwrap();
            dba.show(end).await;
        };
        let (failed, ()) = tokio::join!(sweep, watch);
        assert_eq!(failed, "0", "{end}");
    }
    assert_eq!(version(&play).await, env!("CARGO_PKG_VERSION"));
}

/// There is no place for it in the schema of 0.1.0: a session remembers it.
#[tokio::test]
async fn a_pass_over_rows_that_fail_goes_on_where_it_ended_with_the_old_schema() {
    let play = old().await;
    let session = play
        .another_directly("postgres", "what a session remembers")
        .await;
    session
        .show(
            "insert into once.inbox (expires_at, status, id, scope, name)
             select timestamptz '2020-01-01' + g * interval '1 s', 'm', gen_random_uuid(), 's', g
               from generate_series(1, 601) as g;
             create function refuse() returns trigger language plpgsql as $$ begin
                if old.name <> '601' then raise 'refused'; end if; return old; end $$;
             create trigger refuse before delete on once.inbox for each row execute function refuse()",
        )
        .await;
    let left = "select count(*) from once.inbox";
    let gone = race::poll_async("the row behind those that fail", async || {
        session.show("select once.sweep_inbox_reap()").await;
        Ok((session.show(left).await == "600").then_some(()))
    });
    gone.await.unwrap();
}
