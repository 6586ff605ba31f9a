\set k 1 + :client_id + :clients * :n
\set n :n + 1
SELECT * FROM once.action_claim('guarded', :k, 'run', 'worker') \gset
SELECT * FROM once.action_finish('guarded', :k, :token);
