\set k random(1000000000000000000, 9000000000000000000)
SELECT * FROM once.key_claim('payments.create', :k, fingerprint => :digest) \gset
SELECT once.key_complete('payments.create', :k, :token, 201, :response);
