\set k random(1, :held)
SELECT response_code, response_body, response_headers FROM raw.key WHERE id = md5(:k)::uuid;
