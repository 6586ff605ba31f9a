\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
UPDATE raw.batch_item SET state = 'working' WHERE id = :k;
