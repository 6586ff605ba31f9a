\set k random(1, :held)
SELECT * FROM once.key_claim('printed', :k, fingerprint => :digest);
