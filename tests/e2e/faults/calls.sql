-- The calls of the fuzz, one a line. Every function of the extension is in one of them, or the test fails. A line that
-- begins with `alone:` cannot be inside a transaction. Words in braces are filled in by chance (fuzz.rs).
-- A line stands several times where it has to be called more often than others.

-- key: of scopes in which anything goes
select * from once.key_claim({scope}, {key}, {json}, lease => {lease}, ttl => {lease}, holder => {holder})
select * from once.key_claim({scope}, {key}, {json}, lease => {lease}, ttl => {lease})
select * from once.key_claim({scope}, {key}, fingerprint => sha256({key}::bytea))
select once.key_advance({scope}, {key}, fz.token({scope}, {key}, {off}), {point}, {json}, {lease})
select once.key_complete({scope}, {key}, fz.token({scope}, {key}, {off}), 200, {json}, {json})
select once.key_complete({scope}, {key}, fz.token({scope}, {key}, {off}), 200, to_json(fz.big()))
select once.key_abort({scope}, {key}, fz.token({scope}, {key}, {off}), 409, {json})
select once.key_release({scope}, {key}, fz.token({scope}, {key}, {off}), 'not now', {lease})
select once.key_park({scope}, {key}, fz.token({scope}, {key}, {off}), 'who knows')
select once.key_resolve({scope}, {key}, coalesce((select attempt from once.key_get({scope}, {key})), 1), {verdict}, 200, {json})
select once.key_extend({scope}, {key}, fz.token({scope}, {key}, {off}), {lease})
select * from once.key_step({scope}, {key}, fz.token({scope}, {key}, {off}), {step}, '{"topic": "side", "payload": 1}')
select * from once.key_step({scope}, {key}, fz.token({scope}, {key}, {off}), {step})
select * from once.key_step_done({scope}, {key}, fz.token({scope}, {key}, {off}), {step}, {json}, '{"topic": "side", "payload": 2}', '{"topic": "side", "payload": 3}')
select once.key_rotate({scope}, {key}, fz.token({scope}, {key}, {off}), {step}, {small})
select once.key_derive({scope}, {key}, {step})
select * from once.key_take_abandoned({scope}, {small}, {lease}, {holder})
select * from once.key_get({scope}, {key})
select * from once.key_list({scope})
select once.key_expire({scope}, {key})
select once.key_forget({scope}, {key})
select once.scope_set({scope}, '{"gone_for": "1 s", "keep_request": true, "max_attempts": 5, "recovery_points": null}')
select once.scope_set({scope}, '{"gone_for": "0", "on_expiry": "park", "recovery_points": ["paid", "sent"]}')
select once.scope_get({scope})
select * from once.scope_list()

-- key: an order is written with the completion of its key, or not
select * from once.key_claim('orders', {order}, {json}, lease => {lease}, holder => {holder})
select * from once.key_claim('orders', {order}, lease => {lease})
select * from once.key_claim('orders', {order}, lease => {lease}); select once.key_advance('orders', {order}, fz.token('orders', {order}, {off}), 'paid', {json})
select fz.write_order({order}); select once.key_complete('orders', {order}, fz.token('orders', {order}, {off}), 201, {json})
select fz.write_order({order}); select once.key_complete('orders', {order}, fz.token('orders', {order}, {off}), 201, {json})
select * from once.key_claim('orders', {order}, lease => {lease}); select fz.write_order({order}); select once.key_complete('orders', {order}, fz.token('orders', {order}, 0), 201)
select once.key_abort('orders', {order}, fz.token('orders', {order}, {off}), 409)
select once.key_release('orders', {order}, fz.token('orders', {order}, {off}))
select once.key_park('orders', {order}, fz.token('orders', {order}, {off}), 'who knows')
select once.key_resolve('orders', {order}, coalesce((select attempt from once.key_get('orders', {order})), 1), 'retry')
select * from once.key_take_abandoned('orders', {small}, {lease})
select once.key_expire('orders', {order})

-- machine and action
select fz.new_job()
select fz.new_job()
select * from once.action_claim('batch_job', fz.job({small})::text, 'run', 'worker', {lease}, {holder})
select * from once.action_claim('batch_job', fz.job({small}), 'run', 'worker', {lease})
select * from once.action_extend('batch_job', fz.job({small})::text, fz.lease(fz.job({small}), {off}), {lease})
select * from once.action_extend('batch_job', {job}, fz.lease({job}, {off}))
select * from once.action_claim('batch_job', {job}, 'run', 'worker', {lease}); select fz.finish({job}, {off})
select fz.finish({job}, {off})
select * from once.action_finish('batch_job', {job}, fz.lease({job}, 7))
select * from once.action_release('batch_job', {job}::text, fz.lease({job}, {off}), 'failed')
select * from once.action_release('batch_job', {job}, fz.lease({job}, {off}))
select once.action_expire('batch_job', {job}::text)
select once.action_adopt('batch_job', 10)
select * from once.action_get('batch_job', {job}::text)
select * from once.action_list('batch_job')
select * from once.transition('batch_job', {job}::text, 'failed')
select * from once.transition('batch_job', {job}, 'queued', array['failed'])
select * from once.transition_many('batch_job', array[{job}::text, fz.job(0)::text], 'failed')
select * from once.transition_many('batch_job', array(select id::text from batch_job where status = 'failed' limit 5), 'queued')
select once.machine_define({definition})
select once.machine_define('{"machine": "scratch", "table": "fz.scratch", "id": "id", "status": "status", "status_types": ["ready", "over"], "terminal": ["over"], "transitions": [{"from": ["ready"], "to": "over"}], "steps": [], "history": "1 min"}')
select once.machine_guard('scratch', true)
select once.machine_guard('scratch', false)
select once.machine_drop('scratch')
select once.machine_get('batch_job')
select * from once.machine_list()
select * from once.machine_history('batch_job', {job})
select once.machine_diagram('batch_job')
select * from once.machine_check()
select once.machine_assert()
update batch_job set status = {status} where id = {job}
update fz.scratch set status = 'over' where id = {small}
delete from fz.scratch where id = {small}; insert into fz.scratch values ({small}) on conflict do nothing

