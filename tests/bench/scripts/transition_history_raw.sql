\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
WITH moved AS (
    UPDATE raw.batch_job SET status = 'failed', version = version + 1 WHERE id = :k AND status = ANY ('{queued}') RETURNING id::text)
INSERT INTO raw.machine_move (n, at, id, machine, row_id, from_status, to_status, how, role)
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), md5('job' || id)::uuid, 'job', id,
           'queued', 'failed', 'transition', current_user FROM moved;
WITH moved AS (
    UPDATE raw.batch_job SET status = 'queued', version = version + 1 WHERE id = :k AND status = ANY ('{failed}') RETURNING id::text)
INSERT INTO raw.machine_move (n, at, id, machine, row_id, from_status, to_status, how, role)
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), md5('job' || id)::uuid, 'job', id,
           'failed', 'queued', 'transition', current_user FROM moved;
