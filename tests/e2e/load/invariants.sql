-- What must be true of the whole system: one query for each invariant, headed by `-- always: name` (in every
-- snapshot, whatever is under way) or `-- settled: name` (once nothing is under way). Each lists what violates it.

-- always: a finished key has its answer, and an unfinished one has none
select key, status from once.key
 where (status in ('c', 'a')) is distinct from (finished_at is not null and response_code is not null)
   and status <> 'g';

-- always: a step belongs to a key
select s.key_id from once.key_step as s
 where not exists (select from once.key as k where k.id = s.key_id);

-- always: an order is written once
select key, count(*) from ordered group by key having count(*) > 1;

-- always: an order belongs to a key that came past its recovery point under a token that it had
select o.key from ordered as o
 where not exists (select from once.key as k
                    where k.key = o.key and k.recovery_point = 'ordered' and k.status <> 'a' and k.token >= o.token);

-- always: a completed request has its order with the charge that its client is told
select k.key from once.key as k
 where k.scope = 'requests' and k.status = 'c'
   and not exists (select from ordered as o
                    where o.key = k.key and o.charge = (k.response_body ->> 'charge')::bigint);

-- always: the step of a finished request is done
select k.key from once.key as k
 where k.scope = 'requests' and k.status in ('c', 'a')
   and not exists (select from once.key_step as s where s.key_id = k.id and s.done_at is not null);

-- always: a step was done under the version that the bank takes
select k.key, s.version from once.key as k join once.key_step as s on s.key_id = k.id
 where k.scope = 'requests' and s.done_at is not null
   and s.version <> case when substr(k.key, 2)::int % 13 = 5 then 2 else 1 end;

-- always: a job is in its claim state exactly while it is leased, or a hand has put it there
select j.id, j.status from batch_job as j
  left join once.action_lease as l on l.machine = 'batch_job' and l.row_id = j.id::text and l.state = 'h'
  left join by_hand as h on h.job = j.id and not h.over and j.status = 'running'
 where (j.status = 'running') is distinct from (l.id is not null or h.job is not null);

-- always: a job that a hand has put into its claim state has no lease and stays there until it is adopted or torn down
select h.job, j.status from by_hand as h join batch_job as j on j.id = h.job
  left join once.action_lease as l on l.machine = 'batch_job' and l.row_id = j.id::text and l.state = 'h'
 where not h.over and (j.status not in ('running', 'cancelled') or l.id is not null);

-- always: nothing leaves a terminal state
select job, was, became from moved where was in ('done', 'cancelled');

-- always: a job is put aside from the queue, and goes back there or is torn down
select job, was, became from moved
 where (became = 'failed' and was <> 'queued') or (was = 'failed' and became not in ('queued', 'cancelled'));

-- always: a job that is done was not cancelled, and a cancelled one was
select id, status from batch_job
 where (status = 'done' and cancel_requested) or (status = 'cancelled' and not cancel_requested);

-- always: a wallet has lost what its job's successes cost and got back what was returned
select w.customer, w.points from wallet as w
  join batch_job as j using (customer)
 where w.points <> 1000 - (select coalesce(sum(i.points) filter (where i.state = 'succeeded'), 0)
                                - coalesce(sum(i.points) filter (where i.state = 'succeeded' and i.settled = 'returned'), 0)
                             from batch_item as i where i.job_id = j.id);

-- always: the marked items and the recorded refunds agree
select id, difference from once.cancel_audit('batch_job');

-- always: the totals of a teardown are the sums of its refunds
select c.row_id from once.cancel as c
  left join once.refund as r using (machine, row_id)
 group by c.machine, c.row_id, c.items_total, c.amount_total
having c.items_total <> coalesce(sum(r.items), 0) or c.amount_total <> coalesce(sum(r.amount), 0);

-- always: a cancelled job has no undecided item and its last pass is confirmed
select j.id from batch_job as j
 where j.status = 'cancelled'
   and (exists (select from batch_item as i where i.job_id = j.id and i.settled is distinct from 'returned')
        or not exists (select from once.cancel as c
                        where c.machine = 'batch_job' and c.row_id = j.id::text
                          and c.confirmed_pass = c.pass and c.finished_at is not null));

-- always: a done job kept all its items
select j.id from batch_job as j
 where j.status = 'done'
   and exists (select from batch_item as i where i.job_id = j.id and (i.settled, i.state) is distinct from ('kept', 'succeeded'));

-- always: an event is consumed once
select topic, event, count(*) from consumed group by topic, event having count(*) > 1;

