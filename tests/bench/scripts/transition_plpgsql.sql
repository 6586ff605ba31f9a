\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
SELECT * FROM plpgsql.transition('job', :k, 'failed', '{queued}');
SELECT * FROM plpgsql.transition('job', :k, 'queued', '{failed}');
