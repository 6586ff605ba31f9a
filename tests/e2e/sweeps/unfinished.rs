//! What key_reap does with keys that are not finished: it shows them to completers, and leaves them alone for a
//! while after that.

use crate::playground::Playground;
use crate::{counts, drain, reap};

const TAKE: &str = "select key from once.key_take_abandoned('s')";
const GONE_AT_ONCE: &str = r#"select once.scope_set('s', '{"gone_for": "0"}')"#;
const SHORT: &str = ", ttl => '1 microsecond', lease => '1 microsecond'";

/// As after a clock that went back by more than the key's lease.
#[tokio::test]
async fn a_key_behind_the_mark_of_key_abandon_is_found_when_its_ttl_and_gone_for_are_over() {
    let play = Playground::open().await;
    play.show(GONE_AT_ONCE).await;
    play.token("expired", SHORT).await;
    play.show("insert into once.key_mark values ('', clock_timestamp())")
        .await;
    let shown = play
        .show("select done, more from once.sweep(task => 'key_abandon')")
        .await;
    assert_eq!(shown, "0|f", "the mark hides it");
    assert!(reap(&play, 1000).await.starts_with("0|0|"));
    assert_eq!(play.show(TAKE).await, "expired");
}

#[tokio::test]
async fn a_sweep_does_not_show_completers_what_they_have_deferred() {
    let play = Playground::open().await;
    play.show(r#"select once.scope_set('s', '{"max_attempts": 1, "gone_for": "0"}')"#)
        .await;
    play.token("by options", SHORT).await;
    let parked = play.token("by a person", ", ttl => '1 microsecond'").await;
    play.show(&format!(
        "select once.key_park('s', 'by a person', {parked}, 'x')"
    ))
    .await;
    play.show("select once.sweep(task => 'key_abandon')").await;
    assert_eq!(play.show(TAKE).await, "");
    reap(&play, 10).await;
    let later = "select bool_and(look_at > clock_timestamp() + interval '5 s') from once.key";
    assert_eq!(play.show(later).await, "t");
    assert_eq!(play.show(TAKE).await, "");
}

#[tokio::test]
async fn unfinished_keys_are_visited_once_and_not_again_for_ten_minutes() {
    let play = Playground::open().await;
    play.show(GONE_AT_ONCE).await;
    let park = "
        select count(once.key_park('s', 'k' || g,
               (once.key_claim('s', 'k' || g, ttl => '1 microsecond')).token, 'x'))
          from generate_series(1, 50) as g";
    play.show(park).await;
    assert_eq!(
        reap(&play, 50).await,
        "0|0|t",
        "a full pass may have left some"
    );
    let places = "select string_agg(ctid::text || xmin, ' ' order by id) from once.key";
    let before = play.show(places).await;
    assert_eq!(reap(&play, 50).await, "0|0|f", "nothing is due any more");
    assert_eq!(drain(&play, 50).await, 0);
    assert_eq!(play.show(places).await, before, "no row was written again");
    let later = "select bool_and(reap_at > clock_timestamp() + interval '9 min') from once.key";
    assert_eq!(play.show(later).await, "t");
    assert_eq!(counts(&play).await, "50|0");
}

#[tokio::test]
async fn unfinished_keys_in_front_do_not_keep_the_sweep_from_finished_ones() {
    let play = Playground::open().await;
    play.show(GONE_AT_ONCE).await;
    let claim = "select count(once.key_claim('s', 'live' || g, ttl => '1 microsecond'))
                   from generate_series(1, 60) as g";
    play.show(claim).await;
    crate::finish(&play, "done", 5, "'1 microsecond'", crate::SMALL).await;
    let mut done = 0;
    for pass in 0..10 {
        let shown = reap(&play, 10).await;
        done += shown.split('|').next().unwrap().parse::<u32>().unwrap();
        if shown.ends_with("|f") {
            break;
        }
        assert!(pass < 9, "the sweep does not end");
    }
    assert_eq!(done, 5);
    play.ask("select count(*) from once.key where status = 'r'")
        .is("60")
        .await;
}
