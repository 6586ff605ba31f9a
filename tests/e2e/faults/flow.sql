-- What a caller does in an ordinary day: a paragraph is a transaction, a line one message. `name: query` keeps the
-- first column of its row, which must not be NULL, for {name} below. {n} is the run, so that no two meet.

select once.scope_set('s{n}', '{"keep_request": true}')

select once.topic_set('t{n}', '{"lanes": 2}')

select once.subscriber_set('t{n}', 'default', '{"lease": "1 s", "backoff_base": "1 ms", "backoff_cap": "1 ms"}')

token: select token from once.key_claim('s{n}', 'k', '{"amount": 5}', holder => 'h{n}')

select * from once.key_step('s{n}', 'k', {token}, 'charge', '{"topic": "t{n}", "payload": "undo"}')

select * from once.key_step_done('s{n}', 'k', {token}, 'charge', '{"id": 7}', '{"topic": "t{n}", "payload": "charged"}')

begin
insert into net values ('{n}', 'advanced')
select once.key_advance('s{n}', 'k', {token}, 'paid', '{"id": 7}')
commit

select once.key_extend('s{n}', 'k', {token}, '1 min')

begin
insert into net values ('{n}', 'completed')
select once.key_complete('s{n}', 'k', {token}, 201, '{"order": 1}', '{"x": "y"}')
commit

answer: select response_code from once.key_claim('s{n}', 'k', '{"amount": 5}', holder => 'other')

first: select token from once.key_claim('s{n}', 'k2', holder => 'h1')

select * from once.key_step('s{n}', 'k2', {first}, 'ship', '{"topic": "t{n}", "payload": "unship"}')

select once.key_release('s{n}', 'k2', {first}, 'busy', '1 ms')

second: select token from once.key_claim('s{n}', 'k2', holder => 'h2')

version: select once.key_rotate('s{n}', 'k2', {second}, 'ship', 1)

select once.key_park('s{n}', 'k2', {second}, 'no answer')

select once.key_resolve('s{n}', 'k2', 2, 'retry')

third: select token from once.key_claim('s{n}', 'k2', holder => 'h3')

begin
insert into net values ('{n}', 'aborted')
select once.key_abort('s{n}', 'k2', {third}, 409, '{"order": 2}')
commit

fourth: select token from once.key_claim('s{n}', 'k3', holder => 'h4')

select once.key_expire('s{n}', 'k3')

begin
select * from once.sweep(1000, 'key_abandon')
taken: select token from once.key_take_abandoned('s{n}', 1, '1 min', 'h5')
commit

select once.key_complete('s{n}', 'k3', {taken}, 200)

select once.key_forget('s{n}', 'k3')

select make_job('{n} done')

job: select id from batch_job where customer = '{n} done'

lease: select token from once.action_claim('batch_job', '{job}', 'run', 'worker', holder => 'w1')

select * from once.action_release('batch_job', '{job}', {lease}, 'busy')

select * from once.transition('batch_job', '{job}', 'failed')

select * from once.transition_many('batch_job', array['{job}'], 'queued')

again: select token from once.action_claim('batch_job', '{job}', 'run', 'worker', holder => 'w2')

begin
update batch_item set state = 'succeeded', settled = 'kept' where job_id = {job}
select * from once.action_extend('batch_job', '{job}', {again})
insert into net values ('{n}', 'items')
select * from once.action_finish('batch_job', '{job}', {again}, '{"result": "fine"}')
commit

select make_job('{n} cancelled')

gone: select id from batch_job where customer = '{n} cancelled'

select * from once.cancel_request('batch_job', '{gone}')

pass: select pass from once.cancel_refund('batch_job', '{gone}')

select * from once.cancel_items('batch_job', '{gone}')

select once.cancel_confirm('batch_job', '{gone}', {pass})

begin
select * from once.cancel_finish('batch_job', '{gone}', '{"result": "none"}')
commit

insert into net select '{n}', 'posted' where (select emitted from once.outbox_emit('t{n}', '"posted"', 'o', 'd{n}'))

insert into net select '{n}', 'barrier' where once.inbox_barrier('s{n}', 'saga', 'ship', 'action') = 'run'

batch: select token from once.outbox_take('t{n}', max => 100)

select once.outbox_extend('t{n}', 'default', {batch}, '2 s')

select * from once.outbox_nack('t{n}', 'default', {batch}, null, 'no', 'never')

select once.outbox_redrive('t{n}')
