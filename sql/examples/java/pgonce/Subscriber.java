package pgonce;

import static pgonce.Database.rows;

import java.sql.Connection;
import java.util.List;

/** Who gets a topic's events. Each method is one call; {@link Outbox} is the loop over them. lease, after: seconds. */
public record Subscriber(String topic, String name) {
    private static final String TAKE = """
            SELECT token, event_id, attempt, delivery_key, order_key, payload, headers
              FROM once.outbox_take(?, ?, ?, make_interval(secs => ?))""";
    private static final String ACK = "SELECT acked FROM once.outbox_ack(?, ?, ?, ?::bigint[])";
    private static final String NACK = """
            SELECT event_id, attempt, dead
              FROM once.outbox_nack(?, ?, ?, ?::bigint[], error => ?, kind => ?, retry_after => make_interval(secs => ?))""";
    private static final String EXTEND = "SELECT once.outbox_extend(?, ?, ?, make_interval(secs => ?))";
    private static final String DEAD = """
            SELECT event_id, attempts, kind, error, order_key, payload, headers FROM once.outbox_dead(?, ?, ?)""";
    private static final String REDRIVE = "SELECT once.outbox_redrive(?, ?, ?, ?::bigint[])";

    /** payload and headers are JSON text, byte for byte what was emitted; token is the batch's. */
    public record Event(long token, long id, int attempt, String deliveryKey, String orderKey, String payload, String headers) {}

    /** What became of an event that was not delivered. */
    public record Nacked(long id, int attempt, boolean dead) {}

    public record Dead(long id, int attempts, String kind, String error, String orderKey, String payload, String headers) {}

    /** Not repeated: a take whose answer was lost waits for its lease, and a second one takes other events. */
    public List<Event> take(Connection connection, int max, Double lease) {
        return rows(connection, TAKE, row -> new Event(row.getLong("token"), row.getLong("event_id"), row.getInt("attempt"),
                row.getString("delivery_key"), row.getString("order_key"), row.getString("payload"), row.getString("headers")),
                topic, name, max, lease);
    }

    /** Without ids: all that the batch still holds. Returns how many were acked. */
    public int ack(Connection connection, long token, Long... ids) {
        return rows(connection, ACK, row -> row.getInt(1), topic, name, token, given(ids)).get(0);
    }

    /** kind: a word to count failures by; "released" counts no attempt, "never" is dead at once. */
    public List<Nacked> nack(Connection connection, long token, String error, String kind, Double after, Long... ids) {
        return rows(connection, NACK, row -> new Nacked(row.getLong("event_id"), row.getInt("attempt"), row.getBoolean("dead")),
                topic, name, token, given(ids), error, kind, Lease.storableWait(after));
    }

    public Void extend(Connection connection, long token, Double lease) {
        rows(connection, EXTEND, row -> null, topic, name, token, lease);
        return null;
    }

    /** For operators: what will not be tried again. */
    public List<Dead> dead(Connection connection, int max) {
        return rows(connection, DEAD, row -> new Dead(row.getLong("event_id"), row.getInt("attempts"), row.getString("kind"),
                row.getString("error"), row.getString("order_key"), row.getString("payload"), row.getString("headers")),
                topic, name, max);
    }

    /** For operators: the dead ones named, or without ids the oldest, are tried again. Returns how many. */
    public int redrive(Connection connection, int max, Long... ids) {
        return rows(connection, REDRIVE, row -> row.getInt(1), topic, name, max, given(ids)).get(0);
    }

    private static Long[] given(Long[] ids) {
        return ids.length == 0 ? null : ids;
    }
}