-- cancel
select * from once.cancel_request('batch_job', {job}::text)
select * from once.cancel_request('batch_job', {job})
select * from once.cancel_refund('batch_job', {job}::text)
select * from once.cancel_refund('batch_job', {job})
select * from once.cancel_refund('batch_job', {job}, 1)
select * from once.cancel_items('batch_job', {job}::text)
select once.cancel_confirm('batch_job', {job}::text, {pass})
select * from once.cancel_finish('batch_job', {job}::text)
select once.cancel_confirm('batch_job', r.id, r.pass) from (select p.id, (once.cancel_refund('batch_job', p.id)).pass from once.cancel_pending('batch_job', 1) as p) as r
select once.cancel_confirm('batch_job', r.id, r.pass), once.cancel_finish('batch_job', r.id) from (select p.id, (once.cancel_refund('batch_job', p.id)).pass from once.cancel_pending('batch_job', 1) as p) as r
select f.* from once.cancel_pending('batch_job', 2) as p, once.cancel_finish('batch_job', p.id, '{"result": "none"}') as f
select * from once.cancel_audit('batch_job')
select * from once.cancel_audit('batch_job', {job}::text)

-- outbox: each event is acked once by each subscriber
insert into fz.emitted select {topic}, event_id from once.outbox_emit({topic}, {json}, {holder}) where emitted
insert into fz.emitted select {topic}, event_id from once.outbox_emit({topic}, {json}, dedupe_key => {key}, headers => {json}) where emitted
insert into fz.emitted select {topic}, event_id from once.outbox_emit({topic}, {json}, delay => {brief}) where emitted
insert into fz.emitted select {topic}, (once.outbox_emit({topic}, {json}, 'k' || g)).event_id from generate_series(1, 5) as g
insert into fz.emitted select {topic}, (once.outbox_emit({topic}, to_json(fz.big()))).event_id
select fz.take({topic}, {sub}, {small})
select fz.take({topic}, {sub}, {small})
select fz.take({topic}, {sub}, 50)
select fz.ack({topic}, {sub}, fz.batch({topic}, {sub}, {nth}), true)
select fz.ack({topic}, {sub}, fz.batch({topic}, {sub}, {nth}), false)
select fz.ack({topic}, {sub}, fz.batch({topic}, {sub}, 0), true)
select * from once.outbox_nack({topic}, {sub}, fz.batch({topic}, {sub}, {nth}), null, 'said so', {kind})
select * from once.outbox_nack({topic}, {sub}, fz.batch({topic}, {sub}, 0), array(select event_id from fz.took where token = fz.batch({topic}, {sub}, 0) limit 1), 'said so', {kind})
select once.outbox_extend({topic}, {sub}, fz.batch({topic}, {sub}, {nth}), {brief})
select * from once.outbox_deliveries({topic}, {sub}, (select max(event_id) from fz.took))
select * from once.outbox_dead({topic}, {sub})
select once.outbox_redrive({topic}, {sub}, {small})
select * from once.outbox_peek({topic}, {sub})
select * from once.topic_list()
select once.topic_get({topic})
select once.subscriber_get({topic}, {sub})
select once.subscriber_set({topic}, {sub}, '{"max_attempts": 3, "backoff_base": "10 ms", "backoff_cap": "100 ms"}')
select once.outbox_ack('side', 'default', t.token) from (select max(token) as token from once.outbox_take('side', max => 20)) as t where t.token is not null
select once.outbox_discard('side', 'default', array(select event_id from once.outbox_dead('side')))
select once.topic_set({scratch}, '{"subscribers": ["default", "other"]}')
select once.topic_set({scratch}, '{"lanes": 3}')
select once.subscriber_set({scratch}, 'default', '{"lease": "1 s"}')
select once.outbox_emit({scratch}, '1', {key})
select once.subscriber_drop({scratch}, {sub})
select once.topic_drop({scratch})

-- inbox
select * from once.inbox_accept({scope}, {key}, {lease}); select once.inbox_record({scope}, {key}, {json})
select * from once.inbox_accept({scope}, {key})
select once.inbox_record({scope}, {key}, {json})
select once.inbox_barrier({scope}, {key}, {step}, 'action', {lease})
select once.inbox_barrier({scope}, {key}, {step}, 'compensation', {lease})

-- janitor, watching, running
select * from once.sweep(100)
select * from once.sweep(20, {task})
select * from once.sweep(20, 'action_release', 'batch_job')
alone: call once.sweep_all(200)
select * from once.janitor_status()
select * from once.metrics()
select * from once.doctor()
select * from once.verify(100)
select once.incarnation()
select once.grant_role({role}, {right})
select once.revoke_role({role}, {right})
select once.shard_of({key}, 16)
select * from once.shard_get()
select once.shard_set(0, 1)
