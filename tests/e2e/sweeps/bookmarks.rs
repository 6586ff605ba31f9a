//! What key_tombstone does for scopes that no completer looks at: their bookmarks go up to the oldest key that waits
//! for one, and nothing is taken, hidden or read again and again.

use std::time::{Duration, Instant};

use pg_once_tests::race::poll_async;

use crate::bounds::rows_read;
use crate::history::{abandoned, finished, stands_before, sweep_until, swept_past, swept_to};
use crate::playground::Playground;
use crate::tombstone;
use crate::waiting::{at_once, sessions};

const TAKE: &str = "select key from once.key_take_abandoned('s', 100)";
const OVERDUE: &str =
    "select round(value) from once.metrics() where name = 'pg_once_keys_overdue_seconds'";

#[tokio::test]
async fn the_bookmark_goes_up_to_the_oldest_abandoned_key_and_leaves_it_alone() {
    let play = Playground::open().await;
    finished(&play, "s", "before", 3_000, "50 min").await;
    abandoned(&play, "s", "dead", "45 min").await;
    finished(&play, "s", "after", 12_000, "10 min").await;
    abandoned(&play, "s", "dead, too", "9 min").await;
    let places =
        "select string_agg(ctid::text || xmin, ' ' order by key) from once.key where status = 'r'";
    let before = play.show(places).await;
    swept_to(&play, "s", "dead").await;
    assert_eq!(play.show(places).await, before, "no key was written");
    let row = "select ctid, xmin from once.key_bookmark";
    let stored = play.show(row).await;
    for _ in 0..3 {
        assert_eq!(tombstone(&play, 1000).await, "0|0|f");
    }
    assert_eq!(
        play.show(row).await,
        stored,
        "and the bookmark is not written again"
    );

    assert_eq!(
        play.show("select key from once.key_take_abandoned('s', 1)")
            .await,
        "dead"
    );
    swept_to(&play, "s", "dead, too").await;
    assert_eq!(play.show(TAKE).await, "dead, too");
    swept_past(&play, "s", "8 min").await;
}

#[tokio::test]
async fn a_bookmark_that_somebody_holds_is_left_where_it_is_and_not_waited_for() {
    let play = Playground::open().await;
    abandoned(&play, "s", "dead", "45 min").await;
    finished(&play, "s", "after", 3_000, "10 min").await;
    swept_to(&play, "s", "dead").await;
    let row = "select ctid, xmin from once.key_bookmark";
    let stored = play.show(row).await;
    let other = play.another().await;
    other
        .show("begin; select from once.key_bookmark for update")
        .await;
    play.show("set lock_timeout = '1 ms'").await;
    assert_eq!(play.show(TAKE).await, "dead");
    for _ in 0..3 {
        assert_eq!(tombstone(&play, 1000).await, "0|0|f");
    }
    assert_eq!(play.show(row).await, stored);
    other.show("commit").await;
    swept_past(&play, "s", "11 min").await;
}

#[tokio::test]
async fn in_a_scope_with_a_few_keys_only_one_that_waits_is_marked_and_not_for_longer_than_it_does()
{
    let play = Playground::open().await;
    finished(&play, "s", "done", 20, "5 min").await;
    for _ in 0..3 {
        assert_eq!(tombstone(&play, 1000).await, "0|0|f");
    }
    let rows = "select count(*) from once.key_bookmark";
    assert_eq!(
        play.show(rows).await,
        "0",
        "so few are read sooner than noted"
    );
    abandoned(&play, "s", "dead", "20 min").await;
    finished(&play, "s", "done later", 20, "10 min").await;
    swept_to(&play, "s", "dead").await;
    let token = play
        .show("select token from once.key_take_abandoned('s')")
        .await;
    play.show(&format!(
        "select once.key_complete('s', 'dead', {token}, 200)"
    ))
    .await;
    swept_past(&play, "s", "1 day").await;
}

