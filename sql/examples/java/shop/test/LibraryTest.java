package shop.test;

import static pgonce.Database.rows;
import static shop.test.Check.equal;
import static shop.test.Check.isTrue;
import static shop.test.Check.newKey;
import static shop.test.Check.raises;
import static shop.test.Check.scalar;
import static shop.test.Check.select;

import java.sql.SQLException;
import java.sql.SQLTransientConnectionException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.logging.Filter;
import java.util.logging.Logger;
import pgonce.Answer;
import pgonce.Database;
import pgonce.Key;
import pgonce.Lease;
import pgonce.OnceException;

/** The library (pgonce) by itself: errors by SQLSTATE, transactions, bytes. */
final class LibraryTest {
    private static final Database DATABASE = Database.at(Check.URL);

    private LibraryTest() {}

    static void run() {
        Check.test("each SQLSTATE is a class of its own", LibraryTest::classes);
        Check.test("the server raises them", LibraryTest::server);
        Check.test("a database that is away is Unavailable", LibraryTest::away);
        Check.test("a transaction that lost a race is run again", LibraryTest::lostRace);
        for (String end : List.of("phase", "advance", "complete", "abort")) {
            Check.test("a phase whose COMMIT was not answered is run again and commits once: " + end, () -> lostCommit(end));
        }
        Check.test("a request that finds another lease lost gives its own key back", LibraryTest::otherLease);
        Check.test("a request whose COMMIT was not answered is answered although its repeat meets a row of its own",
                LibraryTest::ownRow);
        Check.test("a client waits longer after each failure", LibraryTest::waits);
        Check.test("a client waits at most a day", LibraryTest::waitsADay);
        Check.test("an error after the answer was committed is logged, and the answer is returned in the last round, too",
                LibraryTest::errorAfterTheAnswer);
        Check.test("what was stored comes back byte for byte", LibraryTest::bytes);
        Check.test("the key of a header may be quoted or bare", LibraryTest::header);
        Check.test("no two users share a key", LibraryTest::users);
    }

    private static void classes() {
        Map<String, Class<? extends OnceException>> expected = new HashMap<>(Map.of(
                "ON001", OnceException.LeaseLost.class, "ON002", OnceException.IllegalTransition.class,
                "ON003", OnceException.InvalidDefinition.class, "ON004", OnceException.UncoveredClaimState.class,
                "ON005", OnceException.TeardownIncomplete.class, "ON006", OnceException.AlreadyDone.class,
                "ON007", OnceException.WrongShard.class));
        expected.putAll(Map.of("40001", OnceException.Conflict.class, "40P01", OnceException.Conflict.class,
                "55P03", OnceException.Conflict.class, "57P01", OnceException.Unavailable.class,
                "08006", OnceException.Unavailable.class, "22023", OnceException.InvalidArgument.class,
                "23505", OnceException.class));
        expected.forEach((state, type) -> {
            String raise = "DO $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '" + state + "', HINT = 'do this'; END$$";
            OnceException raised = raises(type, () -> DATABASE.transaction(1, connection -> rows(connection, raise, row -> null)));
            equal(raised.sqlState() + " " + raised.hint(), state + " do this");
        });
    }

    private static void server() {
        Lease finished = new Key(DATABASE, "test", newKey()).claim("{}").lease();
        DATABASE.call(connection -> finished.complete(connection, 200, "{}"));
        raises(OnceException.AlreadyDone.class, () -> DATABASE.call(connection -> finished.complete(connection, 200, "{}")));
        raises(OnceException.AlreadyDone.class, () -> DATABASE.call(connection -> finished.complete(connection, 200, "[]")));
        Lease released = new Key(DATABASE, "test", newKey()).claim("{}").lease();
        DATABASE.call(connection -> released.release(connection, "an error", 0.0)); // sent as 1e-6: 0 is refused
        raises(OnceException.LeaseLost.class, () -> DATABASE.transaction(connection -> released.advance(connection, "paid", null)));
        raises(OnceException.InvalidArgument.class, () -> new Key(DATABASE, "test", newKey()).claim("no json"));
    }

