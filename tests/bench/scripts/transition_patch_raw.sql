\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
UPDATE raw.batch_job SET status = 'failed', version = version + 1, result = 'no page' WHERE id = :k AND status = ANY ('{queued}');
UPDATE raw.batch_job SET status = 'queued', version = version + 1, result = NULL WHERE id = :k AND status = ANY ('{failed}');
