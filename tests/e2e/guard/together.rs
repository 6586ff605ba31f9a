//! machine_guard, and what else puts guards on and takes them off, locks the machine's tables: beside writers and
//! migrations it waits for one table while it has none of the others, and gives way before anybody is a deadlock's
//! victim.

use pg_once_tests::race::{backend_pid, poll_async};

use crate::guarded;
use crate::playground::Playground;
use crate::statements::partitioned;
use crate::waiting::{Waiting, at_once, code, sessions};
use crate::world::{define, jobs};

pub const GUARD: &str = "select once.machine_guard('job', true)";
const UNGUARD: &str = "select once.machine_guard('job', false)";
const DROP: &str = "select once.machine_drop('job')";

const DEADLOCKS: &str =
    "select sum(deadlocks) from pg_stat_database where datname = current_database()";

/// What a session has of the tables of the tests, and what it waits for.
const LOCKS: &str = "
    select coalesce(string_agg(format('%s %s %s', relation::regclass, mode, granted), ', '
                               order by granted, relation::regclass::text), '')
      from pg_locks
     where relation in (select oid from pg_class where relname ~ '^(job|item)' and relkind in ('r', 'p'))
       and pid = ";

/// A session whose locks are looked at from outside.
pub async fn seen(play: &Playground) -> Playground {
    play.another_directly("postgres", "its backend is watched from outside")
        .await
}

/// The same, and it gives way soon.
async fn watched(play: &Playground) -> Playground {
    let session = seen(play).await;
    session.show("set deadlock_timeout = '50ms'").await;
    session
}

/// Until a session has and waits for just these locks.
async fn until_locks(play: &Playground, pid: i32, locks: &str) {
    poll_async(locks, async || {
        let seen = play.show(&format!("{LOCKS}{pid}")).await;
        Ok((seen == locks).then_some(()))
    })
    .await
    .unwrap();
}

/// A session that calls `sql`, once it has and waits for just these locks.
async fn waiting_with(play: &Playground, session: Playground, sql: &str, locks: &str) -> Waiting {
    let pid = backend_pid(&session.client).await.unwrap();
    let waiting = Waiting::send(session, sql);
    until_locks(play, pid, locks).await;
    waiting
}

/// A session that calls `sql`, once it has the one table and waits for the other. It does so for a second in its first try,
/// and then waits for the other with nothing held: where that was missed it is called again.
pub async fn waiting_with_one(
    play: &Playground,
    mut session: Playground,
    sql: &str,
    mode: &str,
) -> Waiting {
    let pid = backend_pid(&session.client).await.unwrap();
    let (missed, has_one) = (
        format!("item {mode} f"),
        format!("item {mode} f, job {mode} t"),
    );
    loop {
        let waiting = Waiting::send(session, sql);
        let has = poll_async(&has_one, async || {
            let seen = play.show(&format!("{LOCKS}{pid}")).await;
            Ok([&missed, &has_one].contains(&&seen).then_some(seen))
        });
        if has.await.unwrap() == has_one {
            return waiting;
        }
        play.show(&format!("select pg_cancel_backend({pid})")).await;
        let answer;
        (session, answer) = waiting.end().await;
        assert_eq!(code(&answer), "57014", "{answer:?}");
    }
}

/// A transaction again and again, until there is a table of this name.
fn until_enough(first: &str, transaction: &str) -> String {
    format!(
        "do $$ begin
            {first};
            while to_regclass('enough') is null loop
                {transaction};
                commit;
            end loop;
         end $$"
    )
}

/// Guarded or not, with job 1 and its item 1.
pub async fn world(is_guarded: bool) -> Playground {
    let play = guarded().await;
    jobs(&play, 1, 1, "ready").await;
    play.show("insert into item (id, job_id) values (1, 1)")
        .await;
    if !is_guarded {
        play.show(UNGUARD).await;
    }
    play
}

