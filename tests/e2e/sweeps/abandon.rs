//! key_abandon: it makes every abandoned key known to completers, whenever its claim commits and whoever else is at
//! work, and reads finished keys once.

use crate::bounds::rows_read;
use crate::history::{abandoned, date_back, finished};
use crate::playground::Playground;
use crate::waiting::{at_once, sessions};

const SHORT: &str = ", lease => '1 microsecond'";
const TAKE: &str = "select key from once.key_take_abandoned('s', 100)";
const PREPARED: &str = "a prepared transaction has its session for itself";

async fn sweep(play: &Playground, max: u32) -> String {
    let sql = format!("select done, failed, more from once.sweep({max}, 'key_abandon')");
    play.show(&sql).await
}

/// What completers get after one sweep.
async fn taken(play: &Playground) -> String {
    assert!(sweep(play, 1000).await.ends_with("|0|f"));
    play.show(TAKE).await
}

/// The mark is behind everything that was claimed so far with a short lease.
async fn assert_passed(play: &Playground) {
    play.token("passes", SHORT).await;
    assert_eq!(taken(play).await, "passes");
    let passed = "select m.look_at >= k.created_at from once.key_mark m, once.key k
                   where m.waits_for = '' and k.key = 'passes'";
    assert_eq!(play.show(passed).await, "t");
    play.show("select once.key_complete(scope, key, token, 200), once.key_forget(scope, key) from once.key where key = 'passes'")
        .await;
}

#[tokio::test]
async fn abandoned_keys_are_shown_and_finished_ones_are_read_once() {
    let play = Playground::open().await;
    finished(&play, "s", "before", 3_000, "50 min").await;
    abandoned(&play, "s", "dead", "45 min").await;
    finished(&play, "s", "after", 12_000, "10 min").await;
    abandoned(&play, "s", "dead, too", "9 min").await;
    let places =
        "select string_agg(ctid::text || xmin, ' ' order by id) from once.key where status = 'c'";
    let before = play.show(places).await;
    assert_eq!(
        sweep(&play, 100).await,
        "1|0|t",
        "so much is read at a time"
    );
    assert_eq!(sweep(&play, 100).await, "1|0|f");
    assert_eq!(
        play.show(places).await,
        before,
        "no finished key was written"
    );
    let read = rows_read(&play, "select once.sweep(100, 'key_abandon')").await;
    assert!(read < 10, "{read} rows read, and nothing is new");
    assert_eq!(play.show(TAKE).await, "dead\ndead, too");
}

#[tokio::test]
async fn a_sweep_moves_at_most_max_keys_the_oldest_of_all_scopes_first() {
    let play = Playground::open().await;
    for n in 0..5 {
        abandoned(&play, "s", &format!("s{n}"), &format!("{} min", 50 - 2 * n)).await;
        abandoned(&play, "a", &format!("a{n}"), &format!("{} min", 49 - 2 * n)).await;
    }
    let all = "select string_agg(key, ' ' order by look_at) from once.key where look_lane = '1'";
    assert_eq!(sweep(&play, 3).await, "3|0|t");
    assert_eq!(play.show(all).await, "s0 a0 s1");
    assert_eq!(sweep(&play, 6).await, "6|0|t");
    assert_eq!(sweep(&play, 6).await, "1|0|f");
    assert_eq!(play.show(all).await, "s0 a0 s1 a1 s2 a2 s3 a3 s4 a4");
}

#[tokio::test]
async fn more_keys_of_one_moment_than_a_sweep_reads_do_not_hold_it() {
    let play = Playground::open().await;
    finished(&play, "s", "k", 1_000, "30 min").await;
    play.show("update once.key set look_at = (select max(look_at) from once.key)")
        .await;
    abandoned(&play, "s", "dead", "20 min").await;
    let mut sweeps = 0;
    while sweep(&play, 2).await.ends_with("|t") {
        sweeps += 1;
        assert!(sweeps < 10, "the sweep does not end");
    }
    assert_eq!(play.show(TAKE).await, "dead");
}

