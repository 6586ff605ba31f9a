//! What an answer costs: everything but a fresh claim leaves no trace, and a completion is a HOT update.
//!
//! The clusters here are quiet ones of their own: the write-ahead log's position tells of everybody.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pg_once_tests::{Builder, Cluster, Lsn, playground};
use playground::Playground;

async fn quiet(builder: Builder) -> (Cluster, Playground) {
    let cluster = builder
        .setting("autovacuum", "off")
        .setting("checkpoint_timeout", "1h")
        .launch()
        .unwrap();
    cluster
        .create_database_with_extension("quiet")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "quiet").await;
    (cluster, play)
}

/// One key in every state; the calls that find an answer there, and how it begins.
async fn answers(play: &Playground) -> Vec<(String, &'static str)> {
    let body = "'{\"amount\": 100}'";
    let request = format!(", {body}");
    let finish = async |key: &str, token: i64| {
        let sql = format!(
            "select once.key_complete('s', '{key}', {token}, 201, '{{\"id\":  7}}', '{{\"A\": 1}}')"
        );
        play.show(&sql).await;
        sql
    };
    let done = play.token("done", &request).await;
    play.show(&format!("select once.key_step('s', 'done', {done}, 'pay')"))
        .await;
    let completion = finish("done", done).await.replace("select", "perform");
    let gone = play
        .token("gone", &format!("{request}, ttl => '1 microsecond'"))
        .await;
    finish("gone", gone).await;
    let swept = play
        .token("swept", &format!("{request}, ttl => '1 microsecond'"))
        .await;
    finish("swept", swept).await;
    play.show("select once.sweep(task => 'key_tombstone')")
        .await;
    let parked = play.token("parked", &request).await;
    let park = format!("select once.key_park('s', 'parked', {parked}, 'unknown')");
    play.show(&park).await;
    let later = play.token("later", &request).await;
    let release = format!("select once.key_release('s', 'later', {later}, 'no', '1 h')");
    play.show(&release).await;
    play.token("held", &format!("{request}, holder => 'me'"))
        .await;
    play.show("select once.key_claim('s', 'raw', fingerprint => sha256('x'))")
        .await;
    let claim = |key: &str| format!("select outcome from once.key_claim('s', '{key}', {body})");
    vec![
        (claim("done"), "replayed"),
        (
            "select outcome from once.key_claim('s', 'done', '2')".to_owned(),
            "mismatched",
        ),
        (
            "select outcome from once.key_claim('s', 'done')".to_owned(),
            "mismatched",
        ),
        (claim("gone"), "gone"),
        (claim("swept"), "gone"),
        (claim("parked"), "parked"),
        (claim("later"), "in_progress"),
        (claim("held"), "in_progress"),
        (
            format!("select outcome from once.key_claim('s', 'held', {body}, holder => 'me')"),
            "claimed",
        ),
        (
            "select outcome from once.key_claim('s', 'raw', fingerprint => sha256('x'))".to_owned(),
            "in_progress",
        ),
        (
            "select outcome from once.key_claim('s', 'raw', fingerprint => sha256('y'))".to_owned(),
            "mismatched",
        ),
        (
            "select status from once.key_get('s', 'done')".to_owned(),
            "finished",
        ),
        (
            "select once.key_derive('s', 'done', 'pay')".to_owned(),
            "once-",
        ),
        ("select once.scope_get('s')".to_owned(), "{"),
        // Calls whose answer was lost, repeated.
        (
            format!(
                "do $do$ begin {completion}; exception when sqlstate 'ON006' then null; end $do$"
            ),
            "",
        ),
        (park, ""),
        (release, ""),
    ]
}

const ROWS: &str = "
    select string_agg(concat_ws(',', key, ctid, xmin, xmax), ' ' order by key) from once.key";

const STRONG_LOCKS: &str = "
    select string_agg(concat_ws(' ', locktype, mode, relation::regclass), ', ')
      from pg_locks where pid = pg_backend_pid() and mode <> 'AccessShareLock'
       and locktype <> 'virtualxid'";

