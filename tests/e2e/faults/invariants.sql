-- What must be true of the fuzz's database once nobody calls: one query for each, which lists what violates it.

-- an order is written once
select key, count(*) from fz.ordered group by key having count(*) > 1;

-- an order is written exactly where its key was completed
select coalesce(o.key, k.key), k.status from (select distinct key from fz.ordered) as o
  full join (select key, status from once.key where scope = 'orders' and status = 'c') as k using (key)
 where o.key is null or k.key is null;

-- a finished key has its answer, and an unfinished one has none
select scope, key, status from once.key
 where (status in ('c', 'a')) is distinct from (finished_at is not null and response_code is not null) and status <> 'g';

-- a step belongs to a key
select s.key_id from once.key_step as s where not exists (select from once.key as k where k.id = s.key_id);

-- a job is in its claim state exactly while it is leased
select j.id, j.status from batch_job as j
  left join once.action_lease as l on l.machine = 'batch_job' and l.row_id = j.id::text and l.state = 'h'
 where (j.status = 'running') is distinct from (l.id is not null);

-- what was given back was given back once: the marked items and the recorded refunds agree
select id, difference from once.cancel_audit('batch_job');

-- a wallet has got back what the marked items of its job had cost
select j.id, w.points from wallet as w join batch_job as j using (customer)
 where w.points <> 1000 + (select coalesce(sum(i.points), 0) from batch_item as i
                            where i.job_id = j.id and i.settled = 'returned' and i.state = 'succeeded');

-- the totals of a teardown are the sums of its refunds
select c.row_id from once.cancel as c left join once.refund as r using (machine, row_id)
 group by c.machine, c.row_id, c.items_total, c.amount_total
having c.items_total <> coalesce(sum(r.items), 0) or c.amount_total <> coalesce(sum(r.amount), 0);

-- a cancelled job has no undecided item, a done one has paid for all
select j.id, j.status, i.settled from batch_job as j join batch_item as i on i.job_id = j.id
 where (j.status = 'cancelled' and i.settled is distinct from 'returned') or (j.status = 'done' and i.settled is distinct from 'kept');

-- what was acked was emitted
select a.* from fz.acked as a where not exists (select from fz.emitted as e where (e.topic, e.event_id) = (a.topic, a.event_id));

-- what was acked is neither tried again nor dead
select a.* from fz.acked as a join once.topic using (topic) join once.subscriber as s on (s.topic_id, s.subscriber) = (topic.topic_id, a.sub)
 where exists (select from once.retry as r where (r.subscriber_id, r.event_id) = (s.subscriber_id, a.event_id))
    or exists (select from once.dead as d where (d.subscriber_id, d.event_id) = (s.subscriber_id, a.event_id));

-- nothing disagrees between the machine and its table
select machine, problem from once.machine_check('batch_job') where problem not like 'claim states are not covered%';

-- what must hold between the extension's own tables
select invariant, detail from once.verify(1000000);
