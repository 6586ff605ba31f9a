\set k random(1, :stock)
SELECT * FROM once.key_claim('stock', :k, :request);
