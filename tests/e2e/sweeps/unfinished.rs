//! What key_tombstone does with keys that are not finished: it shows them to completers again, and leaves
//! them alone for a while after that.
//!
//! Nothing here pretends time: a pretended clock makes takes ignore the bookmark, which is what is tested.

use pg_once_tests::race::poll_async;

use crate::playground::Playground;
use crate::{counts, drain, tombstone};

const TAKE: &str = "select key from once.key_take_abandoned('s')";

/// Takes until the scope has a bookmark that hides something. Open transactions of other tests only
/// delay it.
async fn bookmark(play: &Playground) {
    play.show(
        "select count(once.key_complete('s', 'f' || g,
                (once.key_claim('s', 'f' || g, lease => '1 microsecond')).token, 200))
           from generate_series(1, 100) as g",
    )
    .await;
    let moved = poll_async("the bookmark to move", async || {
        play.show(TAKE).await;
        let upto = play
            .show("select upto > '-infinity' from once.key_bookmark where scope = 's'")
            .await;
        Ok((upto == "t").then_some(()))
    });
    moved.await.unwrap();
}

/// Puts the look at a key where a clock that went back so far would have put it.
async fn step_back(play: &Playground, key: &str, by: &str) {
    let sql = format!(
        "update once.key set look_at = clock_timestamp() - interval '{by}' where key = '{key}'"
    );
    play.show(&sql).await;
}

#[tokio::test]
async fn a_key_behind_the_bookmark_is_taken_after_the_sweep_that_visits_it() {
    let play = Playground::open().await;
    bookmark(&play).await;
    // Due for the sweep at once, but unfinished.
    let released = play.token("released", ", ttl => '1 microsecond'").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {released})"
    ))
    .await;
    play.token(
        "expired",
        ", ttl => '1 microsecond', lease => '1 microsecond'",
    )
    .await;
    for key in ["released", "expired"] {
        step_back(&play, key, "1 hour").await;
    }
    assert_eq!(play.show(TAKE).await, "", "the bookmark hides them");
    assert!(tombstone(&play, 1000).await.starts_with("0|0|"));
    let mut found: Vec<_> = play.show(TAKE).await.lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, ["expired", "released"]);
}

#[tokio::test]
async fn a_clock_that_steps_back_four_seconds_hides_nothing_from_completers() {
    let play = Playground::open().await;
    bookmark(&play).await;
    let behind = "select upto < clock_timestamp() - interval '5 s', next_upto < clock_timestamp() - interval '5 s'
                    from once.key_bookmark";
    assert_eq!(play.show(behind).await, "t|t");
    play.token("victim", ", lease => '1 microsecond'").await;
    step_back(&play, "victim", "4 s").await;
    assert_eq!(play.show(TAKE).await, "victim");
}

#[tokio::test]
async fn a_sweep_does_not_show_completers_what_they_have_put_aside() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": 1}')"#)
        .await;
    play.token(
        "by options",
        ", lease => '1 microsecond', ttl => '1 microsecond'",
    )
    .await;
    let parked = play.token("by a person", ", ttl => '1 microsecond'").await;
    play.show(&format!(
        "select once.key_park('s', 'by a person', {parked}, 'x')"
    ))
    .await;
    play.show(TAKE).await;
    tombstone(&play, 10).await;
    assert_eq!(
        play.show("select distinct look_at from once.key").await,
        "infinity"
    );
    assert_eq!(play.show(TAKE).await, "");
}

#[tokio::test]
async fn unfinished_keys_are_visited_once_and_not_again_for_ten_minutes() {
    let play = Playground::open().await;
    let park = "
        select count(once.key_park('s', 'k' || g,
               (once.key_claim('s', 'k' || g, ttl => '1 microsecond')).token, 'x'))
          from generate_series(1, 50) as g";
    play.show(park).await;
    assert_eq!(
        tombstone(&play, 50).await,
        "0|0|t",
        "a full pass may have left some"
    );
    let places = "select string_agg(ctid::text || xmin, ' ' order by id) from once.key";
    let before = play.show(places).await;
    assert_eq!(
        tombstone(&play, 50).await,
        "0|0|f",
        "nothing is due any more"
    );
    assert_eq!(drain(&play, 50).await, 0);
    assert_eq!(play.show(places).await, before, "no row was written again");
    let later = "select bool_and(reap_at > clock_timestamp() + interval '9 min') from once.key";
    assert_eq!(play.show(later).await, "t");
    assert_eq!(counts(&play).await, "50|0");
}

#[tokio::test]
async fn unfinished_keys_in_front_do_not_keep_the_sweep_from_finished_ones() {
    let play = Playground::open().await;
    let claim = "select count(once.key_claim('s', 'live' || g, ttl => '1 microsecond'))
                   from generate_series(1, 60) as g";
    play.show(claim).await;
    crate::finish(&play, "done", 5, "'1 microsecond'").await;
    let mut done = 0;
    for pass in 0..10 {
        let shown = tombstone(&play, 10).await;
        done += shown.split('|').next().unwrap().parse::<u32>().unwrap();
        if shown.ends_with("|f") {
            break;
        }
        assert!(pass < 9, "the sweep does not end");
    }
    assert_eq!(done, 5);
    let live = play
        .show("select count(*) from once.key where status = 'r'")
        .await;
    assert_eq!(live, "60");
}
