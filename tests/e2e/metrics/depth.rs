//! metrics() reads the same however much is over: told by the pages it touches, and in the long form by the clock.

use super::shop;
use crate::playground::Playground;
use pg_once_tests::Cluster;
use std::time::Instant;

/// Pages that one call touches, of the cache or not.
pub async fn pages(play: &Playground) -> u64 {
    pages_of(play, "once.metrics()").await
}

/// The same of any function.
pub async fn pages_of(play: &Playground, call: &str) -> u64 {
    let plan = play
        .show(&format!(
            "explain (analyze, buffers, costs off, timing off, summary off) select * from {call}"
        ))
        .await;
    let line = plan
        .lines()
        .find(|line| line.contains("Buffers: shared"))
        .unwrap()
        .to_owned();
    ["hit=", "read="]
        .iter()
        .filter_map(|word| line.split(word).nth(1))
        .map(|rest| {
            rest.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

/// Finished keys of 20 scopes, numbered from `first`, claimed two milliseconds apart.
async fn keys(play: &Playground, first: u64, last: u64) {
    play.show(&format!(
        "insert into once.key (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt,
                attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, fingerprint,
                finished_at, response_code, response_body)
         select i, t + '60 s', t, t, t + '60 s', t + '1 day', 86400000000, 1, 0, 'c', '0', '0', false, '0',
                md5(i::text)::uuid, 's' || i % 20, 'k' || i, 'started', '\\x01'::bytea || sha256(i::text::bytea),
                t + '1 s', 201, '{{\"ok\": true}}'
           from generate_series({first}, {last}) i, lateral (select now() - interval '6 h' + i * interval '2 ms') x(t)"
    ))
    .await;
}

/// Events of two subscribers, delivered by real takes and acks.
async fn events(play: &Playground, count: u64) {
    play.show(&format!(
        "select count(once.outbox_emit('t', '{{}}', case when i % 2 = 0 then 'k' || i % 1000 end)) from generate_series(1, {count}) i"
    ))
    .await;
    for subscriber in ["a", "b"] {
        let taken = "do $$ declare tk bigint; begin
            for i in 1 .. 20 loop
                select max(token) into tk from once.outbox_take('t', 'SUB', 5000);
                exit when tk is null;
                perform once.outbox_ack('t', 'SUB', tk);
            end loop; end $$";
        let left = format!(
            "select value from once.metrics() where name = 'outbox_depth' and labels ->> 'subscriber' = '{subscriber}'"
        );
        while play.show(&left).await != "0" {
            play.show(&taken.replace("SUB", subscriber)).await;
        }
    }
}

/// Machines, each over a table of a thousand rows.
const MACHINES: usize = 5;
/// Rows of each that somebody holds.
const HELD: usize = 100;

const MACHINE: &str = r#"
create table jobN (id int primary key, status text not null);
insert into jobN select i, 'new' from generate_series(1, 1000) i;
select once.machine_define('{
  "machine": "jobN", "table": "jobN", "id": "id", "status": "status", "status_types": ["new", "running", "done"],
  "steps": [{"step_key": "run", "status": "new", "claim_state": {"*": ["running", "new"]},
             "successful_state": {"*": "done"}}]}')"#;

/// A few machines with leases that are alive until the end.
async fn machines(play: &Playground) {
    for n in 1..=MACHINES {
        play.show(&MACHINE.replace('N', &n.to_string())).await;
        play.show(&format!(
            "select count(once.action_claim('job{n}', i::text, 'run', lease => '1 day')) from generate_series(1, {HELD}) i"
        ))
        .await;
    }
}

/// metrics() tells of claims, which it does only where the library is preloaded, and of all these leases.
async fn assert_preloaded_and_leased(play: &Playground) {
    let counted = "select count(*) > 0 from once.metrics() where name = 'pg_once_claims_total'";
    assert_eq!(play.show(counted).await, "t");
    let alive = format!(
        "select count(*) from once.metrics()
          where name = 'pg_once_action_leases' and labels ->> 'state' = 'alive' and value = {HELD}"
    );
    assert_eq!(play.show(&alive).await, MACHINES.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_costs_nothing() {
    let long = pg_once_tests::is_long();
    let steps: u64 = if long { 10 } else { 1 };
    let (some, many) = if long {
        (1_000_000, 1_000_000)
    } else {
        (20_000, 40_000)
    };
    // Whoever writes in another database of the server costs a look for each lane.
    let builder = Cluster::builder().setting("shared_preload_libraries", "pg_once");
    let (_cluster, play) = shop(builder).await;
    play.show("set synchronous_commit = off; select once.topic_set('t', '{\"subscribers\": [\"a\", \"b\"]}')").await;
    machines(&play).await;
    keys(&play, 1, some).await;
    events(&play, some / 4).await;
    assert_preloaded_and_leased(&play).await;
    play.show("vacuum analyze").await;
    let before = pages(&play).await;
    let mut first = some + 1;
    for _ in 0..steps {
        keys(&play, first, first + many).await;
        first += many + 1;
        events(&play, many / if long { 1 } else { 4 }).await;
    }
    play.show("vacuum analyze").await;
    let after = pages(&play).await;
    // A deeper index, a fuller page; not three times the rows.
    assert!(
        after < before + before / 4 + 200,
        "{before} pages, then {after}"
    );
    let mut times = Vec::new();
    for _ in 0..20 {
        let begin = Instant::now();
        play.show("select count(*) from once.metrics()").await;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    eprintln!(
        "metrics() over {first} keys: {after} pages, median {:?}, slowest {:?}",
        times[10], times[19]
    );
    // Not beside other tests.
    assert!(!long || times[19].as_millis() < 20, "{times:?}");
    assert_preloaded_and_leased(&play).await;
}