#[tokio::test]
async fn of_a_scope_that_nobody_uses_nothing_is_read_in_the_end() {
    let play = Playground::open().await;
    finished(&play, "s", "done", 60, "30 min").await;
    let noted = "select count(*) from once.key_bookmark";
    sweep_until(&play, "the note", &format!("select ({noted}) = 1")).await;
    play.show("update once.key_bookmark set next_upto = next_upto - interval '15 min'")
        .await;
    swept_past(&play, "s", "20 min").await;
    let read = rows_read(&play, "select once.sweep(100, 'key_tombstone')").await;
    assert!(read < 10, "{read} rows read, and nothing is new");
}

/// Its holder would have to wait for the sweep's transaction.
#[tokio::test]
async fn a_key_whose_holder_is_at_it_is_not_written_where_that_saves_next_to_nothing() {
    let play = Playground::open().await;
    let holder = play.another().await;
    holder.show("set statement_timeout = '20s'").await;
    let token = play.token("alive", ", lease => '1 h'").await;
    play.show("update once.key set look_at = now() - interval '44 min' where key = 'alive'")
        .await;
    finished(&play, "s", "after", 20, "10 min").await;
    abandoned(&play, "s", "dead", "9 min").await;
    play.show("begin; set local statement_timeout = '20s'")
        .await;
    for _ in 0..3 {
        tombstone(&play, 1000).await;
    }
    let advance = format!("select once.key_advance('s', 'alive', {token}, 'x')");
    holder.show(&advance).await;
    play.show("commit").await;
    // The one behind it is told all the same.
    sweep_until(
        &play,
        "the mark",
        "select bool_or(next_xid = 0) from once.key_bookmark",
    )
    .await;

    // Of many keys it is: once.
    finished(&play, "s", "many", 100, "8 min").await;
    assert_eq!(
        play.show("select key from once.key_take_abandoned('s', 1)")
            .await,
        "dead"
    );
    swept_past(&play, "s", "8 min").await;
    let place = "select ctid::text || xmin from once.key where key = 'alive'";
    let moved = play.show(place).await;
    for _ in 0..3 {
        tombstone(&play, 1000).await;
    }
    assert_eq!(play.show(place).await, moved);
}

/// A scheduler opens a session for each call.
#[tokio::test]
async fn sessions_of_one_call_each_find_an_abandoned_key_beside_a_scope_with_nearly_all_keys() {
    let play = Playground::open().await;
    finished(&play, "a", "k", 150_000, "30 min").await;
    finished(&play, "b", "k", 3_000, "20 min").await;
    play.show("update once.key set scope = 's' || lpad((right(key, -2)::int % 1000)::text, 3, '0') where scope = 'b'")
        .await;
    for scope in ["s500", "s900"] {
        abandoned(&play, scope, "dead", "15 min").await;
    }
    play.show("vacuum once.key").await;
    let found =
        "select count(*) from once.key_bookmark where scope in ('s500', 's900') and next_xid = 0";
    let mut sessions = 0;
    poll_async("both to be found", async || {
        let session = play.another().await;
        tombstone(&session, 1000).await;
        sessions += 1;
        Ok((play.show(found).await == "2").then_some(()))
    })
    .await
    .unwrap();
    assert!(sessions < 250, "{sessions} sessions");
}

#[tokio::test]
async fn a_bookmark_of_a_scope_without_keys_is_removed() {
    let play = Playground::open().await;
    finished(&play, "gone", "k", 100, "30 min").await;
    finished(&play, "here", "k", 100, "30 min").await;
    let both = "select count(*) = 2 from once.key_bookmark";
    sweep_until(&play, "both bookmarks", both).await;
    play.show("delete from once.key where scope = 'gone'").await;
    let left = "select coalesce(string_agg(scope, ','), '') from once.key_bookmark";
    poll_async("one of them to go", async || {
        // What an older snapshot of another database keeps, a later one removes.
        play.show("vacuum once.key").await;
        tombstone(&play, 1000).await;
        Ok((play.show(left).await == "here").then_some(()))
    })
    .await
    .unwrap();
}