async fn leaves_no_trace(play: &Playground) {
    let answers = answers(play).await;
    for level in ["read committed", "repeatable read", "serializable"] {
        let before = play.show(ROWS).await;
        for (sql, begins) in &answers {
            play.show(&format!("begin isolation level {level}")).await;
            let answer = play.show(sql).await;
            assert!(answer.starts_with(begins), "{sql}: {answer}");
            let xid = play
                .show("select pg_current_xact_id_if_assigned() is null")
                .await;
            assert_eq!(xid, "t", "{sql} has a transaction id");
            let locks = play.show(STRONG_LOCKS).await;
            let locks = locks
                .replace("relation SIReadLock", "")
                .replace("page SIReadLock", "");
            let locks = locks.replace("tuple SIReadLock", "");
            assert!(
                !locks.contains("Exclusive") && !locks.contains("Share"),
                "{sql}: {locks}"
            );
            play.show("commit").await;
        }
        assert_eq!(
            play.show(ROWS).await,
            before,
            "a row was locked or rewritten"
        );
    }
    for (sql, _) in &answers {
        // The first read after a write may set hint bits; somebody in the background may write.
        let mut written = u64::MAX;
        for _ in 0..5 {
            play.show(sql).await;
            let before = Lsn::inserted(&play.client).await.unwrap();
            play.show(sql).await;
            written = Lsn::inserted(&play.client)
                .await
                .unwrap()
                .bytes_since(before);
            if written == 0 {
                break;
            }
        }
        assert_eq!(written, 0, "{sql} writes to the log");
    }
}

#[tokio::test]
async fn an_answer_leaves_no_transaction_id_no_lock_and_no_log_record() {
    let (_cluster, play) = quiet(Cluster::builder()).await;
    leaves_no_trace(&play).await;
}

#[tokio::test]
async fn the_same_with_data_checksums_and_logged_hints() {
    let builder = Cluster::builder()
        .initdb("--data-checksums")
        .setting("wal_log_hints", "on");
    let (_cluster, play) = quiet(builder).await;
    leaves_no_trace(&play).await;
}

#[tokio::test]
async fn a_failed_claim_of_a_bad_argument_leaves_no_transaction_id() {
    let (_cluster, play) = quiet(Cluster::builder()).await;
    for call in [
        "key_claim('', 'k')",
        "key_claim('s', 'k', lease => '0')",
        "key_claim('s', 'k', fingerprint => 'x')",
    ] {
        play.show("begin; savepoint a").await;
        assert_eq!(play.code(&format!("select once.{call}")).await, "22023");
        play.show("rollback to a").await;
        play.ask("select pg_current_xact_id_if_assigned() is null")
            .is("t")
            .await;
        play.show("commit").await;
    }
}

/// Updates of the keys' table and the heap-only ones among them, since the last reset.
async fn updates(play: &Playground) -> (u32, u32) {
    play.show("select pg_stat_force_next_flush()").await;
    let counted = play
        .show("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'once.key'::regclass")
        .await;
    let (all, hot) = counted.split_once('|').unwrap();
    (all.parse().unwrap(), hot.parse().unwrap())
}

const REQUESTS: &str = "
    do $$ declare t bigint; begin
        for i in 1 .. 2000 loop
            select token into t from once.key_claim('s', 'PREFIX' || i, '{\"amount\": 100}');
            commit;
            PHASE
            perform once.key_complete('s', 'PREFIX' || i, t, 201, '{\"order\": 12345, \"state\": \"made\"}');
            commit;
        end loop;
    end $$";

async fn requests(play: &Playground, prefix: &str, phase: &str) -> (u32, u32) {
    let before = updates(play).await;
    play.show(&REQUESTS.replace("PHASE", phase).replace("PREFIX", prefix))
        .await;
    let after = updates(play).await;
    (after.0 - before.0, after.1 - before.1)
}

#[tokio::test]
async fn completions_are_heap_only_updates_with_an_old_snapshot_open_too() {
    let (cluster, play) = quiet(Cluster::builder()).await;
    let advance =
        "perform once.key_advance('s', 'PREFIX' || i, t, 'paid', '{\"charge\": 1}'); commit;";
    for (prefix, phase, writes) in [("a", "", 2000), ("b", advance, 4000)] {
        let (all, hot) = requests(&play, prefix, phase).await;
        assert_eq!(all, writes);
        assert!(hot * 10 >= all * 9, "{hot} of {all} updates are heap-only");
    }
    let reader = cluster.connect("quiet").await.unwrap();
    reader
        .batch_execute("begin isolation level repeatable read; select count(*) from once.key")
        .await
        .unwrap();
    let (all, hot) = requests(&play, "c", "").await;
    assert!(
        hot * 10 >= all * 9,
        "{hot} of {all} updates are heap-only beside an old snapshot"
    );
    reader.batch_execute("commit").await.unwrap();
}

