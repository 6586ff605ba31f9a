SELECT event_id, emitted FROM once.outbox_emit('bench', :request);
