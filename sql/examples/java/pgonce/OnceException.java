package pgonce;

import java.sql.SQLException;
import java.sql.SQLTransientConnectionException;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/**
 * An error of the database or its connection, a class for each reaction of a caller; the driver's error is the cause.
 *
 * <p>An expected outcome (somebody else holds the key, the answer is a replay) is no error. Errors are told
 * apart by SQLSTATE, never by their text.
 */
public class OnceException extends RuntimeException {
    private final transient String hint;

    protected OnceException(SQLException cause) {
        super(messageOf(cause), cause);
        hint = said(cause) == null ? null : said(cause).getHint();
    }

    /** ON001: the lease is not yours any more. Stop, and write nothing. */
    public static class LeaseLost extends OnceException {
        LeaseLost(SQLException cause) { super(cause); }
    }

    /** ON002: fix the program, or the machine's definition. */
    public static class IllegalTransition extends OnceException {
        IllegalTransition(SQLException cause) { super(cause); }
    }

    /** ON003: the faults are the lines of the server's DETAIL. */
    public static class InvalidDefinition extends OnceException {
        InvalidDefinition(SQLException cause) { super(cause); }
    }

    /** ON004: start the janitor before the service. */
    public static class UncoveredClaimState extends OnceException {
        UncoveredClaimState(SQLException cause) { super(cause); }
    }

    /** ON005: refund and clean up first. */
    public static class TeardownIncomplete extends OnceException {
        TeardownIncomplete(SQLException cause) { super(cause); }
    }

    /** ON006: an earlier transaction has made this call: roll back, continue after the call (Key.run claims again). */
    public static class AlreadyDone extends OnceException {
        /** Whether that transaction may have been an earlier try of this Database.call, whose answer was lost. */
        boolean repeated;

        AlreadyDone(SQLException cause) { super(cause); }
    }

    /** ON007: this database is the wrong shard. Nothing was done. Check the separator, number and order of shards. */
    public static class WrongShard extends OnceException {
        WrongShard(SQLException cause) { super(cause); }
    }

    /** 22...: the program passed a wrong argument. */
    public static class InvalidArgument extends OnceException {
        InvalidArgument(SQLException cause) { super(cause); }
    }

    /** A race was lost, and the transaction is rolled back for sure: run it again. */
    public static class Conflict extends OnceException {
        Conflict(SQLException cause) { super(cause); }
    }

    /** The database is unreachable. The last statement may have been carried out, also a COMMIT. */
    public static class Unavailable extends OnceException {
        Unavailable(SQLException cause) { super(cause); }
    }

    public static OnceException of(SQLException cause) {
        if (cause instanceof SQLTransientConnectionException) return new Unavailable(cause); // a pool has no connection left
        String state = cause.getSQLState() == null ? "" : cause.getSQLState();
        return switch (state) {
            case "ON001" -> new LeaseLost(cause);
            case "ON002" -> new IllegalTransition(cause);
            case "ON003" -> new InvalidDefinition(cause);
            case "ON004" -> new UncoveredClaimState(cause);
            case "ON005" -> new TeardownIncomplete(cause);
            case "ON006" -> new AlreadyDone(cause);
            case "ON007" -> new WrongShard(cause);
            // Serialization failure, deadlock, lock not available.
            case "40001", "40P01", "55P03" -> new Conflict(cause);
            // Completion unknown; shutdown, crash, startup; idle for too long; no connection left; unknown database.
            case "40003", "57P01", "57P02", "57P03", "57P05", "25P03", "53300", "3D000" -> new Unavailable(cause);
            default -> {
                if (state.startsWith("08")) yield new Unavailable(cause);
                yield state.startsWith("22") ? new InvalidArgument(cause) : new OnceException(cause);
            }
        };
    }

    public String sqlState() {
        return ((SQLException) getCause()).getSQLState();
    }

    /** Whether workers end, since waiting cannot help, as after a missing object or right, or a wrong argument. */
    public boolean isLasting() {
        return sqlState() == null ? getClass() == OnceException.class : sqlState().matches("(22|3F|42)...");
    }

    /** The server's HINT, or null. */
    public String hint() {
        return hint;
    }

    private static String messageOf(SQLException cause) {
        ServerErrorMessage said = said(cause);
        if (said == null) return cause.getMessage();
        return said.getHint() == null ? said.getMessage() : said.getMessage() + " (" + said.getHint() + ")";
    }

    private static ServerErrorMessage said(SQLException cause) {
        return cause instanceof PSQLException error ? error.getServerErrorMessage() : null;
    }
}
