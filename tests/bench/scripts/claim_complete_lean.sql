\set k random(1000000000000000000, 9000000000000000000)
\set token random(800000000000000, 900000000000000)
INSERT INTO raw.lean (scope, key, fingerprint, status, token, lease_until, expires_at) VALUES ('payments.create', :k, :fingerprint, 'running', :token, now() + interval '60 s', now() + interval '1 day');
UPDATE raw.lean SET status = 'completed', response_code = 201, response_body = :response, response_headers = NULL WHERE scope = 'payments.create' AND key = :k AND token = :token AND status = 'running';
