\set k random(1, :held)
SELECT * FROM once.key_claim('printed', :k, fingerprint => '\xaabbccddeeff00112233445566778899aabbccddeeff00112233445566778899');
