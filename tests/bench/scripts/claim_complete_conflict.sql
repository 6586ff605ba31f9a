\set k random(1000000000000000000, 9000000000000000000)
\set token random(800000000000000, 900000000000000)
INSERT INTO raw.key (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt, attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, fingerprint) VALUES (:token, now() + interval '60 s', now(), now(), now() + interval '60 s', now() + interval '1 day', 86400000000, 1, 0, 'r', '0', '0', false, '0', md5(:k)::uuid, 'payments.create', :k, 'started', :fingerprint) ON CONFLICT (id) DO NOTHING RETURNING token;
UPDATE raw.key SET status = 'c', finished_at = now(), response_code = 201, response_body = :response, response_headers = NULL WHERE id = md5(:k)::uuid AND token = :token AND status = 'r';
