\set k random(1, :stock)
SELECT response_code, response_body, response_headers FROM raw.lean WHERE scope = 'stock' AND key = :k;
