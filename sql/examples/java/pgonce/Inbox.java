package pgonce;

import java.sql.Connection;

/**
 * Messages from outside, each handled once. scope: the consumer's name.
 *
 * <p>In the handler's own transaction: accept, the handler's writes, record. A duplicate gets the first message's
 * verdict. If the first handler is still at work, the duplicate waits for it (at most lock_timeout, then Conflict).
 */
public record Inbox(String scope) {
    private static final String ACCEPT = "SELECT accepted, verdict FROM once.inbox_accept(?, ?, make_interval(secs => ?))";
    private static final String RECORD = "SELECT once.inbox_record(?, ?, ?::json)";

    /** accepted: false for a duplicate; verdict: the recorded JSON text, for a duplicate. */
    public record Accepted(boolean accepted, String verdict) {}

    public Accepted accept(Connection connection, String messageId) {
        return accept(connection, messageId, null);
    }

    /** ttl: seconds after which the message counts as new. */
    public Accepted accept(Connection connection, String messageId, Double ttl) {
        return Database.rows(connection, ACCEPT, row -> new Accepted(row.getBoolean(1), row.getString(2)),
                scope, messageId, ttl).get(0);
    }

    /** Records the verdict (JSON text) that each duplicate gets. */
    public Void record(Connection connection, String messageId, String verdict) {
        Database.rows(connection, RECORD, row -> null, scope, messageId, verdict);
        return null;
    }
}
