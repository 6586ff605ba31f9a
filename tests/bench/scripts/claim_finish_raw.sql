\set k 1 + :client_id + :clients * :n
\set n :n + 1
\set token random(800000000000000, 900000000000000)
WITH moved AS (UPDATE raw.batch_job SET status = 'running', version = version + 1 WHERE id = :k AND status = 'queued' AND NOT cancel_requested RETURNING id) INSERT INTO raw.action_lease (token, lease_until, look_at, last_call, failures, state, id, machine, row_id, claim_into, revert_to, step_key, successful_state) SELECT :token, clock_timestamp() + interval '30 s', clock_timestamp() + interval '30 s', 0, 0, 'h', md5(id::text)::uuid, 'job', id::text, 'running', 'queued', 'run', 'done' FROM moved;
WITH moved AS (UPDATE raw.batch_job SET status = 'done', version = version + 1 WHERE id = :k AND status = 'running' AND NOT cancel_requested RETURNING id, version) UPDATE raw.action_lease l SET state = 'f', ended_at = clock_timestamp(), last_call = 4242424242424242, ended_version = moved.version FROM moved WHERE l.id = md5(moved.id::text)::uuid AND l.token = :token AND l.state = 'h';
