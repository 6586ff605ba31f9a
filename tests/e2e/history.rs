//! A scope's past: thousands of finished keys, and one that its client left in the middle, as long ago as a test says.
//!
//! The real clock goes on, because a pretended one switches the bookmarks off; the rows are dated back.
#![allow(dead_code, reason = "each test binary uses its part")]

use pg_once_tests::race::poll_async;

use crate::playground::Playground;

/// So many finished keys a millisecond apart, the last of which was to be looked at so long ago.
pub async fn finished(play: &Playground, scope: &str, name: &str, count: u32, ago: &str) {
    play.show(&format!(
        "insert into once.key (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt,
                attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, fingerprint,
                finished_at, response_code)
         select i, t, t, t, t, now() + '1 day', 86400000000, 1, 0, 'c', '0', '0', false, '0',
                md5('{scope} {name} ' || i)::uuid, '{scope}', '{name} ' || i, 'started',
                '\\x01'::bytea || sha256(i::text::bytea), t, 201
           from generate_series(1, {count}) i,
                lateral (select now() - interval '{ago}' - ({count} - i) * interval '1 ms') x (t)"
    ))
    .await;
}

/// A key that was claimed, and whose lease ran out so long ago.
pub async fn abandoned(play: &Playground, scope: &str, key: &str, ago: &str) {
    play.show(&format!(
        "select once.key_claim('{scope}', '{key}', lease => '1 microsecond')"
    ))
    .await;
    date_back(play, scope, key, ago).await;
}

/// As if it had been claimed so long ago.
pub async fn date_back(play: &Playground, scope: &str, key: &str, ago: &str) {
    play.show(&format!(
        "update once.key set look_at = now() - interval '{ago}', claimed_at = now() - interval '{ago}',
                lease_until = least(lease_until, now() - interval '{ago}')
          where scope = '{scope}' and key = '{key}'"
    ))
    .await;
}

/// Sweeps until that is true: open transactions of other tests only delay a bookmark.
pub async fn sweep_until(play: &Playground, what: &str, sql: &str) {
    poll_async(what, async || {
        play.show("select once.sweep(1000, 'key_tombstone')").await;
        Ok((play.show(sql).await == "t").then_some(()))
    })
    .await
    .unwrap();
}

/// Sweeps until the bookmark stands before that key.
pub async fn swept_to(play: &Playground, scope: &str, key: &str) {
    let what = format!("the bookmark to stand before {key}");
    sweep_until(play, &what, &stands_before(scope, key)).await;
}

/// Sweeps until the bookmark has passed everything that was to be looked at so long ago.
pub async fn swept_past(play: &Playground, scope: &str, ago: &str) {
    let passed = format!(
        "select coalesce(bool_or(upto > now() - interval '{ago}' and next_xid > 0), false)
           from once.key_bookmark where scope = '{scope}'"
    );
    let what = format!("the bookmark to pass what is {ago} old");
    sweep_until(play, &what, &passed).await;
}

/// The bookmark stands right before that key of its scope, which waits for a completer.
pub fn stands_before(scope: &str, key: &str) -> String {
    format!(
        "select coalesce(bool_or(b.upto = k.look_at - interval '1 microsecond' and b.next_xid = 0), false)
           from once.key_bookmark b join once.key k on k.scope = b.scope
          where k.scope = '{scope}' and k.key = '{key}'"
    )
}
