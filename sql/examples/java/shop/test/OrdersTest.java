package shop.test;

import static shop.test.Check.equal;
import static shop.test.Check.isTrue;
import static shop.test.Check.newKey;
import static shop.test.Check.scalar;
import static shop.test.Check.select;
import static shop.test.Check.stored;
import static shop.test.Check.until;

import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import shop.Orders;

/** One order and one charge, whichever process dies, whichever statement or answer is lost. */
final class OrdersTest {
    /** The number of an order's statements. A BEGIN does not count: the driver sends it with the next statement. */
    private static final int STATEMENTS = 12;
    private static final String ORDER = order("tea", 700);
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Outside outside;
    private final Program a;
    private final Program b;
    private final List<String> events = new ArrayList<>();

    record Reply(int status, String retryAfter, boolean replayed, String body) {}

    private OrdersTest(Outside outside, Program a, Program b) {
        this.outside = outside;
        this.a = a;
        this.b = b;
    }

    static void run() throws Exception {
        scalar("SELECT once.scope_set('orders.create', '{\"lease\": \"1 s\"}')");
        select("SELECT once.subscriber_set('orders', 'test')");
        try (Outside outside = new Outside(0); Program a = service(outside); Program b = service(outside)) {
            OrdersTest test = new OrdersTest(outside, a, b);
            try {
                test.all();
            } finally {
                test.threads.shutdown();
            }
        }
    }

    private void all() {
        Check.test("a retry gets the stored answer", this::retry);
        Check.test("an answer that the bank lost is asked for again with the same key", this::lostByBank);
        Check.test("the time at which the bank wants to be asked again is passed on", this::askedLater);
        Check.test("a client that hangs up gets the answer when it comes back", this::hangUp);
        Check.test("if two processes have one key at once, one works", this::twoAtOnce);
        Check.test("a crowd with one key gets one answer", this::crowd);
        for (boolean arrives : new boolean[] {false, true}) {
            String which = arrives ? "arrives" : "does not arrive";
            Check.test("a process killed at any statement that " + which + " is resumed by another", () -> killed(arrives));
            Check.test((arrives ? "the answer to any" : "any") + " statement may be lost", () -> lost(arrives));
        }
        for (String call : List.of("key_advance", "key_complete")) {
            Check.test("a phase whose COMMIT was not answered is run again and commits once: " + call, () -> lostCommit(call));
        }
        Check.test("a bank slower than the lease is waited for", this::slowBank);
        Check.test("a transaction whose backend dies is begun again", this::backendDies);
        Check.test("another request under the same key is 422 and learns nothing", this::mismatch);
        Check.test("bob with ada's key and body runs his own request and never sees her answer", this::bob);
        Check.test("a user whose name has a slash cannot reach the key of another", this::slash);
        Check.test("a request without a user is 401", this::nobody);
        Check.test("an answer past its ttl is 410", this::gone);
        Check.test("a request without a key or an order is 400", this::badRequests);
        Check.test("a charge that the bank refuses ends the key", this::refused);
        Check.test("a gateway without its service refuses no order", this::gateway);
        Check.test("a charge that the bank has forgotten waits for a person", this::parked);
        Check.test("SIGTERM finishes the request at hand", this::sigterm);
        if (Check.POOLER_URL != null) Check.test("all of it works through PgBouncer", this::pooler);
    }

    private void retry() throws Exception {
        String key = newKey();
        Reply first = post(a, key, ORDER);
        equal(first, new Reply(201, null, false, first.body));
        equal(post(b, key, ORDER), new Reply(201, null, true, first.body));
        assertDoneOnce(key);
    }

    private void lostByBank() throws Exception {
        String key = newKey();
        outside.lose(1);
        Reply first = post(a, key, ORDER);
        equal(List.of(first.status, first.retryAfter), List.of(503, "1"));
        equal(postUntilAnswered(b, key, ORDER).status, 201);
        List<Outside.Seen> asked = outside.about(scalar("SELECT order_id FROM orders WHERE idempotency_key = ?", stored(key)));
        equal(asked.stream().map(Outside.Seen::key).distinct().count() + " in " + asked.size(), "1 in 2");
        assertDoneOnce(key);
    }

    private void askedLater() throws Exception {
        String date = DateTimeFormatter.RFC_1123_DATE_TIME.format(ZonedDateTime.now(ZoneOffset.UTC).plusSeconds(60));
        for (String wait : List.of("60", date)) {
            outside.say(new Outside.Saying("amount_cents", 429, Map.of("Retry-After", wait)));
            Reply refused = post(a, newKey(), ORDER);
            equal(refused.status, 503);
            int seconds = Integer.parseInt(refused.retryAfter);
            isTrue("about a minute, not " + seconds, seconds > 50 && seconds <= 60);
        }
    }

