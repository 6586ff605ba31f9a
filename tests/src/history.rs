//! A scope's past: thousands of finished keys, and a key that its client abandoned, as long ago as a test says.
//!
//! The tests use the real clock, because key_abandon stores no mark under a pretended clock. The rows are dated back
//! before the first sweep.

use crate::playground::Playground;

/// Inserts `count` finished keys, a millisecond apart; the look_at of the last key is `ago` in the past.
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

/// Claims a key and dates it back: its lease expired at least `ago` in the past.
pub async fn abandoned(play: &Playground, scope: &str, key: &str, ago: &str) {
    play.show(&format!(
        "select once.key_claim('{scope}', '{key}', lease => '1 microsecond')"
    ))
    .await;
    date_back(play, scope, key, ago).await;
}

/// Dates a key back, as if it had been claimed `ago` in the past.
pub async fn date_back(play: &Playground, scope: &str, key: &str, ago: &str) {
    play.show(&format!(
        "update once.key set look_at = now() - interval '{ago}', claimed_at = now() - interval '{ago}',
                lease_until = least(lease_until, now() - interval '{ago}')
          where scope = '{scope}' and key = '{key}'"
    ))
    .await;
}
