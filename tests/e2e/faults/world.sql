-- The fuzz's own database: batch_job.sql and its guarded machine, and what the calls of calls.sql use.
create schema fz;
-- A call that is repeated in its own transaction is no repeat: what it wrote there stands with that transaction's id.
create table fz.ordered (key text not null, xid xid8 not null default pg_current_xact_id());
create table fz.emitted (topic text, event_id bigint, primary key (topic, event_id));
create table fz.took (topic text not null, sub text not null, token bigint not null, event_id bigint not null);
create index took_latest on fz.took (topic, sub, token);
create table fz.acked (
    topic text, sub text, event_id bigint, xid xid8 not null default pg_current_xact_id(),
    primary key (topic, sub, event_id));
create table fz.scratch (id bigint primary key, status text not null default 'ready');
insert into fz.scratch select g from generate_series(1, 20) as g;
create role fz_one;
create role fz_two;

-- The present token of a key, of a job and of one of the latest batches; `off` makes it somebody else's.
create function fz.token(scope text, key text, off bigint) returns bigint language sql volatile as $$
select coalesce((select k.token from once.key as k where (k.scope, k.key) = ($1, $2)), 1) - $3 $$;
create function fz.lease(job bigint, off bigint) returns bigint language sql volatile as $$
select coalesce((select l.token from once.action_lease as l where l.machine = 'batch_job' and l.row_id = $1::text), 1) - $2 $$;
create function fz.batch(topic text, sub text, nth int) returns bigint language sql volatile as $$
select coalesce((select distinct t.token from fz.took as t where (t.topic, t.sub) = ($1, $2)
                  order by t.token desc offset $3 limit 1), 1) $$;

-- The order of a request, in the transaction that completes its key.
create function fz.write_order(key text) returns void language sql as $$
insert into fz.ordered select $1
 where not exists (select from fz.ordered as o where o.key = $1 and o.xid = pg_current_xact_id()) $$;

-- Too large for a page, and compression does not help.
create function fz.big() returns text language sql volatile as $$
select string_agg(md5(random()::text), '') from generate_series(1, 500) $$;

-- One of the newest jobs.
create function fz.job(nth bigint) returns bigint language sql volatile as $$
select greatest(1, max(id) - $1) from batch_job $$;

-- A job with three items, of which two have cost something, and a wallet of its own.
create function fz.new_job() returns void language sql as $$
with w as (insert into wallet values (gen_random_uuid()::text, 1000) returning customer),
     j as (insert into batch_job (customer) select customer from w returning id)
insert into batch_item (job_id, input, state, points, artifact)
select j.id, 'in', case g when 3 then 'failed' else 'succeeded' end, 10 * g, 'out' from j, generate_series(1, 3) as g $$;

-- The worker's last transaction: the items are paid for and the job is done, or neither.
create function fz.finish(job bigint, off bigint) returns void language plpgsql as $$
declare said text;
begin
    update batch_item set settled = 'kept', state = 'succeeded' where job_id = job and settled is null;
    select outcome into said from once.action_finish('batch_job', job::text, fz.lease(job, off), '{"result": "fine"}');
    if said <> 'finished' then
        raise exception 'not finished, but %', said using errcode = 'FZ001';
    end if;
end $$;

-- A take, and what it gave.
create function fz.take(topic text, sub text, max int) returns bigint language sql as $$
with t as (select * from once.outbox_take($1, $2, $3, '1 s')),
     i as (insert into fz.took select $1, $2, token, event_id from t returning 1)
select count(*) from i $$;

-- Acks a whole batch and remembers each event: twice the same one is a unique violation, which nobody allows.
create function fz.ack(topic text, sub text, batch bigint, named boolean) returns void language plpgsql as $$
declare
    ids bigint[] := array(select t.event_id from fz.took as t where (t.topic, t.sub, t.token) = ($1, $2, $3));
    n int := once.outbox_ack(topic, sub, batch, case when named then ids end);
begin
    if n <> cardinality(ids) then
        raise exception 'some had left the batch' using errcode = 'FZ001';
    end if;
    insert into fz.acked select $1, $2, id from unnest(ids) as id
     where not exists (select from fz.acked as a
                        where (a.topic, a.sub, a.event_id, a.xid) = ($1, $2, id, pg_current_xact_id()));
end $$;
