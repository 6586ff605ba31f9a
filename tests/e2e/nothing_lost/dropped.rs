//! DROP EXTENSION: it refuses while a guard stands on a table of the user, naming it; CASCADE takes the guards off
//! and leaves the tables and their data; CREATE EXTENSION begins anew.

use pg_once_tests::Cluster;

use crate::content::stored;
use crate::with_everything;

const OURS: &str = "
select (select string_agg(j::text, ' ' order by j.id) from batch_job as j),
       (select string_agg(i::text, ' ' order by i.id) from batch_item as i),
       (select string_agg(w::text, ' ' order by w.customer) from wallet as w)";

/// Whatever of the database depends on something of ours, or is in its schema.
const LEFT: &str = "
select (select count(*) from pg_namespace where nspname = 'once'),
       (select count(*) from pg_trigger where not tgisinternal),
       (select count(*) from pg_event_trigger),
       (select count(*) from pg_proc where probin like '%pg_once%')";

#[tokio::test]
async fn it_refuses_while_guards_stand_and_cascade_leaves_tables_and_data() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    let (before, ours) = (stored(&play).await, play.show(OURS).await);

    let refused = play.refused("drop extension pg_once").await;
    assert_eq!(refused.code, "2BP01", "{refused:?}");
    for table in ["batch_job", "batch_item"] {
        assert!(
            refused.detail.contains(&format!("on table {table}")),
            "{refused:?}"
        );
    }
    assert!(refused.hint.contains("CASCADE"), "{refused:?}");
    assert_eq!(stored(&play).await, before, "the refusal changed nothing");
    play.ask("update batch_job set status = 'running' where id = 1")
        .fails("ON002")
        .await;

    // A session that knows everything, and one in the middle of a transaction, which is waited for.
    let other = crate::on(&cluster, crate::DATABASE, "worker").await;
    other.show("begin").await;
    other.show("select once.key_claim('s', 'open', '{}')").await;
    let dropping = play.show("drop extension pg_once cascade");
    let (_, ()) = tokio::join!(dropping, async {
        let watcher = crate::on(&cluster, crate::DATABASE, "").await;
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'drop extension%'";
        pg_once_tests::race::poll_async("the drop to wait", async || {
            Ok((watcher.show(waits).await == "1").then_some(()))
        })
        .await
        .unwrap();
        other.show("commit").await;
    });
    assert_eq!(play.show(OURS).await, ours, "the user's rows");
    assert_eq!(play.show(LEFT).await, "0|0|0|0");
    // Writes go on, whatever the machine said of them.
    play.show("update batch_job set status = 'running' where id = 1; update batch_item set settled = null")
        .await;
    play.show("insert into batch_item (job_id, input, points, artifact) values (8, 'x', 1, 'x')")
        .await;
    assert_eq!(
        other.code("select once.key_claim('s', 'k', '{}')").await,
        "3F000"
    );

    play.show("create extension pg_once").await;
    let empty = "select (select count(*) from once.key), (select count(*) from once.machine), (select count(*) from once.event_0)";
    assert_eq!(play.show(empty).await, "0|0|0");
    // The same session goes on with the new one.
    assert_eq!(play.claim("k", "").await, "claimed");
    play.show("select once.topic_set('t', '{}'); select once.outbox_emit('t', '1')")
        .await;
    play.ask("select payload from once.outbox_take('t')")
        .is("1")
        .await;
    let machine = include_str!("../../../sql/examples/batch_job.json");
    play.show(&format!(
        "select once.machine_define($m${machine}$m$); select once.machine_guard('batch_job', true)"
    ))
    .await;
    play.ask("update batch_job set status = 'done' where id = 4")
        .fails("ON002")
        .await;
    assert_eq!(
        other.code("select once.key_claim('s', 'k', '{}')").await,
        "42501",
        "no grant outlives it"
    );
}

#[tokio::test]
async fn without_a_guard_nothing_of_the_user_stands_in_its_way() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    let ours = play.show(OURS).await;
    play.show("select once.machine_guard('batch_job', false)")
        .await;
    play.show("drop extension pg_once").await;
    assert_eq!(play.show(OURS).await, ours);
    assert_eq!(play.show(LEFT).await, "0|0|0|0");
}

#[tokio::test]
async fn a_definition_alone_does_not_keep_a_table_from_being_dropped() {
    let cluster = Cluster::launch().unwrap();
    let (play, _) = with_everything(&cluster).await;
    play.show("drop table batch_item, batch_job, wallet").await;
    let problems =
        "select count(*) > 0 from once.machine_check() where problem not like 'claim states%'";
    assert_eq!(play.show(problems).await, "t");
    play.show("drop extension pg_once").await;
    assert_eq!(play.show(LEFT).await, "0|0|0|0");
}
