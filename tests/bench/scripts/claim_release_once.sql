\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
SELECT * FROM once.action_claim('job', :k, 'run', 'worker') \gset
SELECT * FROM once.action_release('job', :k, :token);
