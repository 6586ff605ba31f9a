\set k random(1, :held)
SELECT * FROM once.key_claim('held', :k, :request);
