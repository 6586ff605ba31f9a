//! Each invariant of the whole-system check is violated here on purpose, one after the other, and the check
//! names it: a check that cannot fail proves nothing.

use pg_once_tests::{Cluster, script::rows};

use crate::DATABASE;
use crate::load::invariants::{self, Invariant};
use crate::load::{Load, door::Session};

/// By the invariant's name: what violates it. Triggers and constraints of the user's tables are off.
const PLANTED: &str = "
a finished key has its answer, and an unfinished one has none
  | update once.key set response_code = null where status = 'c'
a step belongs to a key
  | delete from once.key where key = 'r0'
an order is written once
  | insert into ordered select * from ordered limit 1
an order belongs to a key that came past its recovery point under a token that it had
  | update once.key set token = 1 where key = 'r0'
a completed request has its order with the charge that its client is told
  | update ordered set charge = -1
the step of a finished request is done
  | update once.key_step set done_at = null
a step was done under the version that the bank takes
  | update once.key_step set version = 1
a job is in its claim state exactly while it is leased, or a hand has put it there
  | update batch_job set status = 'running' where id = (select min(id) from batch_job)
a job that a hand has put into its claim state has no lease and stays there until it is adopted or torn down
  | update by_hand set over = false
nothing leaves a terminal state
  | insert into moved values (1, 'done', 'queued')
a job is put aside from the queue, and goes back there or is torn down
  | insert into moved values (1, 'running', 'failed')
a job that is done was not cancelled, and a cancelled one was
  | update batch_job set cancel_requested = not cancel_requested
a wallet has lost what its job's successes cost and got back what was returned
  | update wallet set points = points + 1
the marked items and the recorded refunds agree
  | update once.refund set amount = amount + 1
the totals of a teardown are the sums of its refunds
  | update once.cancel set amount_total = amount_total + 1
a cancelled job has no undecided item and its last pass is confirmed
  | update once.cancel set confirmed_pass = confirmed_pass - 1
a done job kept all its items
  | update batch_item set settled = null where settled = 'kept'
an event is consumed once
  | insert into consumed (topic, event, order_key, delivery_key) select topic, event, null, delivery_key from consumed limit 1
what is consumed was emitted
  | delete from posted
events of one order_key are consumed in the order in which they were emitted
  | insert into consumed (topic, event, order_key, delivery_key) select topic, 'post 0', order_key, delivery_key from consumed where topic = 'posts' and order_key is not null limit 1
what is consumed has its message in the inbox, with its verdict
  | update once.inbox set verdict = '1'
an event that is tried again is in the log
  | insert into once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect) values (now(), -1, 1, 1, 0, 1, 0, false)
nothing died but what is frail, because nothing else gives up here
  | insert into once.dead values (1, 1, -1, 1, now(), now(), 1, 1, 0, 'never')
whatever a client was told is dead is a dead letter or was redriven, as often as it died
  | delete from redriven where kind = 'never'
a dead letter is the event that was emitted
  | update redriven set order_key = 'another' where order_key is not null
a dead letter has used up its attempts, counted anew after it was redriven
  | update redriven set attempts = 3 where kind = 'error'
a dead letter is not tried again before it is redriven
  | insert into once.dead values (1, 1, -1, 1, now(), now(), 1, 1, 0, 'never'); insert into once.retry (due_at, event_id, subscriber_id, topic_id, lane, failures, redriven, suspect) values (now(), -1, 1, 1, 0, 1, 0, false)
what fails at first is consumed only after it was redriven
  | update frail set deaths = deaths + 1 where deaths > 0
events of one order_key that did not die are consumed in the order in which they were emitted
  | insert into consumed (topic, event, order_key, delivery_key) select topic, 'frail 0', order_key, delivery_key from consumed as c where topic = 'frail' and order_key is not null and event not in (select event from redriven) limit 1
no sweep has failed
  | update once.janitor set failed = 1 where task = 'outbox_requeue'
no key is unfinished
  | update once.key set status = 'l' where status = 'c'
no lease is held
  | update once.action_lease set state = 'h'
no job is unfinished
  | update batch_job set status = 'failed'
no teardown is pending
  | update batch_job set status = 'queued', cancel_requested = true; update once.cancel set open = true, finished_at = null
what was emitted is consumed
  | delete from consumed
no dead letter is left
  | insert into once.dead select topic_id, topic_id, -1, 1, now(), now(), 1, 1, 0, 'never' from once.topic where topic = 'frail'
what a hand has put into its claim state was adopted or torn down
  | update by_hand set over = false
what is soon forgotten is
  | update once.key set scope = 'brief' where key = 'r0'
nothing disagrees between the machine and its tables
  | alter table batch_job disable trigger all
what must hold between the extension's own tables
  | update once.topic set subscribers = subscribers + 1";

/// Whether there is one of everything.
const ENOUGH: &str = "
select exists (select from batch_job where status = 'done')
   and exists (select from once.refund where amount > 0)
   and exists (select from batch_job where status = 'cancelled')
   and exists (select from ordered where key = 'r0')
   and exists (select from moved where was = 'failed')
   and exists (select from once.key where resolved_attempt is not null)
   and exists (select from once.key as k join once.key_step as s on s.key_id = k.id
                where k.scope = 'requests' and k.request is not null and s.version = 2 and s.done_at is not null)
   and exists (select from once.key where scope = 'requests' and request is null and status = 'c')
   and exists (select from by_hand join batch_job on id = job where over and status = 'done')
   and exists (select from redriven where kind = 'error' and order_key is not null)
   and exists (select from redriven where kind = 'never')
   and exists (select from consumed where topic = 'frail' and order_key is not null and event not in (select event from redriven))
   and (select count(*) = 2 from once.janitor where task in ('key_reap', 'inbox_reap') and machine = '' and done > 0)
   and exists (select from consumed where topic = 'posts' and order_key is not null)";

/// Violates one invariant in a transaction that is rolled back; whether the check sees it.
async fn is_seen(session: &Session<'_>, invariant: &Invariant, sql: &str) -> bool {
    let begin = format!("begin; set local session_replication_role = replica; {sql}");
    session.rows(&begin).await.unwrap();
    let violated = invariant.violations(session).await.unwrap();
    session.rows("rollback").await.unwrap();
    !violated.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_invariant_is_seen_where_it_is_violated() {
    let cluster = Cluster::launch().unwrap();
    cluster
        .create_database_with_extension(DATABASE)
        .await
        .unwrap();
    let load = Load::prepare(cluster.front_url(DATABASE).unwrap()).await;
    let mut running = load.start();
    let session = load.door.enter().await;
    while session.text(ENOUGH).await.unwrap() != "t" {
        running.goes_on_for(50).await;
    }
    running.settle().await;
    running.end().await.assert_whole().await;
    let invariants = invariants::all();
    let names: Vec<_> = invariants.iter().map(|i| i.name).collect();
    let planted = rows(PLANTED);
    assert_eq!(
        names,
        planted.iter().map(|[name, _]| *name).collect::<Vec<_>>(),
        "each invariant has its violation here"
    );
    for (invariant, [name, sql]) in invariants.iter().zip(planted) {
        assert!(is_seen(&session, invariant, sql).await, "not seen: {name}");
    }
}
