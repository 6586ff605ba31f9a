-- Claim and complete as one would write them in PL/pgSQL: read first, insert where nothing is there,
-- a token that every later write presents. Simpler than pg_once (no options of scopes, no owners,
-- jsonb compared by its printed form), so it is no slower for being thorough.

CREATE FUNCTION plpgsql.key_claim(
    p_scope text, p_key text, p_request json,
    p_lease interval = '60 s', p_ttl interval = '1 day', p_holder text = NULL,
    OUT outcome text, OUT token bigint, OUT attempt integer, OUT recovery_point text, OUT state json,
    OUT response_code integer, OUT response_body json, OUT response_headers json,
    OUT lease_left interval, OUT retry_after interval)
LANGUAGE plpgsql AS $$
DECLARE
    found_key     plpgsql.key;
    v_id          uuid := md5(p_scope || chr(1) || p_key)::uuid;
    v_fingerprint bytea := sha256(p_request::jsonb::text::bytea);
    v_now         timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO found_key FROM plpgsql.key k WHERE k.id = v_id;
    IF NOT FOUND THEN
        token := (extract(epoch FROM v_now) * 1000000)::bigint;
        INSERT INTO plpgsql.key
            (token, lease_until, claimed_at, created_at, look_at, reap_at, ttl_us, attempt,
             attempt_base, status, reap_stage, look_lane, emits, advanced, id, scope, key, recovery_point, fingerprint, holder)
        VALUES
            (token, v_now + p_lease, v_now, v_now, v_now + p_lease, v_now + p_ttl, 86400000000, 1,
             0, 'r', '0', '0', false, '0', v_id, p_scope, p_key, 'started', v_fingerprint, p_holder)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            outcome := 'claimed';
            attempt := 1;
            recovery_point := 'started';
            lease_left := p_lease;
        ELSE
            token := NULL;
            outcome := 'in_progress';
            retry_after := '1 s';
        END IF;
        RETURN;
    END IF;

    IF found_key.fingerprint IS DISTINCT FROM v_fingerprint THEN
        outcome := 'mismatched';
    ELSIF found_key.status IN ('c', 'a') THEN
        IF found_key.finished_at + found_key.ttl_us * interval '1 microsecond' < v_now THEN
            outcome := 'gone';
        ELSE
            outcome := 'replayed';
            response_code := found_key.response_code;
            response_body := found_key.response_body;
            response_headers := found_key.response_headers;
        END IF;
    ELSIF found_key.status = 'p' THEN
        outcome := 'parked';
        attempt := found_key.attempt;
    ELSIF found_key.lease_until > v_now THEN
        outcome := 'in_progress';
        retry_after := greatest(found_key.lease_until - v_now, interval '100 ms');
    ELSE
        UPDATE plpgsql.key k
           SET token = greatest((extract(epoch FROM v_now) * 1000000)::bigint, k.token + 1),
               lease_until = v_now + p_lease, claimed_at = v_now, look_at = v_now + p_lease,
               attempt = k.attempt + 1, status = 'r', holder = p_holder
         WHERE k.id = v_id AND k.token = found_key.token
        RETURNING k.token, k.attempt, k.recovery_point, k.state
             INTO token, attempt, recovery_point, state;
        IF FOUND THEN
            outcome := 'resumed';
            lease_left := p_lease;
        ELSE
            outcome := 'in_progress';
            retry_after := '1 s';
        END IF;
    END IF;
END $$;

CREATE FUNCTION plpgsql.key_complete(
    p_scope text, p_key text, p_token bigint, p_code integer, p_body json = NULL, p_headers json = NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE plpgsql.key
       SET status = 'c', finished_at = clock_timestamp(),
           response_code = p_code, response_body = p_body, response_headers = p_headers
     WHERE id = md5(p_scope || chr(1) || p_key)::uuid AND token = p_token AND status = 'r';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of key "%" is lost', p_key USING ERRCODE = 'ON001';
    END IF;
END $$;
