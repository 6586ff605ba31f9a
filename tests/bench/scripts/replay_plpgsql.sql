\set k random(1, :stock)
SELECT * FROM plpgsql.key_claim('stock', :k, :request);
