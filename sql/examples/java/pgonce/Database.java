package pgonce;

import java.lang.System.Logger.Level;
import java.net.URI;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * Calls that are repeated until they are answered, transactions that are run again, and heartbeats.
 *
 * <p>source: any DataSource with autocommit connections; in production a pool. PgBouncer in transaction mode needs
 * prepareThreshold=0: a statement that one server connection has prepared is missing on the next.
 */
public record Database(DataSource source) {
    static final System.Logger LOG = System.getLogger("pgonce");

    @FunctionalInterface
    public interface Work<T> {
        T run(Connection connection) throws SQLException;
    }

    @FunctionalInterface
    public interface Row<T> {
        T of(ResultSet row) throws SQLException;
    }

    /** Extends a lease until close. */
    public interface Heartbeat extends AutoCloseable {
        @Override
        void close();
    }

    /** The database of a libpq URL, postgresql://user@host:port/database. For parameters pass your own DataSource. */
    public static Database at(String url) {
        URI uri = URI.create(url);
        if (uri.getUserInfo() == null || uri.getQuery() != null) {
            throw new IllegalArgumentException("the URL has no user, or it has parameters (?sslmode=...), which are not read:"
                    + " pass a DataSource of your own, such as PGSimpleDataSource with setUrl(\"jdbc:postgresql://...\")");
        }
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(new String[] {uri.getHost()});
        source.setPortNumbers(new int[] {uri.getPort() < 0 ? 5432 : uri.getPort()});
        source.setDatabaseName(uri.getPath().substring(1));
        String[] user = uri.getUserInfo().split(":", 2);
        source.setUser(user[0]);
        if (user.length > 1) source.setPassword(user[1]);
        source.setPrepareThreshold(0); // never a prepared statement, so PgBouncer may be in between
        source.setConnectTimeout(10);
        return new Database(source);
    }

    /** Runs a statement, returns its rows. ResultSet.getString gives json as the stored text, byte for byte. */
    public static <T> List<T> rows(Connection connection, String sql, Row<T> row, Object... values) {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                Object value = values[i] instanceof List<?> many ? connection.createArrayOf("bigint", many.toArray()) : values[i];
                statement.setObject(i + 1, value);
            }
            List<T> result = new ArrayList<>();
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) result.add(row.of(rows));
            }
            return result;
        } catch (SQLException error) {
            throw OnceException.of(error);
        }
    }

    /**
     * Runs one call of pg_once, again after Conflict and Unavailable. Only for calls that may be repeated: reads,
     * claims with a holder, and calls that present a token.
     */
    public <T> T call(Work<T> work) {
        return call(8, work);
    }

    public <T> T call(int tries, Work<T> work) {
        return again(tries, Database::isTransient, work);
    }

    /**
     * Runs work in one transaction, and again after 40001, 40P01 and 55P03, which roll back for sure. After a lost
     * connection it throws Unavailable, since the COMMIT may have been carried out. Lease.phase and Lease.lastPhase
     * repeat the transaction then, too: a token shows a repeat. Otherwise Key.run claims again.
     */
    public <T> T transaction(Work<T> work) {
        return transaction(5, work);
    }

    public <T> T transaction(int tries, Work<T> work) {
        return again(tries, e -> e instanceof OnceException.Conflict, inTransaction(work));
    }

    /** Like transaction, and again after a lost connection, too: a token in the transaction shows a repeat. */
    <T> T repeatedTransaction(Work<T> work) {
        return again(5, Database::isTransient, inTransaction(work));
    }

    private static <T> Work<T> inTransaction(Work<T> work) {
        return connection -> {
            connection.setAutoCommit(false);
            try {
                T result = work.run(connection);
                connection.commit();
                return result;
            } catch (SQLException | RuntimeException error) {
                try {
                    connection.rollback();
                } catch (SQLException gone) {
                    error.addSuppressed(gone); // after a lost connection the server rolls back
                }
                throw error;
            }
        };
    }

    /** Starts a thread that extends a lease every seconds / 3, until close, or until the lease is lost or finished. */
    public Heartbeat heartbeat(double seconds, Work<?> extend) {
        CountDownLatch over = new CountDownLatch(1);
        Thread thread = new Thread(() -> beat((long) (seconds * 1000 / 3), extend, over), "heartbeat");
        thread.setDaemon(true);
        thread.start();
        return () -> {
            over.countDown();
            try {
                thread.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        };
    }

    private void beat(long millis, Work<?> extend, CountDownLatch over) {
        try {
            while (!over.await(millis, TimeUnit.MILLISECONDS)) {
                try {
                    call(1, extend);
                } catch (OnceException.AlreadyDone e) {
                    return;
                } catch (OnceException.LeaseLost e) {
                    // The next write with the token throws LeaseLost, too, and its transaction rolls back.
                    LOG.log(Level.WARNING, "the lease is lost: {0}", e.getMessage());
                    return;
                } catch (OnceException e) {
                    LOG.log(Level.WARNING, "a heartbeat failed: {0}", e.getMessage());
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean isTransient(OnceException error) {
        return error instanceof OnceException.Conflict || error instanceof OnceException.Unavailable;
    }

    private <T> T again(int tries, Predicate<OnceException> worthIt, Work<T> work) {
        for (int failures = 1; ; failures++) {
            OnceException failure;
            try (Connection connection = source.getConnection()) {
                return work.run(connection);
            } catch (SQLException error) {
                failure = OnceException.of(error);
            } catch (OnceException error) {
                if (error instanceof OnceException.AlreadyDone done) done.repeated = failures > 1;
                failure = error;
            }
            if (failures >= tries || !worthIt.test(failure)) throw failure;
            pause(waitBefore(failures));
        }
    }

    /** Exponential backoff with full jitter, in ms: calls that failed together are not retried together. */
    static long waitBefore(int attempt) {
        return ThreadLocalRandom.current().nextLong(Math.min(2000, 50L << Math.min(attempt, 16)));
    }

    static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }
}