#[tokio::test]
async fn it_waits_for_one_table_while_it_has_none_of_the_others() {
    for (is_guarded, call) in [(false, GUARD), (true, UNGUARD), (true, DROP)] {
        for (first, then) in [("job", "item"), ("item", "job")] {
            let play = world(is_guarded).await;
            let writer = play.another().await;
            // A table alone, not the row that the items' guard would lock.
            writer
                .show(&format!("begin; lock table {first} in row exclusive mode"))
                .await;
            let mode = if is_guarded {
                "AccessExclusiveLock"
            } else {
                "ShareRowExclusiveLock"
            };
            let only = format!("{first} {mode} f");
            let waiting = waiting_with(&play, watched(&play).await, call, &only).await;
            writer
                .show(&format!(
                    "update {then} set note = 'x'; update {first} set note = 'x'; commit"
                ))
                .await;
            waiting.end().await.1.unwrap();
        }
    }
}

#[tokio::test]
async fn a_guard_that_is_whole_waits_for_no_writer_and_for_a_migration_without_holding_anything() {
    let play = world(true).await;
    let writer = play.another().await;
    writer
        .show("begin; update job set note = 'x'; update item set note = 'x'")
        .await;
    let soon = play.another().await;
    soon.show("set lock_timeout = '1ms'").await;
    soon.show(GUARD).await;
    writer.show("commit").await;
    for (first, then) in [("item", "job"), ("job", "item")] {
        let migration = play.another().await;
        migration
            .show(&format!("begin; create index on {first} (note)"))
            .await;
        let only = format!("{first} RowExclusiveLock f");
        let waiting = waiting_with(&play, watched(&play).await, GUARD, &only).await;
        migration
            .show(&format!(
                "create index on {then} (note); alter table {then} add more int; commit"
            ))
            .await;
        waiting.end().await.1.unwrap();
    }
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

#[tokio::test]
async fn a_guard_that_somebody_is_disabling_is_put_on_again_afterwards() {
    let play = world(true).await;
    let owner = play.another().await;
    owner
        .show("begin; alter table item disable trigger user")
        .await;
    let waiting = Waiting::begin(&play, play.another().await, GUARD).await;
    owner.show("commit").await;
    waiting.end().await.1.unwrap();
    let disabled = "select count(*) from pg_trigger where tgenabled = 'D'";
    assert_eq!(play.show(disabled).await, "0");
}

#[tokio::test]
async fn its_lock_timeout_and_its_end_are_told_as_the_server_told_them() {
    for (is_guarded, call, mode) in [
        (true, GUARD, "RowExclusiveLock"),
        (false, GUARD, "ShareRowExclusiveLock"),
        (true, UNGUARD, "AccessExclusiveLock"),
        (true, DROP, "AccessExclusiveLock"),
    ] {
        let play = world(is_guarded).await;
        let holder = play.another().await;
        holder.show("begin; lock table item in share mode").await;
        let session = watched(&play).await;
        session
            .show("set lock_timeout = '20ms'; begin; savepoint s")
            .await;
        let refusal = session.refused(call).await;
        assert_eq!(refusal.code, "55P03", "{call}: {refusal:?}");
        assert_eq!(refusal.message, "canceling statement due to lock timeout");
        assert_eq!(refusal.detail, "");
        session.show("rollback to s").await;
        assert_eq!(session.show("show lock_timeout").await, "20ms");
        session.show("commit; set lock_timeout = 0").await;
        let pid = backend_pid(&session.client).await.unwrap();
        // Not in a wait that a lock_timeout ends, too: the server tells one of both, and that is caught.
        let only = format!("item {mode} f");
        let waiting = waiting_with(&play, session, call, &only).await;
        play.show(&format!("select pg_cancel_backend({pid})")).await;
        let (session, answer) = waiting.end().await;
        assert_eq!(code(&answer), "57014", "{call}: {answer:?}");
        holder.show("commit").await;
        session.show(call).await;
    }
}

/// What it waits for does not make it take a whole guard for one that is not.
#[tokio::test]
async fn a_lock_timeout_beside_a_guard_that_is_whole_stops_no_reader() {
    let play = world(true).await;
    let holder = play.another().await;
    holder.show("begin; lock table item in share mode").await;
    let session = watched(&play).await;
    session.show("set lock_timeout = '500ms'").await;
    let pid = backend_pid(&session.client).await.unwrap();
    let waiting = Waiting::begin(&play, session, GUARD).await;
    let state = format!("select state = 'active' from pg_stat_activity where pid = {pid}");
    poll_async("the call to end", async || {
        let locks = play.show(&format!("{LOCKS}{pid}")).await;
        assert!(!locks.contains("AccessExclusive"), "{locks}");
        Ok((play.show(&state).await == "f").then_some(()))
    })
    .await
    .unwrap();
    let answer = waiting.end().await.1;
    assert_eq!(code(&answer), "55P03", "{answer:?}");
}

/// Who writes one partition by its name has the others' root not locked, and wants the job's row.
#[tokio::test]
async fn a_writer_of_a_partition_by_its_name_is_no_victim() {
    for call in [UNGUARD, GUARD] {
        let play = partitioned().await;
        jobs(&play, 1, 1, "ready").await;
        play.show("insert into item (id, job_id) values (1, 1)")
            .await;
        if call == GUARD {
            play.show(UNGUARD).await;
        }
        let writer = play.another().await;
        writer.show("begin; update item_low set note = 'x'").await;
        let waiting = Waiting::begin(&play, play.another().await, call).await;
        writer
            .show("update job set note = 'x'; insert into item (id, job_id) values (60, 1); commit")
            .await;
        waiting.end().await.1.unwrap();
        assert_eq!(play.show(DEADLOCKS).await, "0");
    }
}

/// As long as the caller would wait for a table; nobody else is kept waiting meanwhile.
#[tokio::test]
async fn a_partition_that_somebody_writes_is_waited_for_with_nothing_held() {
    let play = partitioned().await;
    let (strong, weaker) = ("AccessExclusiveLock", "ShareRowExclusiveLock");
    for (call, mode) in [(UNGUARD, strong), (GUARD, weaker), (DROP, strong)] {
        let writer = play.another().await;
        writer
            .show("begin; lock table item_low in row exclusive mode")
            .await;
        let impatient = play.another().await;
        impatient.show("set lock_timeout = '50ms'").await;
        assert_eq!(impatient.code(call).await, "55P03");
        let only = format!("item_low {mode} f");
        let waiting = waiting_with(&play, watched(&play).await, call, &only).await;
        writer
            .show("update job set note = 'x'; update item set note = 'x'; commit")
            .await;
        waiting.end().await.1.unwrap();
        assert_eq!(play.show(DEADLOCKS).await, "0");
    }
}

/// Somebody has one of the tables whenever it has got the other.
#[tokio::test]
async fn it_gives_way_in_the_end_and_keeps_no_lock() {
    let play = world(true).await;
    let writers = [play.another().await, play.another().await];
    let tables = ["item", "job"];
    for call in [UNGUARD, DROP] {
        let session = watched(&play).await;
        let pid = backend_pid(&session.client).await.unwrap();
        session
            .show("set deadlock_timeout = '10ms'; begin; savepoint s")
            .await;
        let lock = |i: usize| format!("begin; lock table {} in row exclusive mode", tables[i]);
        writers[0].show(&lock(0)).await;
        let waiting = Waiting::send(session, call);
        // The first of ten tries met a writer at once, the others wait for him first; twenty times 10 ms are over then.
        for i in 0..9 {
            let (busy, other) = (i % 2, 1 - i % 2);
            until_locks(
                &play,
                pid,
                &format!("{} AccessExclusiveLock f", tables[busy]),
            )
            .await;
            writers[other].show(&lock(other)).await;
            writers[busy].show("commit").await;
        }
        let (session, answer) = waiting.end().await;
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code, "55P03", "{refusal:?}");
        assert_eq!(
            refusal.message,
            "could not lock the tables of machine \"job\" together: \"public\".\"job\", \"public\".\"item\""
        );
        assert!(refusal.detail.contains("each of 10 tries"), "{refusal:?}");
        assert!(refusal.hint.contains("LOCK TABLE"), "{refusal:?}");
        session.show("rollback to s").await;
        assert_eq!(play.show(&format!("{LOCKS}{pid}")).await, "");
        session.show("rollback").await;
        writers[1].show("commit").await;
        assert_eq!(play.show(DEADLOCKS).await, "0");
    }
    // As the hint says.
    play.show(&format!(
        "begin; lock table public.job, public.item in access exclusive mode; {UNGUARD}; commit"
    ))
    .await;
}

