INSERT INTO raw.outbox (topic, payload) VALUES ('bench', :request) RETURNING id;
