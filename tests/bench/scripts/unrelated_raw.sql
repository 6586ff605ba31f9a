\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
UPDATE raw.batch_job SET result = 'page ' || :k WHERE id = :k;
