INSERT INTO raw.event (event_id, xid, emitted_at, topic_id, lane, series, payload) VALUES (nextval('raw.event_id'), pg_current_xact_id()::text::bigint, now(), 1, 0, 1, :request) RETURNING event_id;