    private static void away() {
        Database nobody = Database.at("postgresql://shop@127.0.0.1:1/shop");
        raises(OnceException.Unavailable.class, () -> nobody.call(2, connection -> rows(connection, "SELECT 1", row -> null)));
        // The error of a pool that has no connection left.
        equal(OnceException.of(new SQLTransientConnectionException("no")).getClass(), OnceException.Unavailable.class);
        raises(IllegalArgumentException.class, () -> Database.at(Check.URL + "?sslmode=verify-full"));
    }

    private static void lostRace() {
        String key = newKey();
        scalar("INSERT INTO orders (idempotency_key, customer, item, amount_cents) VALUES (?, 'ada', 'tea', 1) RETURNING 1", key);
        int[] runs = {0};
        DATABASE.transaction(connection -> {
            connection.createStatement().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
            rows(connection, "SELECT 1 FROM orders", row -> null); // takes the snapshot
            if (runs[0]++ == 0) scalar("UPDATE orders SET item = 'milk' WHERE idempotency_key = ? RETURNING 1", key);
            String update = "UPDATE orders SET amount_cents = amount_cents + 1 WHERE idempotency_key = ? RETURNING 1";
            return rows(connection, update, row -> null, key);
        });
        equal(runs[0], 2);
        equal(scalar("SELECT amount_cents FROM orders WHERE idempotency_key = ?", key), "2");
    }

    /** Each run of the phase inserts another uuid, so that no constraint of the table would refuse a second row. */
    private static void lostCommit(String end) throws Exception {
        String key = newKey();
        Lease lease = new Key(DATABASE, "test", key).claim("{}").lease();
        List<String> ids = new ArrayList<>();
        String insert = "INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents)"
                + " VALUES (?::uuid, ?, 'ada', 'tea', 1) RETURNING 1";
        Database.Work<?> writes = connection -> {
            ids.add(newKey());
            return rows(connection, insert, row -> null, ids.get(ids.size() - 1), key);
        };
        Database.Work<?> writesAndEnd = connection -> {
            writes.run(connection);
            return switch (end) {
                case "advance" -> lease.advance(connection, "created", "{}");
                case "complete" -> lease.complete(connection, 201, "{}");
                default -> lease.abort(connection, 402, "{}");
            };
        };
        try (Proxy proxy = new Proxy(Check.URL)) {
            Database through = Database.at(proxy.url());
            proxy.cut("COMMIT", 1, true, false);
            raises(OnceException.AlreadyDone.class, () -> {
                if (end.equals("phase")) lease.phase(through, "created", "{}", writes);
                else lease.lastPhase(through, writesAndEnd);
            });
            equal(proxy.struck(), true);
        }
        equal(ids.size(), end.equals("phase") ? 1 : 2);
        equal(select("SELECT order_id FROM orders WHERE idempotency_key = ?", key), List.of(List.of(ids.get(0))));
    }

    private static void otherLease() {
        Lease other = new Key(DATABASE, "test", newKey()).claim("{}").lease();
        DATABASE.call(connection -> other.release(connection, "an error", null));
        String key = newKey();
        Answer answer = new Key(DATABASE, "test", key).run("{}", lease -> {
            DATABASE.call(connection -> other.advance(connection, "paid", null));
            return null;
        });
        equal(answer.status() + " " + scalar("SELECT status FROM once.key_get('test', ?)", key), "409 released");
    }

    private static void ownRow() throws Exception {
        String key = newKey();
        String insert = "INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents)"
                + " VALUES (?::uuid, 'own row', 'ada', 'tea', 1) RETURNING 1";
        try (Proxy proxy = new Proxy(Check.URL)) {
            Database through = Database.at(proxy.url());
            proxy.cut("COMMIT", 1, true, false);
            Answer answer = new Key(DATABASE, "test", key).run("{}", lease -> lease.lastPhase(through, connection -> {
                rows(connection, insert, row -> null, key);
                return lease.complete(connection, 201, "{}");
            }));
            equal(answer.status() + " " + proxy.struck(), "201 true");
        }
    }

