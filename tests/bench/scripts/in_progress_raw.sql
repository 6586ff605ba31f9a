\set k random(1, :held)
SELECT status, lease_until, fingerprint FROM raw.key WHERE id = md5(:k)::uuid;