/// A key that is shown to completers again when its ttl is over is one that a bookmark hides.
#[tokio::test]
async fn an_abandoned_key_whose_ttl_is_over_stays_in_its_place() {
    let play = Playground::open().await;
    finished(&play, "s", "before", 100, "50 min").await;
    abandoned(&play, "s", "dead", "45 min").await;
    finished(&play, "s", "after", 100, "10 min").await;
    swept_to(&play, "s", "dead").await;
    let row = "select look_at from once.key where key = 'dead'";
    let place = play.show(row).await;
    play.show("update once.key set reap_at = now() - interval '1 s' where key = 'dead'")
        .await;
    tombstone(&play, 1000).await;
    assert_eq!(play.show(row).await, place);
    let later = "select reap_at > now() from once.key where key = 'dead'";
    assert_eq!(play.show(later).await, "t", "it had its turn");
    assert_eq!(play.show(&stands_before("s", "dead")).await, "t");
}

#[tokio::test]
async fn a_bookmark_from_a_clock_that_was_ahead_is_made_anew() {
    let play = Playground::open().await;
    finished(&play, "s", "done", 20, "1 min").await;
    play.show("insert into once.key_bookmark values ('s', now() + interval '1 h', now() + interval '2 h', 3)")
        .await;
    sweep_until(
        &play,
        "the bookmark to go back",
        "select bool_and(upto < now() and next_upto < now()) from once.key_bookmark",
    )
    .await;
}

#[tokio::test]
async fn a_claim_that_commits_late_is_not_passed() {
    let play = Playground::open().await;
    let late = play.another().await;
    finished(&play, "s", "before", 500, "40 min").await;
    late.show("begin").await;
    abandoned(&late, "s", "late", "30 min").await;
    finished(&play, "s", "after", 5_000, "20 min").await;
    for _ in 0..4 {
        tombstone(&play, 1000).await;
        assert_eq!(play.show(TAKE).await, "");
    }
    let where_it_was =
        "select count(*), bool_and(upto < now() - interval '30 min') from once.key_bookmark";
    assert_eq!(play.show(where_it_was).await, "1|t");
    assert_eq!(play.show(OVERDUE).await, "0");
    late.show("commit").await;
    swept_to(&play, "s", "late").await;
    let overdue: u32 = play.show(OVERDUE).await.parse().unwrap();
    assert!((1_800..3_600).contains(&overdue), "{overdue}");
    assert_eq!(play.show(TAKE).await, "late");
}

#[tokio::test]
async fn sweeps_and_takes_at_once_wait_for_nobody_and_lose_nothing() {
    let play = Playground::directly("blocks that commit").await;
    for part in 0..30 {
        let ago = format!("{} min", 60 - part);
        finished(&play, "s", &format!("part {part}"), 100, &ago).await;
        abandoned(&play, "s", &format!("dead {part}"), &ago).await;
    }
    // One of them has the bookmark in its hands, and keeps it.
    let mut others = Vec::new();
    for _ in 0..2 {
        let other = play.another().await;
        other.show("set statement_timeout = '20s'; begin").await;
        others.push(other);
    }
    for other in &others {
        assert!(tombstone(other, 50).await.starts_with("0|0|"));
    }
    play.show("create table taken (key text); set statement_timeout = '20s'")
        .await;
    play.show("insert into taken select key from once.key_take_abandoned('s', 1, '1 hour')")
        .await;
    others[0].show("rollback").await;
    others[1].show("commit").await;

    let sessions = sessions(&play, 6).await;
    let sweep = "do $$ begin
        for i in 1 .. 60 loop
            perform once.sweep(20, 'key_tombstone'); commit;
        end loop; end $$";
    let take = "do $$ begin
        for i in 1 .. 20 loop
            insert into taken select key from once.key_take_abandoned('s', 1, '1 hour'); commit;
        end loop; end $$";
    let each = |n: usize| if n < 3 { sweep } else { take }.to_owned();
    for answer in at_once(&sessions, each).await {
        answer.unwrap();
    }
    play.show("insert into taken select key from once.key_take_abandoned('s', 100)")
        .await;
    let all = "select count(*), count(distinct key) from taken";
    assert_eq!(play.show(all).await, "30|30");
    swept_past(&play, "s", "31 min").await;
}