    private void hangUp() throws Exception {
        String key = newKey();
        outside.holding(0, () -> {
            int asked = outside.requests().size();
            try (Socket socket = new Socket("127.0.0.1", a.port())) {
                String request = "POST /orders HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: ada\r\nIdempotency-Key: " + key
                        + "\r\nContent-Length: " + ORDER.length() + "\r\n\r\n" + ORDER;
                socket.getOutputStream().write(request.getBytes(StandardCharsets.US_ASCII));
                return until("the bank to be asked", () -> outside.requests().size() > asked);
            }
        });
        equal(postUntilAnswered(b, key, ORDER).status, 201);
        assertDoneOnce(key);
    }

    private void twoAtOnce() throws Exception {
        scalar("SELECT once.scope_set('orders.create', '{\"lease\": \"1 min\"}')");
        String key = newKey();
        Future<Reply> first = outside.holding(0, () -> {
            Future<Reply> reply = postUntilBankAsked(a, key);
            Reply busy = post(b, key, ORDER);
            equal(List.of(busy.status, busy.retryAfter), List.of(409, "1"));
            return reply;
        });
        equal(first.get().status, 201);
        equal(post(b, key, ORDER).body, first.get().body);
        assertDoneOnce(key);
        scalar("SELECT once.scope_set('orders.create', '{\"lease\": \"1 s\"}')");
    }

    private void crowd() throws Exception {
        String key = newKey();
        List<Callable<Reply>> crowd = new ArrayList<>();
        for (int n = 0; n < 12; n++) {
            Program to = n % 2 == 0 ? a : b;
            crowd.add(() -> postUntilAnswered(to, key, ORDER));
        }
        Set<String> bodies = new HashSet<>();
        int ran = 0;
        for (Future<Reply> reply : threads.invokeAll(crowd)) {
            equal(reply.get().status, 201);
            bodies.add(reply.get().body);
            if (!reply.get().replayed) ran++;
        }
        equal(bodies.size() + " body, " + ran + " ran", "1 body, 1 ran");
        assertDoneOnce(key);
    }

    private void killed(boolean arrives) throws Exception {
        List<String> keys = new ArrayList<>();
        for (String key = newKey(); killedAt(keys.size() + 1, arrives, key); key = newKey()) keys.add(key);
        equal(keys.size(), STATEMENTS);
        for (String key : keys) {
            Reply reply = postUntilAnswered(a, key, ORDER);
            // An answer to replay exists only if the last COMMIT was carried out.
            boolean replayed = arrives && key.equals(keys.get(STATEMENTS - 1));
            equal(reply, new Reply(201, null, replayed, reply.body));
            equal(post(b, key, ORDER).body, reply.body);
            assertDoneOnce(key);
        }
    }

    /** Sends an order to a process that is killed at its nth statement. False: it had fewer. */
    private boolean killedAt(int nth, boolean arrives, String key) throws Exception {
        try (Proxy proxy = new Proxy(Check.URL); Program doomed = service(outside, "PG_ONCE_URL", proxy.url())) {
            proxy.cut("", nth, arrives, true);
            Future<Reply> reply = threads.submit(() -> post(doomed, key, ORDER));
            until("the statement", () -> proxy.struck() || reply.isDone());
            doomed.kill();
            equal(doomed.ended(), Program.KILLED);
            return proxy.struck();
        }
    }

    private void lost(boolean arrives) throws Exception {
        try (Proxy proxy = new Proxy(Check.URL); Program program = service(outside, "PG_ONCE_URL", proxy.url())) {
            for (int nth = 1; nth <= STATEMENTS + 1; nth++) {
                String key = newKey();
                proxy.cut("", nth, arrives, false);
                equal(post(program, key, ORDER).status, 201);
                equal(proxy.struck(), nth <= STATEMENTS);
                assertDoneOnce(key);
            }
        }
    }

    private void lostCommit(String call) throws Exception {
        int nth = call.equals("key_advance") ? 1 : 2;
        try (Proxy proxy = new Proxy(Check.URL); Program program = service(outside, "PG_ONCE_URL", proxy.url())) {
            String key = newKey();
            proxy.cut("COMMIT", nth, true, false);
            equal(post(program, key, ORDER).status, 201);
            // The call was sent twice with one token. The second got ON006; then the key was claimed again.
            // (A finished key refuses a release and a late heartbeat with ON006, too.)
            equal(Set.copyOf(proxy.refusals()), Set.of("ON006"));
            equal(proxy.count(call + "("), nth == 1 ? 3L : 2L); // the third moves to `charged`
            equal(proxy.count("key_claim("), 2L);
            assertDoneOnce(key);
        }
    }

