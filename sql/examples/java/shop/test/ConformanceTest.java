package shop.test;

import static pgonce.Database.rows;
import static shop.test.Check.equal;
import static shop.test.Check.isTrue;

import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import pgonce.Database;
import pgonce.OnceException;
import pgonce.Shard;

/**
 * The cases that every language's client has to pass: sql/examples/conformance.json, which says how to read them.
 * PG_ONCE_CASES names that file if the tests do not run at the top of the clone. The server parses the JSON.
 */
final class ConformanceTest {
    private static final String CALLS = """
            SELECT c.it ->> 'case', coalesce(s.it ->> 'by', 'a'), s.it ->> 'call', s.it ->> 'of', s.it -> 'with', s.it ->> 'as',
                   CASE json_typeof(s.it -> 'gives') WHEN 'object' THEN json_build_array(s.it -> 'gives') ELSE s.it -> 'gives' END,
                   s.it ->> 'raises'
              FROM json_array_elements(?::json -> 'cases') WITH ORDINALITY c (it, place),
                   json_array_elements(c.it -> 'calls') WITH ORDINALITY s (it, place)
             ORDER BY c.place, s.place""";
    private static final String VECTORS = """
            SELECT v ->> 'routing', (v ->> 'shards')::int, (v ->> 'shard')::int, once.shard_of(v ->> 'routing', (v ->> 'shards')::int)
              FROM json_array_elements(?::json -> 'shard_of') v""";
    private static final Pattern PLACEHOLDER = Pattern.compile("\\$(\\w+)(?:\\.(\\w+))?");

    /** A call of a case; gives: a JSON array of rows, or null. */
    private record Call(String test, String by, String call, String of, String with, String as, String gives, String raises) {}

    /** A call's answer: the lease, action or batch for later calls (or null), and the rows. */
    record Said(Object handle, List<Map<String, Object>> rows) {}

    private static final Map<String, Connection> SESSIONS = new HashMap<>();
    private static Map<String, String> named;

    private final String id = Check.newKey();
    private final Map<String, Said> answers = new HashMap<>();
    private final Map<String, List<Database.Work<Said>>> sent = new HashMap<>(); // by session: its last transaction
    private final Set<String> open = new HashSet<>();

    static void run() throws Exception {
        Path file = Path.of(System.getenv().getOrDefault("PG_ONCE_CASES", "sql/examples/conformance.json"));
        String table = Files.readString(file);
        for (String name : List.of("a", "b", "operator", "later")) {
            SESSIONS.put(name, (name.length() == 1 ? Database.at(Check.URL) : Check.ADMIN).source().getConnection());
        }
        sql(SESSIONS.get("operator"), Files.readString(file.resolveSibling("conformance.sql")));
        sql(SESSIONS.get("later"), "SELECT set_config('once.fake_now', (clock_timestamp() + '1 year')::text, false)");
        Check.test("the shard of a routing value", () -> rows(SESSIONS.get("a"), VECTORS, row -> {
            equal(Shard.of(row.getString(1), row.getInt(2)), row.getInt(3));
            equal(row.getInt(4), row.getInt(3));
            return null;
        }, table));
        named = pairs("SELECT key, value FROM json_each_text(?::json -> 'sql')", table);
        Map<String, List<Call>> cases = new LinkedHashMap<>();
        rows(SESSIONS.get("a"), CALLS, row -> new Call(row.getString(1), row.getString(2), row.getString(3), row.getString(4),
                row.getString(5), row.getString(6), row.getString(7), row.getString(8)), table)
                .forEach(call -> cases.computeIfAbsent(call.test, test -> new ArrayList<>()).add(call));
        cases.forEach((name, calls) -> Check.test(name, () -> new ConformanceTest().pass(calls)));
        for (Connection session : SESSIONS.values()) session.close();
    }

    private void pass(List<Call> calls) throws SQLException {
        try {
            for (Call call : calls) {
                try {
                    make(call);
                } catch (SQLException | RuntimeException | AssertionError e) {
                    throw new AssertionError("in " + call, e);
                }
            }
        } finally {
            for (String by : open) end(by, "rollback");
        }
    }

    private void make(Call call) throws SQLException {
        Said said;
        try {
            said = send(call);
        } catch (OnceException refusal) {
            if (!refusal.sqlState().equals(call.raises)) throw refusal;
            return;
        }
        equal(null, call.raises);
        if (call.as != null) answers.put(call.as, said);
        if (call.gives != null) compare(said.rows, call.gives);
    }