#[tokio::test]
async fn a_table_that_inherits_from_a_guarded_one_leaves_the_guard_whole() {
    let play = world(true).await;
    play.show("create table kid () inherits (job)").await;
    let writer = play.another().await;
    writer.show("begin; update job set note = 'x'").await;
    play.show("set lock_timeout = '1ms'").await;
    play.show(GUARD).await;
}

#[tokio::test]
async fn a_table_that_is_dropped_or_renamed_while_it_waits_is_told() {
    for (change, is_guarded) in [
        ("drop table item", true),
        ("drop table item", false),
        ("alter table item rename to part", true),
        ("alter table item rename to part", false),
    ] {
        let play = world(is_guarded).await;
        let owner = play.another().await;
        owner.show(&format!("begin; {change}")).await;
        let waiting = Waiting::begin(&play, play.another().await, GUARD).await;
        owner.show("commit").await;
        let refusal = waiting.end().await.1.unwrap_err();
        assert_eq!(refusal.code, "40001", "{change}: {refusal:?}");
        assert!(refusal.message.contains("was dropped"), "{refusal:?}");
    }
}

/// Who writes may look for a deadlock earlier than whoever calls.
#[tokio::test]
async fn a_writer_that_looks_for_a_deadlock_soon_is_no_victim() {
    let play = partitioned().await;
    let (writer, session) = (play.another().await, play.another().await);
    writer
        .show("set deadlock_timeout = '250ms'; begin; lock table item_low in row exclusive mode")
        .await;
    let waiting = Waiting::begin(&play, session, UNGUARD).await;
    // It holds the job's table again and again meanwhile.
    for _ in 0..5 {
        writer
            .show("savepoint s; lock table job; rollback to s")
            .await;
    }
    writer.show("commit").await;
    waiting.end().await.1.unwrap();
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// They neither keep what it wants nor wait for it, until one does.
#[tokio::test]
async fn a_writer_whom_others_bring_into_a_circle_is_no_victim() {
    let play = world(false).await;
    play.show(
        "create table purse (id int primary key, n int); insert into purse values (1, 0), (2, 0)",
    )
    .await;
    let writers = [
        play.another().await,
        play.another().await,
        play.another().await,
    ];
    let [of_item, waiting, of_job] = &writers;
    of_item.show("begin; update item set note = 'x'").await;
    waiting
        .show("begin; update purse set n = 1 where id = 1")
        .await;
    of_job
        .show("begin; update purse set n = 1 where id = 2")
        .await;
    let session = seen(&play).await;
    let pid = backend_pid(&session.client).await.unwrap();
    let guard = waiting_with_one(&play, session, GUARD, "ShareRowExclusiveLock").await;
    let [of_item, waiting, of_job] = writers;
    let write = |id: i32| format!("update purse set n = 2 where id = {id}; commit");
    let waiting = Waiting::begin(&play, waiting, &write(2)).await;
    let of_item = Waiting::begin(&play, of_item, &write(1)).await;
    of_job.show("update job set note = 'x'; commit").await;
    for writer in [waiting, of_item, guard] {
        writer.end().await.1.unwrap();
    }
    until_locks(&play, pid, "").await;
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// An index that is made without locks waits for all that began before it, and the call for that.
#[tokio::test]
async fn an_index_that_is_made_concurrently_is_no_victim() {
    let play = world(false).await;
    let (writer, session) = (play.another().await, seen(&play).await);
    let maker = play.another_directly("postgres", "no transaction").await;
    writer.show("begin; update item set note = 'x'").await;
    let index = "create index concurrently made on item (note)";
    let making = Waiting::begin(&play, maker, index).await;
    let guard = waiting_with_one(&play, session, GUARD, "ShareRowExclusiveLock").await;
    writer.show("commit").await;
    making.end().await.1.unwrap();
    let (session, answer) = guard.end().await;
    if answer.is_err() {
        assert_eq!(code(&answer), "40P01", "{answer:?}");
        session.show(GUARD).await;
    }
    let valid = "select indisvalid from pg_index where indexrelid = 'made'::regclass";
    assert_eq!(play.show(valid).await, "t");
}

/// What the caller's transaction has from before cannot be given back: the call fails, and not who waits for that.
#[tokio::test]
async fn where_it_is_waited_for_with_nothing_held_the_call_is_the_victim() {
    let play = world(true).await;
    let (writer, session) = (play.another().await, seen(&play).await);
    writer
        .show("begin; lock table item in row exclusive mode")
        .await;
    session.show("begin; lock table job in share mode").await;
    let only = "item AccessExclusiveLock f, job ShareLock t";
    let guard = waiting_with(&play, session, UNGUARD, only).await;
    let writing = Waiting::send(writer, "update job set note = 'x'; commit");
    let (session, answer) = guard.end().await;
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code, "40P01", "{refusal:?}");
    assert_eq!(
        refusal.message,
        "could not lock \"public\".\"item\" for the guard of machine \"job\": who keeps it waits for this transaction"
    );
    assert!(refusal.hint.contains("Roll back"), "{refusal:?}");
    session.show("rollback").await;
    writing.end().await.1.unwrap();
    session.show(UNGUARD).await;
}

/// Nobody is in a circle: it keeps what it has until the other table's writers have ended. To put a guard on is in no
/// reader's way.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_table_each_keep_it_from_none() {
    for (is_guarded, call, read) in [
        (false, GUARD, "lock table job, item in access share mode"),
        (true, UNGUARD, "select"),
    ] {
        let play = world(is_guarded).await;
        let writers = sessions(&play, 6).await;
        let beginning = async {
            play.show(&format!("{call}; create table enough ()")).await;
        };
        let writing = at_once(&writers, |i| {
            let table = ["job", "item"][i % 2];
            let read = read.replace("select", "perform 1");
            until_enough(
                &format!("perform pg_sleep({i} * 0.1)"),
                &format!("{read}; lock table {table} in row exclusive mode; perform pg_sleep(0.6)"),
            )
        });
        let ((), answers) = tokio::join!(beginning, writing);
        for answer in answers {
            answer.unwrap();
        }
        assert_eq!(play.show(DEADLOCKS).await, "0");
    }
}