#[tokio::test]
async fn while_a_transaction_is_open_nothing_is_read_and_then_each_entry_once() {
    let play = Playground::open().await;
    let open = play.another().await;
    finished(&play, "s", "k", 20_000, "30 min").await;
    open.show("begin; select pg_current_xact_id()").await;
    // Only the mark.
    assert_eq!(tombstone(&play, 100).await, "0|0|t");
    let sweep = "select once.sweep(100, 'key_tombstone')";
    for _ in 0..5 {
        let read = rows_read(&play, sweep).await;
        assert!(read < 50, "{read} rows read, and nothing can be moved");
    }
    open.show("rollback").await;
    let (mut all, mut most, mut passes) = (0, 0, 0);
    let patience = Instant::now() + Duration::from_secs(60);
    // The last few are not worth a write.
    let left = "select count(*) from once.key k join once.key_bookmark b on b.upto < k.look_at";
    while play.show(left).await.parse::<u32>().unwrap() >= 64 {
        let read = rows_read(&play, sweep).await;
        (all, most) = (all + read, most.max(read));
        passes += i64::from(read > 50);
        assert!(Instant::now() < patience, "the bookmark does not get there");
    }
    assert!(most < 1_100, "{most} rows read in one pass");
    // What was read with the last of one pass begins the next one.
    assert!(
        all < 20_000 + 60 * passes,
        "{all} rows read in {passes} passes"
    );
}

#[tokio::test]
async fn what_is_parked_or_alive_does_not_hold_the_bookmark_and_is_found_when_it_is_due() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    finished(&play, "s", "before", 100, "50 min").await;
    abandoned(&play, "s", "by options", "45 min").await;
    let token = play.token("alive", ", lease => '1 h'").await;
    play.show("update once.key set look_at = now() - interval '44 min' where key = 'alive'")
        .await;
    let parked = play.token("by a person", "").await;
    play.show(&format!(
        "select once.key_park('s', 'by a person', {parked}, 'x')"
    ))
    .await;
    finished(&play, "s", "after", 100, "10 min").await;
    swept_past(&play, "s", "10 min").await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": null}')"#)
        .await;
    assert_eq!(play.show(TAKE).await, "by options");
    play.show(&format!(
        "select once.key_extend('s', 'alive', {token}, '1 microsecond')"
    ))
    .await;
    assert_eq!(play.show(TAKE).await, "alive");
    play.show("select once.key_resolve('s', 'by a person', 1, 'retry')")
        .await;
    assert_eq!(play.show(TAKE).await, "by a person");
}

#[tokio::test]
async fn more_keys_of_one_moment_than_a_pass_reads_do_not_hold_the_bookmark() {
    let play = Playground::open().await;
    finished(&play, "s", "k", 1_000, "30 min").await;
    play.show("update once.key set look_at = (select max(look_at) from once.key)")
        .await;
    abandoned(&play, "s", "dead", "20 min").await;
    finished(&play, "s", "after", 100, "10 min").await;
    let before = stands_before("s", "dead");
    poll_async("the bookmark to pass them", async || {
        tombstone(&play, 5).await;
        Ok((play.show(&before).await == "t").then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_thousand_scopes_come_in_turn_and_the_sweep_ends() {
    let play = Playground::open().await;
    finished(&play, "s", "k", 70_000, "30 min").await;
    play.show("update once.key set scope = 's' || right(key, 3) where right(key, 4) ~ '^[0-9]+$'")
        .await;
    play.show("vacuum once.key").await;
    let behind = "select count(*) from (
            select from once.key k left join once.key_bookmark b on b.scope = k.scope
             where b.upto is null or k.look_at > b.upto group by k.scope having count(*) >= 64) s";
    let scopes: u32 = play.show(behind).await.parse().unwrap();
    assert!(scopes >= 1_000, "{scopes}");
    let patience = Instant::now() + Duration::from_secs(60);
    while play.show(behind).await != "0" {
        let mut passes = 0;
        while tombstone(&play, 1000).await.ends_with("|t") {
            passes += 1;
            assert!(passes < 100, "the sweep does not end");
        }
        assert!(Instant::now() < patience, "not every scope has its turn");
    }
    assert_eq!(tombstone(&play, 1000).await, "0|0|f");
}
