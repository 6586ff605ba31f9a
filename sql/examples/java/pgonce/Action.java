package pgonce;

import java.sql.Connection;
import java.util.List;

/**
 * Work on one row, under a lease, by a worker that may die half-way.
 *
 * <p>Claim and commit; do the work; finish, as the first call of the transaction of the work's writes. After a failure:
 * release. If the holder dies, the janitor reverts the row. LeaseLost: delete what you made outside the database.
 */
public record Action(String machine, String id, long token, double seconds) {
    private static final String CLAIM = """
            SELECT outcome, token, status, version, extract(epoch FROM lease_left)::float8 AS lease_left,
                   extract(epoch FROM retry_after)::float8 AS retry_after
              FROM once.action_claim(?, ?::text, ?, requester => ?, lease => make_interval(secs => ?), holder => ?, version => ?)""";
    private static final String EXTEND = """
            SELECT extract(epoch FROM lease_left)::float8, cancelling
              FROM once.action_extend(?, ?::text, ?, make_interval(secs => ?))""";
    private static final String FINISH = "SELECT outcome, status, version FROM once.action_finish(?, ?::text, ?, ?::json)";
    private static final String RELEASE = "SELECT status, version FROM once.action_release(?, ?::text, ?, ?)";

    /**
     * outcome: claimed, in_progress, cancelling, refused, not_found, unclaimed. action: null if not claimed. status,
     * version: of the row, null if the claim did not read it. retryAfter: seconds.
     */
    public record Claimed(String outcome, Action action, String status, Long version, double retryAfter) {}

    /** cancelling: roll back, release, tear down. */
    public record Extended(double seconds, boolean cancelling) {}

    /** outcome: finished, or cancelling (nothing changed). */
    public record Finished(String outcome, String status, Long version) {}

    public record Released(String status, Long version) {}

    public static Claimed claim(Connection connection, String machine, String id, String step, String requester) {
        return claim(connection, machine, id, step, requester, null, null, null);
    }

    /** null: the server's default. A claim that may be repeated needs a holder: a random UUID for each attempt. */
    public static Claimed claim(Connection connection, String machine, String id, String step, String requester,
            Double lease, String holder, Long version) {
        return Database.rows(connection, CLAIM, row -> {
            boolean ours = row.getString("token") != null;
            return new Claimed(row.getString("outcome"),
                    ours ? new Action(machine, id, row.getLong("token"), row.getDouble("lease_left")) : null,
                    row.getString("status"), row.getObject("version", Long.class), row.getDouble("retry_after"));
        }, machine, id, step, requester, lease, holder, version).get(0);
    }

    /** Extends the lease from now; seconds: its length, or null for the step's. */
    public Extended extend(Connection connection, Double seconds) {
        return ask(connection, EXTEND, row -> new Extended(row.getDouble(1), row.getBoolean(2)), seconds);
    }

    /** patch: JSON text, other columns to set, or null. */
    public Finished finish(Connection connection, String patch) {
        return ask(connection, FINISH,
                row -> new Finished(row.getString(1), row.getString(2), row.getObject(3, Long.class)), patch);
    }

    /** Puts the row into the revert status of its claim state. */
    public Released release(Connection connection, String error) {
        return ask(connection, RELEASE, row -> new Released(row.getString(1), row.getObject(2, Long.class)), error);
    }

    private <T> T ask(Connection connection, String sql, Database.Row<T> row, Object value) {
        List<T> rows = Database.rows(connection, sql, row, machine, id, token, value);
        return rows.get(0);
    }
}