    private Said send(Call call) throws SQLException {
        Connection connection = SESSIONS.get(call.by);
        switch (call.call) {
            case "begin" -> {
                connection.setAutoCommit(false);
                sent.put(call.by, new ArrayList<>());
                open.add(call.by);
                return null;
            }
            case "commit", "rollback" -> {
                end(call.by, call.call);
                open.remove(call.by);
                return null;
            }
            case "again" -> {
                return again(call.by);
            }
            default -> {
                Database.Work<Said> work = work(call);
                if (open.contains(call.by)) sent.get(call.by).add(work);
                return work.run(connection);
            }
        }
    }

    private Database.Work<Said> work(Call call) {
        if (named.containsKey(call.call)) return connection -> sql(connection, filled(named.get(call.call)));
        Map<String, String> with = pairs("SELECT key, value FROM json_each_text(?::json)", call.with);
        with.replaceAll((name, value) -> filled(value));
        if (call.call.equals("sql")) return connection -> sql(connection, with.get("text"));
        Conformance.Method method = Conformance.METHODS.get(call.call);
        isTrue("there is a call " + call.call, method != null);
        return connection -> method.call(connection, call.of == null ? null : answers.get(call.of).handle, new Conformance.With(with));
    }

    private Said again(String by) throws SQLException {
        Connection connection = SESSIONS.get(by);
        connection.setAutoCommit(false);
        boolean done = false;
        try {
            Said said = null;
            for (Database.Work<Said> work : sent.get(by)) said = work.run(connection);
            done = true;
            return said;
        } finally {
            end(by, done ? "commit" : "rollback");
        }
    }

    private static void end(String by, String how) throws SQLException {
        Connection connection = SESSIONS.get(by);
        if (how.equals("commit")) connection.commit();
        else connection.rollback();
        connection.setAutoCommit(true);
    }

    /** Replaces {@code $id} and {@code $name.field} in a text. */
    private String filled(String text) {
        return text == null ? null : PLACEHOLDER.matcher(text).replaceAll(this::put);
    }

    private String put(MatchResult found) {
        if (found.group(2) == null) return id;
        return String.valueOf(answers.get(found.group(1)).rows.get(0).get(found.group(2)));
    }

    private void compare(List<Map<String, Object>> found, String gives) {
        List<String> expected = rows(SESSIONS.get("operator"), "SELECT * FROM json_array_elements(?::json)",
                row -> row.getString(1), gives);
        equal(found.size(), expected.size());
        for (int place = 0; place < found.size(); place++) {
            Map<String, Object> row = found.get(place);
            pairs("SELECT key, value FROM json_each_text(?::json)", expected.get(place)).forEach((name, value) -> {
                Object is = row.get(name);
                if ("*".equals(value)) isTrue(name + " is there", is != null);
                else equal(name + ": " + is, name + ": " + filled(value));
            });
        }
    }

    private static Map<String, String> pairs(String sql, String json) {
        Map<String, String> pairs = new LinkedHashMap<>();
        Check.select(sql, json).forEach(pair -> pairs.put(pair.get(0), pair.get(1)));
        return pairs;
    }

    /** Runs a text of statements; returns the rows of the first, if any. */
    private static Said sql(Connection connection, String text) {
        try (Statement statement = connection.createStatement()) {
            List<Map<String, Object>> found = new ArrayList<>();
            if (statement.execute(text)) {
                ResultSet rows = statement.getResultSet();
                while (rows.next()) {
                    Map<String, Object> row = new HashMap<>();
                    for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++) {
                        row.put(rows.getMetaData().getColumnName(i), rows.getString(i));
                    }
                    found.add(row);
                }
            }
            return new Said(null, found);
        } catch (SQLException error) {
            throw OnceException.of(error);
        }
    }

    /** The fields of a record and of the records inside it, named in snake_case. */
    static Map<String, Object> fields(Record record) {
        Map<String, Object> fields = new HashMap<>();
        Map<String, Object> own = new HashMap<>();
        try {
            for (RecordComponent component : record.getClass().getRecordComponents()) {
                Object value = component.getAccessor().invoke(record);
                if (value instanceof Record inner) fields.putAll(fields(inner));
                else own.put(component.getName().replaceAll("([A-Z])", "_$1").toLowerCase(), value);
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
        fields.putAll(own);
        return fields;
    }
}