/// Who waits for another writer already looks for a deadlock before one that comes into the circle later.
#[tokio::test]
async fn a_writer_that_waits_for_another_one_of_a_circle_is_no_victim() {
    let play = world(false).await;
    play.show("insert into item (id, job_id) values (2, 1)")
        .await;
    let (closing, waiting) = (play.another().await, play.another().await);
    closing
        .show("begin; update item set note = 'x' where id = 1")
        .await;
    waiting
        .show("begin; update item set note = 'x' where id = 2")
        .await;
    let waiting = Waiting::begin(
        &play,
        waiting,
        "update item set note = 'x' where id = 1; commit",
    )
    .await;
    let session = seen(&play).await;
    let guard = waiting_with_one(&play, session, GUARD, "ShareRowExclusiveLock").await;
    closing.show("update job set note = 'x'; commit").await;
    waiting.end().await.1.unwrap();
    guard.end().await.1.unwrap();
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// After it has begun to wait, or after its transaction has seen who is there.
#[tokio::test]
async fn a_writer_that_connects_while_it_waits_is_no_victim() {
    for has_looked in [false, true] {
        let play = world(false).await;
        play.show("insert into item (id, job_id) values (2, 1)")
            .await;
        let (first, session) = (play.another().await, seen(&play).await);
        let pid = backend_pid(&session.client).await.unwrap();
        let mut call = GUARD.to_owned();
        if has_looked {
            call = format!("rollback; begin; select count(*) from pg_stat_activity; {GUARD}");
        }
        first
            .show("begin; update item set note = 'x' where id = 1")
            .await;
        let mode = "ShareRowExclusiveLock";
        let guard = waiting_with_one(&play, session, &call, mode).await;
        let writer = play.another_directly("postgres", "a new backend").await;
        writer.show("begin").await;
        let waiting = Waiting::begin(&play, writer, "update job set note = 'x' where id = 1").await;
        let (writer, answer) = waiting.end().await;
        answer.unwrap();
        first.show("commit").await;
        // It may have the item's table by now, or have had it.
        poll_async("a wait for the job's table", async || {
            let seen = play.show(&format!("{LOCKS}{pid}")).await;
            Ok(seen.starts_with(&format!("job {mode} f")).then_some(()))
        })
        .await
        .unwrap();
        writer
            .show("update item set note = 'x' where id = 2; commit")
            .await;
        let (session, answer) = guard.end().await;
        answer.unwrap();
        if has_looked {
            session.show("commit").await;
        }
        assert_eq!(play.show(DEADLOCKS).await, "0");
    }
}

/// Each waits for the others on one row of one table, and looks for a deadlock where that takes long.
#[tokio::test(flavor = "multi_thread")]
async fn tables_with_a_row_that_many_write_are_had_together() {
    let play = world(false).await;
    let writers = sessions(&play, 10).await;
    for writer in &writers {
        writer.show("reset lock_timeout").await;
    }
    let beginning = async {
        let watcher = play.another().await;
        poll_async("a row that many wait for", async || {
            let waits = "select count(*) > 7 from pg_locks where not granted";
            Ok((watcher.show(waits).await == "t").then_some(()))
        })
        .await
        .unwrap();
        let answer = play.attempt(GUARD).await;
        play.show("create table enough ()").await;
        answer.unwrap();
    };
    let writing = at_once(&writers, |i| {
        let table = ["job", "item"][i % 2];
        let write = format!("update {table} set note = 'x' where id = 1; perform pg_sleep(0.1)");
        until_enough("null", &write)
    });
    let ((), answers) = tokio::join!(beginning, writing);
    for answer in answers {
        answer.unwrap();
    }
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// Who waits for the machine's table already looks for a deadlock before a migration that comes into a circle later, and
/// that he is in the way of.
#[tokio::test]
async fn a_writer_that_a_migration_waits_for_is_no_victim() {
    let play = world(false).await;
    let (migration, session) = (play.another().await, seen(&play).await);
    let pid = backend_pid(&session.client).await.unwrap();
    migration.show("begin; update item set note = 'x'").await;
    let guard = waiting_with_one(&play, session, GUARD, "ShareRowExclusiveLock").await;
    let write = "update job set note = 'x'";
    let writer = Waiting::begin(&play, play.another().await, write).await;
    let altering = Waiting::send(migration, "alter table job add more int");
    let (migration, answer) = altering.end().await;
    answer.unwrap();
    migration.show("commit").await;
    writer.end().await.1.unwrap();
    guard.end().await.1.unwrap();
    until_locks(&play, pid, "").await;
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// The worker of a parallel query waits for what its leader's transaction keeps.
#[tokio::test]
async fn a_parallel_query_beside_it_is_no_victim() {
    let play = world(true).await;
    play.show(
        "create table many as select g as id from generate_series(1, 1000) as g;
         alter table many set (parallel_workers = 2);
         create function jobs_now(id int) returns bigint stable parallel safe language plpgsql as $$ begin
            return case when id = 500 then (select count(*) from job) else 0 end; end $$",
    )
    .await;
    let leader = play.another_directly("postgres", "its settings").await;
    leader
        .show(
            "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
             set parallel_leader_participation = off; begin; lock table item in row exclusive mode",
        )
        .await;
    let session = seen(&play).await;
    let guard = waiting_with_one(&play, session, UNGUARD, "AccessExclusiveLock").await;
    assert_eq!(leader.show("select sum(jobs_now(id)) from many").await, "1");
    leader.show("commit").await;
    guard.end().await.1.unwrap();
    assert_eq!(play.show(DEADLOCKS).await, "0");
}

/// Two machines that move to the same items at once take turns.
#[tokio::test]
async fn definitions_that_take_the_same_items_come_one_after_the_other() {
    let play = world(true).await;
    play.show(
        "create table job2 (like job including all); create table item2 (like item including all)",
    )
    .await;
    let second = |items: &str| {
        crate::world::JOB
            .replace(r#""machine": "job""#, r#""machine": "job2""#)
            .replace(r#""table": "job""#, r#""table": "job2""#)
            .replace(r#""items": "item""#, &format!(r#""items": "{items}""#))
    };
    define(&play, &second("item2")).await;
    play.show(
        "select once.machine_guard('job2', true); create table more (like item including all)",
    )
    .await;
    let first = crate::world::JOB.replace(r#""items": "item""#, r#""items": "more""#);
    let writer = play.another().await;
    writer
        .show("begin; lock table more in row exclusive mode")
        .await;
    let mut waiting = Vec::new();
    for definition in [first, second("more")] {
        let call = format!("select once.machine_define($d${definition}$d$)");
        waiting.push(Waiting::begin(&play, play.another().await, &call).await);
    }
    writer.show("commit").await;
    for waiting in waiting {
        waiting.end().await.1.unwrap();
    }
    assert_eq!(play.show(DEADLOCKS).await, "0");
    let guarded = "select count(distinct tgname) from pg_trigger where tgrelid = 'more'::regclass and not tgisinternal";
    assert_eq!(play.show(guarded).await, "2");
}

/// Writers that hold their rows for a while come again and again.
#[tokio::test(flavor = "multi_thread")]
async fn writers_under_load_are_no_victims_of_a_guard_that_comes_and_goes() {
    let play = guarded().await;
    jobs(&play, 1, 20, "ready").await;
    play.show(
        "insert into item (id, job_id) select g, 1 + g % 20 from generate_series(1, 100) as g",
    )
    .await;
    let writers = sessions(&play, 5).await;
    for writer in &writers {
        writer.show("reset lock_timeout").await;
    }
    let toggling = async {
        for call in [UNGUARD, GUARD, GUARD, UNGUARD, GUARD] {
            play.show(call).await;
        }
        play.show("create table enough ()").await;
    };
    let writing = at_once(&writers, |i| {
        let write = match i {
            0..3 => "update item set note = 'x' where id = 1 + (random() * 99)::int",
            _ => "update job set note = 'x' where id = 1 + (random() * 19)::int",
        };
        until_enough(
            "null",
            &format!("{write}; perform pg_sleep(random() * 0.2)"),
        )
    });
    let ((), answers) = tokio::join!(toggling, writing);
    for answer in answers {
        answer.unwrap();
    }
    assert_eq!(play.show(DEADLOCKS).await, "0");
    define(&play, crate::world::JOB).await;
}
