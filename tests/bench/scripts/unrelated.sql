\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
\set page random(100000, 999999)
UPDATE guarded.batch_job SET result = 'page ' || :page WHERE id = :k;
