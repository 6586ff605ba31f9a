\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
SELECT * FROM once.transition('guarded', :k, 'failed', '{queued}');
SELECT * FROM once.transition('guarded', :k, 'queued', '{failed}');
