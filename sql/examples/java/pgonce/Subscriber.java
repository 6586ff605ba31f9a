package pgonce;

import static pgonce.Database.rows;

import java.sql.Connection;
import java.util.List;

/** A subscriber of a topic. Each method is one call; {@link Outbox} calls them in a loop. lease, after: seconds. */
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

    /** payload and headers: JSON text, byte for byte as emitted; token: of the batch. */
    public record Event(long token, long id, int attempt, String deliveryKey, String orderKey, String payload, String headers) {}

    /** The state of an event after a nack. */
    public record Nacked(long id, int attempt, boolean dead) {}

    public record Dead(long id, int attempts, String kind, String error, String orderKey, String payload, String headers) {}

    /** Not to be repeated: if the answer is lost, its events wait for the lease, and a repeat takes other events. */
    public List<Event> take(Connection connection, int max, Double lease) {
        return rows(connection, TAKE, row -> new Event(row.getLong("token"), row.getLong("event_id"), row.getInt("attempt"),
                row.getString("delivery_key"), row.getString("order_key"), row.getString("payload"), row.getString("headers")),
                topic, name, max, lease);
    }

    /** ids: null: all events that are left in the batch; an empty list: none. Returns how many were acked. */
    public int ack(Connection connection, long token, List<Long> ids) {
        return rows(connection, ACK, row -> row.getInt(1), topic, name, token, ids).get(0);
    }

    /** kind: a word to count failures by; "released" counts no attempt, "never" is dead at once. */
    public List<Nacked> nack(Connection connection, long token, String error, String kind, Double after, List<Long> ids) {
        return rows(connection, NACK, row -> new Nacked(row.getLong("event_id"), row.getInt("attempt"), row.getBoolean("dead")),
                topic, name, token, ids, error, kind, Lease.storableWait(after));
    }

    public Void extend(Connection connection, long token, Double lease) {
        rows(connection, EXTEND, row -> null, topic, name, token, lease);
        return null;
    }

    /** The dead letters, for operators. */
    public List<Dead> dead(Connection connection, int max) {
        return rows(connection, DEAD, row -> new Dead(row.getLong("event_id"), row.getInt("attempts"), row.getString("kind"),
                row.getString("error"), row.getString("order_key"), row.getString("payload"), row.getString("headers")),
                topic, name, max);
    }

    /** For operators: makes dead letters due again, of ids or (null) of all, by died_at. Returns how many. */
    public int redrive(Connection connection, int max, List<Long> ids) {
        return rows(connection, REDRIVE, row -> row.getInt(1), topic, name, max, ids).get(0);
    }
}
