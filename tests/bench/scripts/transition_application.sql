\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
BEGIN;
SELECT id, customer, status, cancel_requested, version, result FROM application.batch_job WHERE id = :k;
UPDATE application.batch_job SET status = 'failed', version = version + 1 WHERE id = :k;
COMMIT;
BEGIN;
SELECT id, customer, status, cancel_requested, version, result FROM application.batch_job WHERE id = :k;
UPDATE application.batch_job SET status = 'queued', version = version + 1 WHERE id = :k;
COMMIT;
