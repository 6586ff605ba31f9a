//! pg_dump of a database whose extension tables are large, while clients write to them: the dump is one moment of
//! a running system, and what it holds goes on to its end where it is restored.
//!
//! 100,000 rows; ten million with PG_ONCE_LONG=1.

use pg_once_tests::{Cluster, is_long};

use crate::DATABASE;
use crate::load::Load;

/// Finished keys as one that was claimed and completed, but for name and id; FIRST and LAST are their numbers.
const KEYS: &str = r"
select format('insert into once.key (%s) select %s from generate_series(FIRST, LAST) as i, once.key as t where t.key = ''template''',
              string_agg(quote_ident(attname), ', '),
              string_agg(case attname when 'key' then '''bulk '' || i'
                                      when 'id' then $$encode(substr(sha256(t.scope::bytea || '\x00'::bytea || ('bulk ' || i)::bytea), 1, 16), 'hex')::uuid$$
                                      else 't.' || quote_ident(attname) end, ', '))
  from (select attname from pg_attribute
         where attrelid = 'once.key'::regclass and attnum > 0 and not attisdropped order by attnum) as a";

const TEMPLATE: &str = "
select once.key_complete('bulk', 'template', c.token, 201, '{\"made\":  1}')
  from once.key_claim('bulk', 'template', '{}') as c";

/// Rows by table, for what the load does not touch.
const ROWS: &str = "
select (select count(*) from once.key where scope = 'bulk'),
       (select count(*) from once.inbox where scope = 'bulk'),
       (select count(*) from (select topic_id from once.event_0 union all select topic_id from once.event_1 union all
                              select topic_id from once.event_2 union all select topic_id from once.event_3 union all
                              select topic_id from once.event_kept) as e
         where topic_id = (select topic_id from once.topic where topic = 'bulk'))";

const EVENTS: &str = "
select count(once.outbox_emit('bulk', '{\"n\": 1}', 'k' || i % 100)) from generate_series(FIRST, LAST) as i";

const MESSAGES: &str =
    "select count(once.inbox_accept('bulk', i::text)) from generate_series(FIRST, LAST) as i";

/// So many rows, in parts that a debug build does within a statement's patience.
async fn fill_by(load: &Load, sql: &str, rows: u64, part: usize) {
    let session = load.door.enter().await;
    for first in (1..=rows).step_by(part) {
        let last = rows.min(first + part as u64 - 1);
        let sql = sql
            .replace("FIRST", &first.to_string())
            .replace("LAST", &last.to_string());
        session.rows(&sql).await.unwrap();
    }
}

/// Three clients at once: each table costs the server most of a core for a while.
async fn fill(load: &Load, rows: u64) {
    let session = load.door.enter().await;
    session.rows(TEMPLATE).await.unwrap();
    let keys = session.text(KEYS).await.unwrap();
    session
        .rows("select once.topic_set('bulk', '{}')")
        .await
        .unwrap();
    tokio::join!(
        fill_by(load, &keys, rows * 8 / 10, 200_000),
        fill_by(load, EVENTS, rows / 10, 50_000),
        fill_by(load, MESSAGES, rows / 10, 50_000)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_dump_under_load_goes_on_where_it_was() {
    let rows = if is_long() { 10_000_000 } else { 100_000 };
    let old = Cluster::launch().unwrap();
    old.create_database_with_extension(DATABASE).await.unwrap();
    let load = Load::prepare(old.front_url(DATABASE).unwrap()).await;
    fill(&load, rows).await;
    let running = load.start();
    running.goes_on_for(500).await;

    let acknowledged = load.answers.all();
    let before = load.door.answered();
    tokio::task::block_in_place(|| {
        old.run("pg_dump", &["-Fd", "-j", "2", "-f", "dump", "-d", DATABASE])
    })
    .unwrap();
    let during = load.door.answered() - before;
    assert!(during > 0, "nobody wrote while the dump was taken");
    running.goes_on_for(100).await;
    let expected = load.door.enter().await.row(ROWS).await.unwrap();
    running.end().await;

    let new = Cluster::launch().unwrap();
    old.hand_over("dump", &new).unwrap();
    drop(old);
    new.psql("postgres", "create database shop").unwrap();
    new.run(
        "pg_restore",
        &["--exit-on-error", "-j", "2", "-d", DATABASE, "dump"],
    )
    .unwrap();
    // The bank, the receivers and the store are those of before, and have seen what the dump has not.
    let load = load.beside(new.front_url(DATABASE).unwrap());
    let session = load.door.enter().await;
    assert_eq!(session.row(ROWS).await.unwrap(), expected);
    let replay =
        "select outcome || ' ' || response_body::text from once.key_claim('bulk', 'bulk 77', '{}')";
    assert_eq!(
        session.text(replay).await.unwrap(),
        "replayed {\"made\":  1}"
    );
    let mut running = load.carry_on();
    running.settle().await;
    let load = running.end().await;
    load.assert_invariants().await;
    load.assert_answered(&acknowledged).await;
    println!("{rows} rows, {during} statements while the dump was taken");
}