-- always: what is consumed was emitted
select topic, event from consumed
except
(select 'posts', 'post ' || n from posted union all
 select 'frail', 'frail ' || n from frail union all
 select 'paid', 'paid ' || key from once.key where status = 'c' union all
 select 'undo', 'undo ' || key from once.key where status = 'a');

-- always: events of one order_key are consumed in the order in which they were emitted
select order_key, event from (
    select order_key, event, seq,
           lag(substr(event, 6)::int) over (partition by order_key order by seq) > substr(event, 6)::int as late
      from consumed where topic = 'posts' and order_key is not null) as c
 where late;

-- always: what is consumed has its message in the inbox, with its verdict
select c.event from consumed as c
 where not exists (select from once.inbox as i
                    where i.scope = 'consumer' and i.name = c.delivery_key and i.verdict #>> '{}' = c.event);

-- always: an event that is tried again is in the log
select r.topic_id, r.event_id from once.retry as r
 where not exists (select from (select topic_id, event_id from once.event_0 union all
                                select topic_id, event_id from once.event_1 union all
                                select topic_id, event_id from once.event_2 union all
                                select topic_id, event_id from once.event_3 union all
                                select topic_id, event_id from once.event_kept) as e
                    where e.topic_id = r.topic_id and e.event_id = r.event_id);

-- always: nothing died but what is frail, because nothing else gives up here
select topic, event_id, kind from once.dead join once.topic using (topic_id) where topic <> 'frail';

-- always: whatever a client was told is dead is a dead letter or was redriven, as often as it died
select event_id, sum(told) from (select event_id, 1 as told from died union all
                                 select event_id, -1 from redriven where kind <> 'expired' union all
                                 select event_id, -1 from once.dead where kind <> 'expired') as d
 group by event_id having sum(told) <> 0;

-- always: a dead letter is the event that was emitted
select event_id, event, order_key
  from (select event_id, event, order_key from redriven union all
        select event_id, payload ->> 'event', order_key from once.dead) as d
 where not exists (select from frail as f
                    where 'frail ' || f.n = d.event and f.order_key is not distinct from d.order_key);

-- always: a dead letter has used up its attempts, counted anew after it was redriven
select event_id, kind, attempts
  from (select event_id, kind, attempts from redriven union all select event_id, kind, attempts from once.dead) as d
 where case kind when 'never' then attempts not between 1 and 2 else attempts <> 2 end;

-- always: a dead letter is not tried again before it is redriven
select event_id from once.dead join once.retry using (subscriber_id, event_id);

-- always: what fails at first is consumed only after it was redriven
select c.event from consumed as c join frail as f on c.topic = 'frail' and c.event = 'frail ' || f.n
 where f.deaths > (select count(*) from redriven as r where r.event = c.event and r.kind <> 'expired');

-- always: events of one order_key that did not die are consumed in the order in which they were emitted
select order_key, event from (
    select order_key, event, lag(n) over (partition by order_key order by seq) > n as late
      from (select c.*, substr(event, 7)::int as n from consumed as c where topic = 'frail' and order_key is not null) as c
     where event not in (select event from redriven)
       and event not in (select payload ->> 'event' from once.dead)) as c
 where late;

-- always: no sweep has failed
select task, machine, last_error from once.janitor where failed > 0;

-- settled: no key is unfinished
select key, status from once.key where status not in ('c', 'a', 'g');

-- settled: no lease is held
select row_id, lease_until from once.action_lease where state = 'h';

-- settled: no job is unfinished
select id, status from batch_job where status not in ('done', 'cancelled');

-- settled: no teardown is pending
select id from once.cancel_pending('batch_job');

-- settled: what was emitted is consumed
(select 'posts', 'post ' || n from posted union all
 select 'frail', 'frail ' || n from frail union all
 select 'paid', 'paid ' || key from once.key where scope = 'requests' and status = 'c' union all
 select 'undo', 'undo ' || key from once.key where scope = 'requests' and status = 'a')
except
select topic, event from consumed;

-- settled: no dead letter is left
select event_id, kind from once.dead;

-- settled: what a hand has put into its claim state was adopted or torn down
select job from by_hand where not over;

-- settled: what is soon forgotten is
select 'key', key from once.key where scope = 'brief'
union all
select 'message', name from once.inbox where scope = 'brief';

-- settled: nothing disagrees between the machine and its tables
select machine, problem from once.machine_check() where problem not like 'claim states are not covered%';

-- always: what must hold between the extension's own tables
select invariant, detail from once.verify(1000000);
