package pgonce;

import static pgonce.Database.rows;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The right to work on a key. Each method that takes a connection is one call, in the connection's transaction if any.
 * state and results are JSON text.
 */
public record Lease(String scope, String key, long token, int attempt, String recoveryPoint, String state, double seconds) {
    // A longer wait is cut to one day: a Retry-After may have the wrong unit, or a date from a clock that is wrong.
    private static final double LONGEST_WAIT = 86_400;
    private static final String STEP = """
            SELECT done, result, attempted, derived_key, extract(epoch FROM clock_timestamp() - first_at)::float8 AS age
              FROM once.key_step(?, ?, ?, ?, on_abort => ?::json)""";
    private static final String STEP_DONE = """
            SELECT recorded, result
              FROM once.key_step_done(?, ?, ?, ?, ?::json, on_complete => ?::json, on_abort => ?::json)""";
    private static final String ADVANCE = "SELECT once.key_advance(?, ?, ?, ?, ?::json)";
    private static final String COMPLETE = """
            SELECT ARRAY(SELECT unnest(ARRAY[h.key, h.value]) FROM json_each_text(?::json) h) AS header_list
              FROM once.key_complete(?, ?, ?, ?, ?::json, ?::json)""";
    private static final String ABORT = """
            SELECT ARRAY(SELECT unnest(ARRAY[h.key, h.value]) FROM json_each_text(?::json) h) AS header_list
              FROM once.key_abort(?, ?, ?, ?, ?::json, ?::json)""";
    private static final String RELEASE = "SELECT once.key_release(?, ?, ?, ?, make_interval(secs => ?))";
    private static final String PARK = "SELECT once.key_park(?, ?, ?, ?)";
    private static final String EXTEND = "SELECT once.key_extend(?, ?, ?, make_interval(secs => ?))";

    /**
     * A foreign call. attempted: earlier attempts that began the step and recorded no end; age: seconds since the
     * step first began.
     */
    public record Step(boolean done, String result, int attempted, String derivedKey, double age) {}

    /** The end of a foreign call. recorded: whether this record is the first; result: of the first. */
    public record StepEnd(boolean recorded, String result) {}

    /**
     * One transaction: moves the recovery point and calls writes. Repeated until its COMMIT is answered.
     * AlreadyDone: an earlier COMMIT was carried out, and nothing is written again; then Key.run continues.
     * Only the same point with the same state is a repeat. So make the ids of the state before you call phase.
     */
    public void phase(Database database, String point, String state, Database.Work<?> writes) {
        database.repeatedTransaction(connection -> {
            advance(connection, point, state);
            return writes.run(connection);
        });
    }

    /** Like phase, for the last writes: one of them is complete or abort, whose AlreadyDone undoes the others. */
    public <T> T lastPhase(Database database, Database.Work<T> writes) {
        return database.repeatedTransaction(writes);
    }

    /** Records that a foreign call begins; commit before the call. onAbort: the event that undoes the call, or null. */
    public Step step(Connection connection, String name, String onAbort) {
        List<Step> step = rows(connection, STEP, row -> new Step(row.getBoolean("done"), row.getString("result"),
                row.getInt("attempted"), row.getString("derived_key"), row.getDouble("age")),
                scope, key, token, name, onAbort);
        Database.LOG.log(Level.DEBUG, "step " + name + " begun");
        return step.get(0);
    }

    /** Records that a foreign call ended. */
    public StepEnd stepDone(Connection connection, String name, String result) {
        return stepDone(connection, name, result, null, null);
    }

    /** Also registers events for complete or abort: {"topic": ..., "payload": ..., "order_key": ...}, or null. */
    public StepEnd stepDone(Connection connection, String name, String result, String onComplete, String onAbort) {
        List<StepEnd> done = rows(connection, STEP_DONE, row -> new StepEnd(row.getBoolean("recorded"), row.getString("result")),
                scope, key, token, name, result, onComplete, onAbort);
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
        return complete(connection, status, body, null);
    }

    /** Stores the answer with headers: JSON text, an object whose values are texts. */
    public Answer complete(Connection connection, int status, String body, String headers) {
        return finish(connection, COMPLETE, status, body, headers);
    }

    /** Stores the answer of a final failure; emits the steps' on_abort events. */
    public Answer abort(Connection connection, int status, String body) {
        return abort(connection, status, body, null);
    }

    public Answer abort(Connection connection, int status, String body, String headers) {
        return finish(connection, ABORT, status, body, headers);
    }

    private Answer finish(Connection connection, String sql, int status, String body, String headers) {
        Map<String, String> sent = rows(connection, sql, Lease::headersOf, headers, scope, key, token, status, body, headers).get(0);
        Database.LOG.log(Level.DEBUG, "completed");
        return new Answer(status, body, sent);
    }

    /** Reads the column header_list, in which names and values alternate. */
    static Map<String, String> headersOf(ResultSet row) throws SQLException {
        String[] list = (String[]) row.getArray("header_list").getArray();
        Map<String, String> headers = new LinkedHashMap<>();
        for (int i = 0; i < list.length; i += 2) headers.put(list[i], list[i + 1]);
        return headers;
    }

    /** Gives the key back for a retry. after: the least seconds until then (at most a day), or null. */
    public Void release(Connection connection, String error, Double after) {
        return ask(connection, RELEASE, scope, key, token, storable(error), storableWait(after));
    }

    public Void park(Connection connection, String reason) {
        return ask(connection, PARK, scope, key, token, storable(reason));
    }

    public Void extend(Connection connection) {
        return extend(connection, null);
    }

    /** Extends the lease from now; seconds: its length, or null for the scope's. */
    public Void extend(Connection connection, Double seconds) {
        return ask(connection, EXTEND, scope, key, token, seconds);
    }

    private static Void ask(Connection connection, String sql, Object... values) {
        rows(connection, sql, row -> null, values);
        return null;
    }

    /** A wait in seconds that the server accepts and that blocks nothing for long: above 0, at most LONGEST_WAIT. */
    static Double storableWait(Double seconds) {
        if (seconds == null) return null;
        return seconds > 1e-6 ? Math.min(seconds, LONGEST_WAIT) : 1e-6;
    }

    /** A text that the server accepts: not empty, at most 1000 characters, no NUL. */
    static String storable(String text) {
        String kept = String.valueOf(text).replace("\0", "");
        if (kept.isEmpty()) return "no reason given";
        return kept.substring(0, kept.offsetByCodePoints(0, Math.min(1000, kept.codePointCount(0, kept.length()))));
    }
}
