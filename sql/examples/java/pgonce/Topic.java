package pgonce;

import java.sql.Connection;

/** Where events are emitted, in the transaction of the writes that they tell of. */
public record Topic(String name) {
    private static final String EMIT = """
            SELECT event_id, emitted
              FROM once.outbox_emit(?, ?::json, order_key => ?, dedupe_key => ?, headers => ?::json,
                                    delay => make_interval(secs => ?))""";

    /** emitted: false where this dedupeKey came within the topic's dedupe_for; id is the first one's. */
    public record Emitted(long id, boolean emitted) {}

    /** payload: JSON text; orderKey may be null. */
    public Emitted emit(Connection connection, String payload, String orderKey) {
        return emit(connection, payload, orderKey, null, null, null);
    }

    /** What is null is not given. headers: JSON text, an object; delay: seconds. */
    public Emitted emit(Connection connection, String payload, String orderKey, String dedupeKey, String headers, Double delay) {
        return Database.rows(connection, EMIT, row -> new Emitted(row.getLong("event_id"), row.getBoolean("emitted")),
                name, payload, orderKey, dedupeKey, headers, delay).get(0);
    }
}
