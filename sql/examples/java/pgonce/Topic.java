package pgonce;

import java.sql.Connection;

/** A topic; call emit in the transaction of the writes that the event reports. */
public record Topic(String name) {
    private static final String EMIT = """
            SELECT event_id, emitted
              FROM once.outbox_emit(?, ?::json, order_key => ?, dedupe_key => ?, headers => ?::json,
                                    delay => make_interval(secs => ?))""";

    /** emitted: false if id is an earlier event with this dedupeKey, within the topic's dedupe_for. */
    public record Emitted(long id, boolean emitted) {}

    /** payload: JSON text; orderKey may be null. */
    public Emitted emit(Connection connection, String payload, String orderKey) {
        return emit(connection, payload, orderKey, null, null, null);
    }

    /** null: the server's default. headers: JSON text, an object; delay: seconds. */
    public Emitted emit(Connection connection, String payload, String orderKey, String dedupeKey, String headers, Double delay) {
        return Database.rows(connection, EMIT, row -> new Emitted(row.getLong("event_id"), row.getBoolean("emitted")),
                name, payload, orderKey, dedupeKey, headers, delay).get(0);
    }
}
