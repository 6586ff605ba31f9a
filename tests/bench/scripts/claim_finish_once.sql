\set k 1 + :client_id + :clients * :n
\set n :n + 1
SELECT * FROM once.action_claim('job', :k, 'run', 'worker') \gset
SELECT * FROM once.action_finish('job', :k, :token);