#[tokio::test]
async fn completions_are_heap_only_updates_while_many_requests_are_under_way() {
    let (_cluster, play) = quiet(Cluster::builder()).await;
    // Eight requests at a time: claimed together, finished together.
    let sql = "
        do $$ declare t bigint[]; begin
            for i in 1 .. 250 loop
                select array_agg((once.key_claim('s', 'k' || i || '-' || g, '{\"amount\": 100}')).token order by g)
                  into t from generate_series(1, 8) as g;
                commit;
                perform once.key_complete('s', 'k' || i || '-' || g, t[g], 201, '{\"order\": 12345}')
                   from generate_series(1, 8) as g;
                commit;
            end loop;
        end $$";
    play.show(sql).await;
    let (all, hot) = updates(&play).await;
    assert_eq!(all, 2000);
    assert!(hot * 10 >= all * 9, "{hot} of {all} updates are heap-only");
}

/// Bytes that this statement writes to the log, its commit left out.
async fn logged(play: &Playground, sql: String) -> u64 {
    let explained = play.show(&format!("explain (analyze, wal) {sql}")).await;
    let (_, bytes) = explained.split_once("bytes=").expect("it writes");
    bytes.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_claim_and_its_completion_log_no_byte_more_than_insert_and_update_of_their_row() {
    let (_cluster, play) = quiet(Cluster::builder().setting("full_page_writes", "off")).await;
    play.show("create table twin (like once.key including all) with (fillfactor = 90)")
        .await;
    let columns = "select string_agg(attname, ', ') from pg_attribute
                    where attrelid = 'twin'::regclass and attnum > 0";
    let columns = play.show(columns).await;
    // Now and then a page is pruned or split besides.
    let (mut calls, mut plain) = ([u64::MAX; 2], [u64::MAX; 2]);
    for key in 0..20 {
        let row = format!("from once.key where key = '{key}'");
        let claim = format!("select once.key_claim('s', '{key}', '{{\"amount\": 100}}')");
        calls[0] = calls[0].min(logged(&play, claim).await);
        let insert = format!("insert into twin select * {row}");
        plain[0] = plain[0].min(logged(&play, insert).await);
        let token = play.show(&format!("select token {row}")).await;
        let body = "'{\"order\": 12345}', '{\"Location\": \"/orders/12345\"}'";
        let complete = format!("select once.key_complete('s', '{key}', {token}, 201, {body})");
        calls[1] = calls[1].min(logged(&play, complete).await);
        let update = format!("update twin set ({columns}) = (select * {row}) where key = '{key}'");
        plain[1] = plain[1].min(logged(&play, update).await);
    }
    let no_more = calls[0] <= plain[0] && calls[1] <= plain[1];
    assert!(no_more, "{calls:?} of the calls, {plain:?} of the others");
}

#[tokio::test]
async fn a_move_without_history_logs_no_byte_more_than_its_update() {
    let (_cluster, play) = quiet(Cluster::builder().setting("full_page_writes", "off")).await;
    for (table, history) in [("plain", "null"), ("moved", "null"), ("kept", "\"1 day\"")] {
        play.show(&format!(
            r#"create table {table} (id int primary key, status text not null) with (fillfactor = 30);
               insert into {table} select g, 'new' from generate_series(1, 20) g;
               select once.machine_define('{{"machine": "{table}", "table": "{table}", "id": "id",
                   "status": "status", "status_types": ["new", "paid", "sent"], "history": {history},
                   "transitions": [{{"from": ["new"], "to": "paid"}},
                                   {{"from": ["paid"], "to": "sent", "when": "id > 0"}}]}}')"#
        ))
        .await;
    }
    // With a condition and without one; now and then a page is pruned besides.
    for to in ["paid", "sent"] {
        let mut least = [u64::MAX; 3];
        for id in 1..=20 {
            let moved = |machine| format!("select once.transition('{machine}', '{id}', '{to}')");
            let update = format!("update plain set status = '{to}' where id = {id}");
            for (least, sql) in least
                .iter_mut()
                .zip([update, moved("moved"), moved("kept")])
            {
                *least = (*least).min(logged(&play, sql).await);
            }
        }
        let [plain, without, with] = least;
        assert!(without == plain && with > plain, "{to}: {least:?}");
    }
}