    private void slowBank() throws Exception {
        String key = newKey();
        Future<Reply> first = outside.holding(0, () -> {
            Future<Reply> reply = postUntilBankAsked(a, key);
            int asked = outside.requests().size();
            for (int n = 0; n < 25; n++) { // for 2.5 s, with a lease of 1 s
                equal(post(b, key, ORDER).status, 409);
                Thread.sleep(100);
            }
            equal(outside.requests().size(), asked);
            return reply;
        });
        equal(first.get().status, 201);
        assertDoneOnce(key);
    }

    private void backendDies() throws Exception {
        String key = newKey();
        Future<Reply> reply = Check.ADMIN.transaction(connection -> {
            connection.createStatement().execute("LOCK TABLE orders IN SHARE MODE");
            Future<Reply> sent = threads.submit(() -> post(a, key, ORDER));
            String look = "SELECT pid::int FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
                    + " AND datname = current_database()";
            try {
                String pid = until("a backend that waits for a lock", () -> select(look).stream().findFirst().orElse(null)).get(0);
                scalar("SELECT pg_terminate_backend(?::int)", pid);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return sent;
        });
        equal(reply.get().status, 201);
        assertDoneOnce(key);
    }

    private void mismatch() throws Exception {
        String key = newKey();
        post(a, key, ORDER);
        Reply other = post(b, key, order("tea", 1));
        equal(other.status, 422);
        String orderId = scalar("SELECT order_id FROM orders WHERE idempotency_key = ?", stored(key));
        isTrue("nothing of the stored answer", !other.body.contains(orderId));
        // Spaces and the order of members do not matter.
        equal(post(b, key, "{\"amount_cents\":700,\n \"item\":\"tea\",\"customer\":\"ada\"}").status, 201);
    }

    private void bob() throws Exception {
        String key = newKey();
        Reply adas = post(a, "ada", key, ORDER);
        Reply bobs = post(b, "bob", key, ORDER);
        equal(adas, new Reply(201, null, false, adas.body));
        equal(bobs, new Reply(201, null, false, bobs.body));
        isTrue("each has an order", !adas.body.equals(bobs.body));
        equal(post(b, "ada", key, ORDER), new Reply(201, null, true, adas.body));
        equal(post(a, "bob", key, ORDER), new Reply(201, null, true, bobs.body));
        for (String user : List.of("ada", "bob")) assertStoredOnce(user + "/" + key);
    }

    private void slash() throws Exception {
        String key = newKey();
        post(a, "ada", "x/" + key, ORDER);
        for (String user : List.of("ada/x", "ada%2Fx")) {
            Reply reply = post(a, user, key, ORDER);
            equal(reply, new Reply(201, null, false, reply.body));
        }
        assertDoneOnce("x/" + key);
    }

    private void nobody() throws Exception {
        for (String user : new String[] {null, ""}) equal(post(a, user, newKey(), ORDER).status, 401);
    }

    private void gone() throws Exception {
        String key = newKey();
        scalar("SELECT once.scope_set('orders.create', '{\"ttl\": \"500 ms\"}')");
        try {
            equal(post(a, key, ORDER).status, 201);
            until("the answer to expire", () -> post(b, key, ORDER).status == 410);
        } finally {
            scalar("SELECT once.scope_set('orders.create', '{\"ttl\": null}')");
        }
        assertDoneOnce(key);
    }

    private void badRequests() throws Exception {
        int asked = outside.requests().size();
        for (String key : new String[] {null, "", "\"open", "k".repeat(252)}) equal(post(a, key, ORDER).status, 400);
        for (String body : List.of("{", "[]", "{}", "{\"customer\": \"ada\", \"item\": \"tea\"}", order("tea", 0),
                order("\\u0000", 700), ORDER.replace("ada", ""), ORDER.replace("ada", "c".repeat(256)))) {
            equal(post(a, newKey(), body).status, 400);
        }
        equal(outside.requests().size(), asked);
    }

    private void refused() throws Exception {
        String key = newKey();
        String body = order("tea", 2_000_000);
        Reply first = post(a, key, body);
        equal(first, new Reply(402, null, false, first.body));
        equal(post(b, key, body), new Reply(402, null, true, first.body));
        equal(scalar("SELECT status FROM orders WHERE idempotency_key = ?", stored(key)), "refused");
    }

    private void gateway() throws Exception {
        String key = newKey();
        outside.say(new Outside.Saying("amount_cents", 404, Map.of()), new Outside.Saying("amount_cents", 405, Map.of()));
        equal(postUntilAnswered(a, key, ORDER).status, 201);
        assertDoneOnce(key);
    }

    private void parked() throws Exception {
        String key = newKey();
        try (Program forgetful = service(outside, "BANK_REMEMBERS", "0")) {
            outside.lose(1);
            equal(post(forgetful, key, ORDER).status, 503);
            equal(postUntilAnswered(forgetful, key, ORDER).status, 409);
        }
        equal(post(a, key, ORDER).status, 409);
        List<String> parked = select("SELECT status, attempt FROM once.key_get('orders.create', ?)", stored(key)).get(0);
        equal(parked.get(0), "parked");
        // A person found out that the bank still knows the key, so a retry is safe.
        select("SELECT once.key_resolve('orders.create', ?, ?::int, 'retry')", stored(key), parked.get(1));
        equal(post(a, key, ORDER).status, 201);
        assertDoneOnce(key);
    }

    private void sigterm() throws Exception {
        String key = newKey();
        try (Program leaving = service(outside)) {
            Future<Reply> first = outside.holding(0, () -> {
                Future<Reply> reply = postUntilBankAsked(leaving, key);
                leaving.terminate();
                return reply;
            });
            equal(first.get().status, 201);
            equal(leaving.ended(), Program.TERMINATED);
        }
        assertDoneOnce(key);
    }

    private void pooler() throws Exception {
        Set<String> keys = new HashSet<>();
        while (keys.size() < 20) keys.add(newKey());
        try (Program pooled = service(outside, "PG_ONCE_URL", Check.POOLER_URL)) {
            for (boolean replayed : new boolean[] {false, true}) {
                List<Future<Reply>> replies = new ArrayList<>();
                for (String key : keys) replies.add(threads.submit(() -> post(pooled, key, ORDER)));
                for (Future<Reply> reply : replies) equal(reply.get(), new Reply(201, null, replayed, reply.get().body));
            }
        }
        for (String key : keys) assertDoneOnce(key);
    }

    private void assertDoneOnce(String key) {
        assertStoredOnce(stored(key));
    }

    /** Asserts one order, one charge and one event for the key. */
    private void assertStoredOnce(String stored) {
        List<List<String>> orders = select("SELECT order_id, status FROM orders WHERE idempotency_key = ?", stored);
        equal(orders.stream().map(row -> row.get(1)).toList(), List.of("paid"));
        while (true) {
            List<List<String>> taken = select("SELECT token, payload FROM once.outbox_take('orders', 'test', 1000)");
            if (taken.isEmpty()) break;
            taken.forEach(row -> events.add(row.get(1)));
            scalar("SELECT once.outbox_ack('orders', 'test', ?::bigint)", taken.get(0).get(0));
        }
        String orderId = orders.get(0).get(0);
        equal(outside.done(orderId).size(), 1);
        equal(events.stream().filter(event -> event.contains(orderId)).count(), 1L);
    }

    /** Sends an order to a service and waits until the bank has been asked. */
    private Future<Reply> postUntilBankAsked(Program program, String key) throws Exception {
        int asked = outside.requests().size();
        Future<Reply> reply = threads.submit(() -> post(program, key, ORDER));
        until("the bank to be asked", () -> outside.requests().size() > asked);
        return reply;
    }

    static Program service(Outside outside, String... environment) throws IOException {
        Map<String, String> variables = new HashMap<>(Map.of("BANK_URL", outside.url()));
        if (environment.length > 0) variables.put(environment[0], environment[1]);
        return new Program(variables, Orders.class);
    }

    static String order(String item, long amountCents) {
        return "{\"customer\": \"ada\", \"item\": \"" + item + "\", \"amount_cents\": " + amountCents + "}";
    }

    static Reply post(Program program, String key, String body) throws IOException, InterruptedException {
        return post(program, "ada", key, body);
    }

    /** Sends an order with the headers of the authenticating proxy; user null: without the user's header. */
    private static Reply post(Program program, String user, String key, String body) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + program.port() + "/orders"))
                .POST(BodyPublishers.ofString(body));
        if (user != null) request.header("X-Forwarded-User", user);
        if (key != null) request.header("Idempotency-Key", key);
        HttpResponse<String> response = HTTP.send(request.build(), BodyHandlers.ofString());
        return new Reply(response.statusCode(), response.headers().firstValue("Retry-After").orElse(null),
                response.headers().firstValue("Idempotent-Replayed").isPresent(), response.body());
    }

    /** Sends an order until its answer has no Retry-After. */
    private static Reply postUntilAnswered(Program program, String key, String body) throws Exception {
        return until("an answer", () -> {
            Reply reply = post(program, key, body);
            return reply.retryAfter == null ? reply : null;
        });
    }
}
