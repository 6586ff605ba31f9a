//! Sessions that have the extension in use while it is updated, the background worker among them: kept plans, caches
//! and prepared statements go on.

use pg_once_tests::race;

use crate::janitor;
use crate::next::{NEXT, UPDATE, old, put_scripts, update, version};

#[tokio::test]
async fn prepared_statements_of_open_sessions_go_on() {
    let play = old().await;
    play.show("select once.topic_set('t', '{}')").await;
    let why = "prepared statements are a session's";
    let client = play.another_directly("postgres", why).await.client;
    let calls = [
        "select outcome from once.key_claim('s', gen_random_uuid()::text)",
        "select emitted::text from once.outbox_emit('t', '1')",
        "select count(*)::text from once.outbox_take('t', max => 1)",
        "select accepted::text from once.inbox_accept('s', gen_random_uuid()::text)",
        "select string_agg(task || failed, ' ' order by task) from once.sweep()",
        "select once.scope_set('s', '{}')::text",
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
    update(&play).await;
    for (call, (statement, before)) in calls.iter().zip(prepared) {
        for _ in 0..3 {
            let after: String = client.query_one(&statement, &[]).await.unwrap().get(0);
            assert_eq!(after, before, "{call}");
        }
    }
}

#[tokio::test]
async fn whoever_waits_for_the_update_goes_on_with_the_schema_that_is_there_then() {
    let play = old().await;
    let (dba, caller) = (play.another().await, play.another().await);
    let set = "select once.scope_set('s', '{\"max_attempts\": 7}') ->> 'max_attempts'";
    caller.show(set).await;
    for end in ["rollback", "commit"] {
        dba.show("begin").await;
        dba.show(UPDATE).await;
        let asked = race::Session::of(&caller.client).await.unwrap();
        let watch = async {
            race::wait_until_waiting(&play.client, asked).await.unwrap();
            dba.show(end).await;
        };
        let (answer, ()) = tokio::join!(caller.show(set), watch);
        assert_eq!(answer, "7", "{end}");
    }
    assert_eq!(version(&play).await, NEXT);
}

#[tokio::test]
async fn the_background_worker_goes_on_over_the_update() {
    put_scripts();
    let cluster = janitor::launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    janitor::show(&client, janitor::JOBS).await;
    for update in [UPDATE, "select 1"] {
        janitor::claim(&client, 1, 100, "1 us").await;
        janitor::until(&client, "select distinct status from job", "ready").await;
        janitor::show(&client, update).await;
        janitor::until_swept(&client).await;
    }
    let failed = "select sum(failed) from once.janitor_status()";
    assert_eq!(janitor::show(&client, failed).await, "0");
}
