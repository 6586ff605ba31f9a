//! outbox_retire and dedupe_reap: the log gives its space back, and nothing that anybody needs is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod copies;
mod dedupe;
mod dump;
mod held_up;
mod horizon;
mod space;
mod storm;
mod tidy;

use pg_once_tests::{playground, race, waiting};
use playground::Playground;

/// In every test's database. `fill` emits events of about 8 kB that do not compress, numbered from `first`;
/// `delivered` takes and acks all there is and tells the numbers in the order they came, `drain` sorts them.
const TOOLS: &str = "
create function fill(topic text, count int, first int = 1, size int = 8) returns void language sql as $$
    with p as materialized (select string_agg(md5(g::text), '') as pad from generate_series(1, 32 * size) g)
    select count(once.outbox_emit(topic, json_build_object('n', first + i, 'pad', p.pad)))
      from p, generate_series(0, count - 1) i $$;
create function delivered(topic text, subscriber text = 'default', most int = 1000) returns int[] language plpgsql as $$
declare
    all_ int[] = '{}'; got int[]; t bigint;
begin
    loop
        select max(token), array_agg((payload ->> 'n')::int) into t, got from once.outbox_take(topic, subscriber, most);
        exit when t is null;
        perform once.outbox_ack(topic, subscriber, t);
        all_ = all_ || got;
    end loop;
    return all_;
end $$;
create function drain(topic text, subscriber text = 'default', most int = 1000) returns int[] language sql as $$
    select array(select n from unnest(delivered(topic, subscriber, most)) n order by n) $$;
create function upto(n int, first int = 1) returns int[] language sql as $$
    select coalesce(array_agg(i order by i), '{}') from generate_series(first, n) i $$";

async fn open() -> Playground {
    let play = Playground::open().await;
    play.show(TOOLS).await;
    play.show("select once.topic_set('t', '{}')").await;
    play
}

async fn retire(play: &Playground) -> String {
    play.show("select done, failed, more from once.sweep(task => 'outbox_retire')")
        .await
}

/// Which segments hold pages.
async fn used(play: &Playground) -> String {
    play.show(
        "select coalesce(string_agg(right(relname, 1), ' ' order by relname), '') from pg_class
          where relnamespace = 'once'::regnamespace and relname ~ '^event_[0-3]$'
            and pg_relation_size(oid) > 0",
    )
    .await
}

async fn current(play: &Playground) -> String {
    play.show("select coalesce((select segment from once.segment where opened > 0 order by opened desc limit 1), 0)")
        .await
}

/// Bytes of all tables of events.
async fn size(play: &Playground) -> u64 {
    play.show(
        "select sum(pg_total_relation_size(oid)) from pg_class
          where relnamespace = 'once'::regnamespace and relname ~ '^event_(.|kept)$' and relkind = 'r'",
    )
    .await
    .parse()
    .unwrap()
}

/// Sets the session's clock forward.
async fn later(play: &Playground, interval: &str) {
    play.show(&format!(
        "select set_config('once.fake_now', (clock_timestamp() + interval '{interval}')::text, false)"
    ))
    .await;
}

async fn kept(play: &Playground) -> String {
    play.show("select count(*) from once.event_kept").await
}

/// Sweeps until only these segments hold pages. Transactions of other tests, in other databases too, hold the
/// truncation back for as long as they are open.
async fn retire_until(play: &Playground, wanted: &str) {
    let mut last = String::new();
    let found = race::poll_async("segments to be truncated", async || {
        last = retire(play).await;
        Ok((used(play).await == wanted).then_some(()))
    })
    .await;
    assert!(
        found.is_ok(),
        "{}: still used: {}, wanted: {wanted}, last: {last}\n{}",
        found.unwrap_err(),
        used(play).await,
        play.show("select * from once.segment").await
    );
    assert!(last.contains("|0|"), "something failed: {last}");
}

/// Sweeps a few times, and says that this truncated nothing.
async fn retire_in_vain(play: &Playground) {
    let before = used(play).await;
    for _ in 0..5 {
        let told = retire(play).await;
        assert!(told.contains("|0|"), "something failed: {told}");
    }
    let after = used(play).await;
    assert!(
        before.split(' ').all(|segment| after.contains(segment)),
        "{before}, then {after}"
    );
}
