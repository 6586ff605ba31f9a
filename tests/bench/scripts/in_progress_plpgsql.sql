\set k random(1, :held)
SELECT * FROM plpgsql.key_claim('held', :k, :request);
