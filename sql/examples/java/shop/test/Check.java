package shop.test;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.Callable;
import pgonce.Database;

/**
 * Shared by the tests: checks, and a superuser's connections.
 *
 * <p>PG_ONCE_URL: the database as the role of the services; PG_ONCE_ADMIN_URL: the same as a superuser, for checks
 * and for faults; PG_ONCE_POOLER_URL: PG_ONCE_URL through PgBouncer in transaction mode (without it, no test of
 * PgBouncer runs).
 */
final class Check {
    interface Body {
        void run() throws Exception;
    }

    static final String URL = System.getenv("PG_ONCE_URL");
    static final String POOLER_URL = System.getenv("PG_ONCE_POOLER_URL");
    static final Database ADMIN = Database.at(System.getenv("PG_ONCE_ADMIN_URL"));
    private static int failures;
    private static int count;

    private Check() {}

    static void test(String name, Body body) {
        count++;
        long begin = System.nanoTime();
        try {
            body.run();
            System.out.printf("ok: %s (%d ms)%n", name, (System.nanoTime() - begin) / 1_000_000);
        } catch (Exception | AssertionError e) {
            failures++;
            System.out.println("FAILED: " + name);
            e.printStackTrace(System.out);
        }
    }

    /** Prints the counts; returns whether no test failed. */
    static boolean summary() {
        System.out.printf("%d tests, %d failed%n", count, failures);
        return failures == 0;
    }

    static void equal(Object found, Object expected) {
        if (!Objects.equals(found, expected)) throw new AssertionError("found " + found + ", expected " + expected);
    }

    static void isTrue(String what, boolean holds) {
        if (!holds) throw new AssertionError("not so: " + what);
    }

    static <E extends Throwable> E raises(Class<E> type, Body body) {
        try {
            body.run();
        } catch (Throwable raised) {
            if (raised.getClass() == type) return type.cast(raised);
            throw new AssertionError("expected " + type, raised);
        }
        throw new AssertionError("nothing was raised, expected " + type);
    }

    /** Waits until look returns neither null nor false; returns that value. */
    static <T> T until(String what, Callable<T> look) throws Exception {
        for (long end = System.nanoTime() + 30_000_000_000L; ; Thread.sleep(20)) {
            T found = look.call();
            if (found != null && !Boolean.FALSE.equals(found)) return found;
            isTrue(what + " within 30 s", System.nanoTime() < end);
        }
    }

    /** The rows, each a list of texts. */
    static List<List<String>> select(String sql, Object... values) {
        return ADMIN.call(1, connection -> Database.rows(connection, sql, row -> {
            List<String> columns = new ArrayList<>();
            for (int i = 1; i <= row.getMetaData().getColumnCount(); i++) columns.add(row.getString(i));
            return columns;
        }, values));
    }

    static String scalar(String sql, Object... values) {
        return select(sql, values).get(0).get(0);
    }

    static String newKey() {
        return UUID.randomUUID().toString();
    }

    /** The stored key of a key that ada sends. */
    static String stored(String key) {
        return "ada/" + key;
    }
}
