package pgonce;

import static pgonce.Database.rows;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.util.List;
import java.util.Map;

/**
 * The right to work on a key. Each method that takes a connection is one call, in its transaction if any.
 * state and results are JSON text.
 */
public record Lease(String scope, String key, long token, int attempt, String recoveryPoint, String state, double seconds) {
    private static final String STEP = """
            SELECT done, result, attempted, derived_key, extract(epoch FROM clock_timestamp() - first_at)::float8 AS age
              FROM once.key_step(?, ?, ?, ?, on_abort => ?::json)""";
    private static final String STEP_DONE = "SELECT result FROM once.key_step_done(?, ?, ?, ?, ?::json)";
    private static final String ADVANCE = "SELECT once.key_advance(?, ?, ?, ?, ?::json)";
    private static final String COMPLETE = "SELECT once.key_complete(?, ?, ?, ?, ?::json)";
    private static final String ABORT = "SELECT once.key_abort(?, ?, ?, ?, ?::json)";
    private static final String RELEASE = "SELECT once.key_release(?, ?, ?, ?, make_interval(secs => ?))";
    private static final String PARK = "SELECT once.key_park(?, ?, ?, ?)";
    private static final String EXTEND = "SELECT once.key_extend(?, ?, ?)";

    /**
     * A foreign call. attempted: beginnings by earlier attempts whose end nobody recorded; age: seconds since
     * the first beginning.
     */
    public record Step(boolean done, String result, int attempted, String derivedKey, double age) {}

    /**
     * One transaction: the recovery point moves, and writes makes the phase's own. Repeated until it is answered.
     * AlreadyDone: an earlier COMMIT was carried out, and nothing is written again; Key.run goes on behind it.
     * Only the same point with the same state is a repeat. So make ids that the state holds before the phase.
     */
    public void phase(Database database, String point, String state, Database.Work<?> writes) {
        database.repeatedTransaction(connection -> {
            advance(connection, point, state);
            return writes.run(connection);
        });
    }

    /** The same for the last writes: they end with complete or abort, whose AlreadyDone undoes the others. */
    public <T> T lastPhase(Database database, Database.Work<T> writes) {
        return database.repeatedTransaction(writes);
    }

    /** Records that a foreign call begins. Commit it before the call. onAbort: the event that undoes it, or null. */
    public Step step(Connection connection, String name, String onAbort) {
        List<Step> step = rows(connection, STEP, row -> new Step(row.getBoolean("done"), row.getString("result"),
                row.getInt("attempted"), row.getString("derived_key"), row.getDouble("age")),
                scope, key, token, name, onAbort);
        Database.LOG.log(Level.DEBUG, "step " + name + " begun");
        return step.get(0);
    }

    /** Records that it ended. The first one wins; what is recorded comes back. */
    public String stepDone(Connection connection, String name, String result) {
        List<String> done = rows(connection, STEP_DONE, row -> row.getString("result"), scope, key, token, name, result);
        Database.LOG.log(Level.DEBUG, "step " + name + " done");
        return done.get(0);
    }

    /** Moves the recovery point, in the transaction of the phase's own writes. */
    public Void advance(Connection connection, String point, String state) {
        ask(connection, ADVANCE, scope, key, token, point, state);
        Database.LOG.log(Level.DEBUG, "advanced " + point);
        return null;
    }

    /** Stores the answer, in the transaction of the last writes. */
    public Answer complete(Connection connection, int status, String body) {
        ask(connection, COMPLETE, scope, key, token, status, body);
        Database.LOG.log(Level.DEBUG, "completed");
        return new Answer(status, body, Map.of());
    }

    /** Stores the answer of a failure that no retry mends; emits the steps' on_abort events. */
    public Answer abort(Connection connection, int status, String body) {
        ask(connection, ABORT, scope, key, token, status, body);
        return new Answer(status, body, Map.of());
    }

    /** Gives the key back for a retry. after: seconds, or null for at once. */
    public Void release(Connection connection, String error, Double after) {
        return ask(connection, RELEASE, scope, key, token, storable(error), after);
    }

    public Void park(Connection connection, String reason) {
        return ask(connection, PARK, scope, key, token, storable(reason));
    }

    public Void extend(Connection connection) {
        return ask(connection, EXTEND, scope, key, token);
    }

    private static Void ask(Connection connection, String sql, Object... values) {
        rows(connection, sql, row -> null, values);
        return null;
    }

    /** As the server takes it: not empty, not endless, no NUL. */
    static String storable(String text) {
        String kept = String.valueOf(text).replace("\0", "");
        if (kept.isEmpty()) return "no reason given";
        return kept.substring(0, kept.offsetByCodePoints(0, Math.min(1000, kept.codePointCount(0, kept.length()))));
    }
}
