\set k 1 + :client_id + :clients * random(0, :stock / :clients - 1)
SELECT * FROM once.transition('job', :k, 'failed', '{queued}', '{"result": "no page"}');
SELECT * FROM once.transition('job', :k, 'queued', '{failed}', '{"result": null}');