/// Also where its transaction has a lower id than others that have ended, or claims in a subtransaction.
#[tokio::test]
async fn a_key_whose_claim_commits_after_the_mark_has_passed_its_time_is_found() {
    let play = Playground::open().await;
    finished(&play, "s", "before", 500, "40 min").await;
    let claim = |key: &str| format!("select outcome from once.key_claim('s', '{key}'{SHORT})");
    let begins = [
        "begin",
        "begin; select pg_current_xact_id()",
        "begin; savepoint a",
    ];
    let mut late = Vec::new();
    for begin in begins {
        let session = play.another().await;
        session.show(begin).await;
        late.push(session);
    }
    assert_passed(&play).await;
    for (n, session) in late.iter().enumerate() {
        assert_eq!(session.show(&claim(&format!("late {n}"))).await, "claimed");
        assert_passed(&play).await;
    }
    late[2].show("release a").await;
    for (n, session) in late.iter().enumerate() {
        assert_passed(&play).await;
        session.show("commit").await;
        assert_eq!(taken(&play).await, format!("late {n}"));
    }
    let left = "select count(*) from once.key_mark";
    assert_eq!(taken(&play).await, "");
    assert_eq!(play.show(left).await, "1", "nothing is waited for any more");
}

/// Whatever it holds, others' keys are found with the next sweep, those that commit late among them.
#[tokio::test]
async fn a_transaction_that_stays_open_delays_nobody_elses_key() {
    let play = Playground::directly(PREPARED).await;
    let elsewhere = Playground::directly(PREPARED).await;
    let locks = "select once.key_extend('s', 'locked', token, '1 microsecond') from once.key where key = 'locked'";
    let claims = format!("select once.key_claim('s', 'its own'{SHORT})");
    let prepare = "prepare transaction 'once_stays_open'";
    for (what, begin, end, its_own) in [
        ("a claim", claims.as_str(), "commit", "its own"),
        ("a prepared claim", claims.as_str(), prepare, "its own"),
        ("a locked key", locks, "commit", "locked"),
        ("a prepared one that locks a key", locks, prepare, "locked"),
    ] {
        if its_own == "locked" {
            play.token("locked", SHORT).await;
        }
        let open = play.another_directly("postgres", PREPARED).await;
        open.show(&format!("begin; {begin}")).await;
        if what == "a prepared claim" {
            assert_passed(&play).await;
        }
        if end == prepare {
            open.show(end).await;
        }
        elsewhere.show(&format!("begin; {claims}")).await;
        for round in 0..3 {
            let late = play.another().await;
            late.show(&format!(
                "begin; select once.key_claim('s', 'late {round}'{SHORT})"
            ))
            .await;
            play.token(&format!("k {round}"), SHORT).await;
            assert_eq!(taken(&play).await, format!("k {round}"), "{what}");
            assert_passed(&play).await;
            late.show("commit").await;
            assert_eq!(taken(&play).await, format!("late {round}"), "{what}");
        }
        open.show(if end == prepare {
            "commit prepared 'once_stays_open'"
        } else {
            end
        })
        .await;
        assert_eq!(taken(&play).await, its_own, "{what}");
        elsewhere.show("rollback").await;
        assert_eq!(taken(&play).await, "");
        let left =
            "select (select count(*) from once.key_mark), (select count(*) from once.key_locked)";
        assert_eq!(play.show(left).await, "1|0", "{what}");
        play.show("delete from once.key").await;
    }
}

#[tokio::test]
async fn of_a_thousand_scopes_each_has_its_turn_in_one_sweep() {
    let play = Playground::open().await;
    finished(&play, "s", "k", 10_000, "30 min").await;
    play.show("update once.key set scope = 's' || right(key, 3) where right(key, 4) ~ '^[0-9]+$'")
        .await;
    for scope in ["a", "s500", "z"] {
        abandoned(&play, scope, "dead", "20 min").await;
    }
    assert_eq!(sweep(&play, 1000).await, "3|0|f");
}

