package shop;

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.time.Duration;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import pgonce.Answer;
import pgonce.Database;
import pgonce.Key;
import pgonce.Lease;
import pgonce.OnceException;
import pgonce.Topic;

/**
 * An HTTP service that handles each POST /orders once, whichever process or connection dies.
 *
 * <pre>
 * PG_ONCE_URL=postgresql://shop@127.0.0.1/shop BANK_URL=http://127.0.0.1:9000 java ... shop.Orders [port]
 *
 * The phases of an order, by the recovery point that each starts from:
 *   started   advance to `created`, insert the order: one transaction
 *   created   charge it at the bank (a step, with the step's derived key), advance to `charged`
 *   charged   mark it paid, emit the event, store the answer: one transaction
 * </pre>
 *
 * <p>The JDK has no JSON parser: PostgreSQL parses the orders. The bank's answers are stored as they came.
 */
public final class Orders {
    private static final System.Logger LOG = System.getLogger("shop");
    // The header with the authenticated user. The proxy in front of this service must set it, and drop a client's own.
    private static final String USER = "X-Forwarded-User";
    // Statuses 4xx that are no refusal. A gateway's 404 or 405 does not tell whether an earlier call has charged.
    private static final Set<Integer> NOT_FINAL = Set.of(401, 403, 404, 405, 408, 409, 425, 429);
    // Absent members are null. A body that is no JSON object, or has a member of another type, raises 22...
    private static final String READ_ORDER = """
            SELECT customer, item, amount_cents
              FROM json_to_record(?::json) AS o(customer text, item text, amount_cents bigint)""";
    private static final String READ_STATE = "SELECT s->>'order_id', s->>'charge_id' FROM (SELECT ?::json) AS x(s)";
    private static final String INSERT = """
            INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents) VALUES (?::uuid, ?, ?, ?, ?)
            RETURNING 1""";
    private static final String PAID = "UPDATE orders SET status = 'paid', charge_id = ? WHERE order_id = ?::uuid RETURNING 1";
    private static final String REFUSED = "UPDATE orders SET status = 'refused' WHERE order_id = ?::uuid RETURNING 1";
    private static final Pattern CHARGE_ID = Pattern.compile("\"charge_id\"\\s*:\\s*\"([\\w-]+)\"");

    private record Order(String customer, String item, long amountCents) {}

    /** The key's state, by which a phase passes ids to the next. */
    private record State(String orderId, String chargeId) {
        String json() {
            String charge = chargeId == null ? "" : ", \"charge_id\": \"" + chargeId + "\"";
            return "{\"order_id\": \"" + orderId + "\"" + charge + "}";
        }
    }

    /** The bank refused: it did not charge and will not. */
    private static final class Refused extends RuntimeException {
        Refused(int status) { super("the bank says " + status); }
    }

    private final Database database = Database.at(System.getenv("PG_ONCE_URL"));
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final URI bank = URI.create(System.getenv("BANK_URL") + "/charges");
    // How long the bank remembers a key, in seconds. After that, a retry could charge twice.
    private final double bankRemembers = Double.parseDouble(System.getenv().getOrDefault("BANK_REMEMBERS", "86400"));

    /** Continues from the recovery point, whichever attempt reached that. */
    private Answer make(Lease lease, Order order) {
        String point = lease.recoveryPoint();
        State state = lease.state() == null ? null : database.call(connection -> readState(connection, lease.state()));
        if (point.equals("started")) {
            String orderId = UUID.randomUUID().toString();
            state = new State(orderId, null);
            point = "created";
            lease.phase(database, point, state.json(), connection -> create(connection, lease, order, orderId));
        }
        State before = state;
        if (point.equals("created")) {
            try {
                state = charge(lease, order, before);
            } catch (Refused refusal) {
                return lease.lastPhase(database, connection -> refuse(connection, lease, before, refusal.getMessage()));
            }
        }
        State charged = state;
        return lease.lastPhase(database, connection -> finish(connection, lease, order, charged));
    }

    private static Void create(Connection connection, Lease lease, Order order, String orderId) {
        Database.rows(connection, INSERT, row -> null,
                orderId, lease.key(), order.customer, order.item, order.amountCents);
        return null;
    }

    private State charge(Lease lease, Order order, State state) {
        Lease.Step step = database.call(connection -> lease.step(connection, "charge", null)); // committed before the call
        String result = step.result();
        if (!step.done()) {
            if (step.attempted() > 0 && step.age() > bankRemembers) {
                throw new Key.Unknown("an earlier attempt may have charged, and the bank has forgotten its key by now");
            }
            String answer = askBank(step.derivedKey(), state.orderId, order.amountCents);
            result = database.call(connection -> lease.stepDone(connection, "charge", answer).result());
        }
        State charged = new State(state.orderId, chargeIdIn(result));
        database.call(connection -> lease.advance(connection, "charged", charged.json()));
        return charged;
    }