    private static void waits() {
        Key key = new Key(DATABASE, "test", newKey());
        for (int attempt = 1; attempt <= 6; attempt++) {
            Lease lease = key.claim("{}").lease();
            DATABASE.call(connection -> lease.release(connection, "died", null));
        }
        Answer answer = key.run("{}", lease -> {
            throw new Key.Retry("the bank is away", null, null);
        });
        int wait = Integer.parseInt(answer.headers().get("Retry-After"));
        isTrue("a wait of " + wait + " s", wait >= 32 && wait <= 64);
    }

    private static void waitsADay() {
        String key = newKey();
        Answer answer = new Key(DATABASE, "test", key).run("{}", lease -> {
            throw new Key.Retry("the bank is away", 1e9, null);
        });
        equal(answer.headers().get("Retry-After"), "86400");
        equal(scalar("SELECT look_at <= clock_timestamp() + interval '1 day' FROM once.key WHERE key = ?", key), "t");
    }

    private static void errorAfterTheAnswer() {
        List<String> logged = new ArrayList<>();
        Logger logger = Logger.getLogger("pgonce");
        Filter before = logger.getFilter();
        logger.setFilter(line -> !logged.add(line.getMessage() + line.getThrown()));
        int[] rounds = {0};
        try {
            Answer answer = new Key(DATABASE, "test", newKey()).run("{}", lease -> {
                if (++rounds[0] < 3) throw OnceException.of(new SQLException("the database is away", "08006"));
                DATABASE.call(connection -> lease.complete(connection, 201, "{}"));
                DATABASE.call(connection -> rows(connection, "SELECT 1 / 0", row -> null));
                return null;
            });
            equal(rounds[0] + " " + answer.status(), "3 201");
        } finally {
            logger.setFilter(before);
        }
        isTrue("a warning of " + logged, logged.stream().anyMatch(line -> line.contains("division by zero")));
    }

    private static void bytes() {
        String stored = "{\"b\": 1.0,  \"a\": 12345678901234567890.10, \"b\":\"\\u00e9\"}";
        Key key = new Key(DATABASE, "test", newKey());
        Lease lease = key.claim("{}").lease();
        DATABASE.call(connection -> lease.advance(connection, "paid", stored));
        DATABASE.call(connection -> lease.release(connection, "an error", null));
        Lease second = key.claim("{}").lease();
        equal(second.recoveryPoint() + second.state() + second.attempt(), "paid" + stored + 2);
        Answer first = DATABASE.call(connection -> second.complete(connection, 201, stored, "{\"Location\":  \"/orders/1\"}"));
        equal(first, new Answer(201, stored, Map.of("Location", "/orders/1")));
        equal(key.claim("{}").answer(),
                new Answer(201, stored, Map.of("Location", "/orders/1", "Idempotent-Replayed", "true")));
    }

    private static void header() {
        String[][] pairs = {{"\"a b\"", "a b"}, {" a-b ", "a-b"}, {"\"a\\\"\\\\\"", "a\"\\"}, {"\"open", null},
            {"\"a\" b", null}, {"\"a\\b\"", null}, {"\"\"", null}, {"", null}, {null, null}, {"a\"b", null},
            {"k".repeat(256), null}};
        for (String[] pair : pairs) {
            Key.OfHeader read = Key.ofHeader("ada", pair[0]);
            equal(read.key(), pair[1] == null ? null : "ada/" + pair[1]);
            equal(read.answer() == null ? null : read.answer().status(), pair[1] == null ? 400 : null);
        }
    }

    private static void users() {
        String[][] pairs = {{"ada", "x/k"}, {"ada/x", "k"}, {"ada%2Fx", "k"}, {"ada%", "2Fx/k"}};
        Set<String> keys = new HashSet<>();
        for (String[] pair : pairs) keys.add(Key.ofHeader(pair[0], pair[1]).key());
        equal(keys.size(), pairs.length);
        for (String nobody : new String[] {null, "", " "}) equal(Key.ofHeader(nobody, "k").answer().status(), 401);
        // A key has 1 to 255 characters, with the user's name.
        equal(Key.ofHeader("ada", "k".repeat(251)).key(), "ada/" + "k".repeat(251));
        equal(Key.ofHeader("ada", "k".repeat(252)).answer().status(), 400);
    }
}