#[tokio::test]
async fn one_sweep_at_a_time_does_it_and_the_others_do_not_wait() {
    let play = Playground::open().await;
    let other = play.another().await;
    abandoned(&play, "s", "dead", "1 min").await;
    play.show("begin").await;
    assert_eq!(sweep(&play, 10).await, "1|0|f");
    other.show("set statement_timeout = '20s'").await;
    assert_eq!(sweep(&other, 10).await, "0|0|f");
    play.show("rollback").await;
    assert_eq!(
        sweep(&other, 10).await,
        "1|0|f",
        "what was rolled back was not done"
    );
}

#[tokio::test]
async fn a_mark_from_a_clock_that_was_ahead_hides_nothing_that_is_claimed_now() {
    let play = Playground::open().await;
    play.show("insert into once.key_mark values ('', now() + interval '1 h')")
        .await;
    assert_eq!(taken(&play).await, "");
    play.token("k", ", lease => '1 ms'").await;
    play.show("select pg_sleep(0.01)").await;
    sweep(&play, 10).await;
    play.token("then", SHORT).await;
    assert!(taken(&play).await.ends_with("then"));
    let back = "select look_at < now() + interval '1 min' from once.key_mark";
    assert_eq!(play.show(back).await, "t");
}

#[tokio::test]
async fn a_sweep_under_a_pretended_clock_moves_no_mark() {
    let play = Playground::open().await;
    play.clock("0").await;
    play.token("k", "").await;
    play.clock("2 min").await;
    assert_eq!(taken(&play).await, "k");
    assert_eq!(play.show("select count(*) from once.key_mark").await, "0");
}

/// Its holder waits for the sweep that moves it, so that happens once.
#[tokio::test]
async fn a_key_whose_lease_was_extended_is_moved_once_and_found_when_its_lease_is_over() {
    let play = Playground::open().await;
    let token = play.token("k", ", lease => '1 h'").await;
    date_back(&play, "s", "k", "1 min").await;
    let extend = |lease: &str| format!("select once.key_extend('s', 'k', {token}, '{lease}')");
    play.show(&extend("1 h")).await;
    assert_eq!(taken(&play).await, "");
    let place = "select ctid, xmin from once.key";
    let moved = play.show(place).await;
    for _ in 0..3 {
        assert_eq!(taken(&play).await, "");
    }
    assert_eq!(play.show(place).await, moved);
    play.show(&extend("1 microsecond")).await;
    assert_eq!(play.show(TAKE).await, "k", "without another sweep");
}

#[tokio::test]
async fn sweeps_and_takes_at_once_wait_for_nobody_and_lose_nothing() {
    let play = Playground::directly("blocks that commit").await;
    for part in 0..30 {
        let ago = format!("{} min", 60 - part);
        finished(&play, "s", &format!("part {part}"), 100, &ago).await;
        abandoned(&play, "s", &format!("dead {part}"), &ago).await;
    }
    play.show("create table taken (key text); set statement_timeout = '20s'")
        .await;
    let sessions = sessions(&play, 6).await;
    let sweep = "do $$ begin
        for i in 1 .. 60 loop
            perform once.sweep(2, 'key_abandon'); commit;
        end loop; end $$";
    let take = "do $$ begin
        for i in 1 .. 20 loop
            insert into taken select key from once.key_take_abandoned('s', 1, '1 hour'); commit;
        end loop; end $$";
    let each = |n: usize| if n < 3 { sweep } else { take }.to_owned();
    for answer in at_once(&sessions, each).await {
        answer.unwrap();
    }
    play.show("select once.sweep(task => 'key_abandon'); insert into taken select key from once.key_take_abandoned('s', 100)")
        .await;
    let all = "select count(*), count(distinct key) from taken";
    assert_eq!(play.show(all).await, "30|30");
}
