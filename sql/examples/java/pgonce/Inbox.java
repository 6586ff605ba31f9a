package pgonce;

import java.sql.Connection;

/**
 * Messages from outside, each handled once. scope: the consumer's name.
 *
 * <p>In the handler's own transaction: accept, the handler's writes, record. A duplicate gets the first one's verdict,
 * and one that meets a handler still at work waits for it (lock_timeout bounds the wait: Conflict).
 */
public record Inbox(String scope) {
    private static final String ACCEPT = "SELECT accepted, verdict FROM once.inbox_accept(?, ?, make_interval(secs => ?))";
    private static final String RECORD = "SELECT once.inbox_record(?, ?, ?::json)";

    /** accepted: false where it was handled; verdict is what was recorded then (JSON text). */
    public record Accepted(boolean accepted, String verdict) {}

    public Accepted accept(Connection connection, String messageId) {
        return accept(connection, messageId, null);
    }

    /** ttl: seconds; after it the message counts as new. */
    public Accepted accept(Connection connection, String messageId, Double ttl) {
        return Database.rows(connection, ACCEPT, row -> new Accepted(row.getBoolean(1), row.getString(2)),
                scope, messageId, ttl).get(0);
    }

    /** The verdict that each duplicate gets: JSON text. */
    public Void record(Connection connection, String messageId, String verdict) {
        Database.rows(connection, RECORD, row -> null, scope, messageId, verdict);
        return null;
    }
}