    /** Returns the bank's answer as it came. A missing answer is never taken for a refusal. */
    private String askBank(String derivedKey, String orderId, long amountCents) {
        String body = "{\"reference\": \"" + orderId + "\", \"amount_cents\": " + amountCents + "}";
        HttpRequest request = HttpRequest.newBuilder(bank).timeout(Duration.ofSeconds(10))
                .header("Idempotency-Key", derivedKey).header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body)).build();
        HttpResponse<String> response;
        try {
            response = http.send(request, BodyHandlers.ofString());
        } catch (IOException e) {
            throw new Key.Retry("the bank did not answer: " + e, null, e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new Key.Retry("interrupted", null, e);
        }
        int status = response.statusCode();
        if (status >= 400 && status < 500 && !NOT_FINAL.contains(status)) throw new Refused(status);
        if (status / 100 != 2) {
            Double after = response.headers().firstValue("Retry-After").map(Answer::secondsUntil).orElse(null);
            throw new Key.Retry("the bank says " + status, after, null);
        }
        chargeIdIn(response.body());
        return response.body();
    }

    private static String chargeIdIn(String answer) {
        Matcher found = CHARGE_ID.matcher(answer);
        if (!found.find()) throw new Key.Retry("the bank's answer is not understood", null, null);
        return found.group(1);
    }

    private static Answer refuse(Connection connection, Lease lease, State state, String reason) {
        Database.rows(connection, REFUSED, row -> null, state.orderId);
        return lease.abort(connection, 402, "{\"title\": \"" + reason + "\"}");
    }

    private static Answer finish(Connection connection, Lease lease, Order order, State state) {
        Database.rows(connection, PAID, row -> null, state.chargeId, state.orderId);
        String event = "{\"type\": \"order.paid\", \"order_id\": \"" + state.orderId + "\"}";
        new Topic("orders").emit(connection, event, order.customer);
        return lease.complete(connection, 201, state.json());
    }

    private static Order readOrder(Connection connection, String body) {
        Order order = Database.rows(connection, READ_ORDER,
                row -> new Order(row.getString(1), row.getString(2), row.getLong(3)), body).get(0);
        // The customer becomes an order key: what the server refuses there is refused here, before the charge.
        boolean isOrderKey = order.customer != null && !order.customer.isEmpty() && order.customer.length() <= 255;
        return isOrderKey && order.item != null && order.amountCents > 0 ? order : null;
    }

    private static State readState(Connection connection, String json) {
        return Database.rows(connection, READ_STATE, row -> new State(row.getString(1), row.getString(2)), json).get(0);
    }

    private Answer answer(HttpExchange exchange, String body) {
        if (!exchange.getRequestMethod().equals("POST")) return Answer.problem(405, "orders are posted");
        Headers headers = exchange.getRequestHeaders();
        Key.OfHeader read = Key.ofHeader(headers.getFirst(USER), headers.getFirst("Idempotency-Key"));
        if (read.answer() != null) return read.answer();
        String key = read.key();
        try {
            Order order = database.call(connection -> readOrder(connection, body));
            if (order == null) return Answer.problem(400, "the body is not an order");
            return new Key(database, "orders.create", key).run(body, lease -> make(lease, order));
        } catch (OnceException.InvalidArgument e) { // such as bad JSON, or a text with \u0000
            return Answer.problem(400, "the body is not an order");
        } catch (OnceException.Unavailable e) {
            return Answer.problem(503, "the database is away", 1);
        } catch (RuntimeException e) {
            LOG.log(Level.ERROR, "order " + key + " failed", e);
            return Answer.problem(500, "internal error");
        }
    }

    private void serve(HttpExchange exchange) throws IOException {
        try (exchange) {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            Answer answer = answer(exchange, body);
            byte[] bytes = answer.body().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            answer.headers().forEach(exchange.getResponseHeaders()::set);
            exchange.sendResponseHeaders(answer.status(), bytes.length == 0 ? -1 : bytes.length);
            if (bytes.length > 0) exchange.getResponseBody().write(bytes);
        }
    }

    public static void main(String[] args) throws IOException {
        Orders orders = new Orders();
        int port = args.length > 0 ? Integer.parseInt(args[0]) : 0;
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        ExecutorService requests = Executors.newCachedThreadPool();
        server.setExecutor(requests);
        server.createContext("/orders", orders::serve);
        server.start();
        System.out.println("listening on " + server.getAddress().getPort());
        // SIGTERM: finishes the running requests. (The JVM's exit code is 143 nevertheless.)
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            requests.shutdown();
            try {
                requests.awaitTermination(30, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
    }
}
