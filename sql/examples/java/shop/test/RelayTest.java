package shop.test;

import static shop.test.Check.equal;
import static shop.test.Check.isTrue;
import static shop.test.Check.newKey;
import static shop.test.Check.scalar;
import static shop.test.Check.select;
import static shop.test.Check.until;

import java.io.IOException;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import pgonce.Database;
import pgonce.Outbox;
import pgonce.Subscriber;
import shop.Relay;
import shop.test.Outside.Saying;
import shop.test.Outside.Seen;

/** Each event takes effect once at a receiver that dedupes, whichever process dies; dead letters can be listed. */
final class RelayTest implements AutoCloseable {
    private final Outside outside = new Outside(0);
    private String topic = "test " + newKey();

    private interface Body {
        void run(RelayTest test) throws Exception;
    }

    private RelayTest() throws IOException {
        select("SELECT once.topic_set(?, '{\"subscribers\": [\"webhooks\"]}')", topic);
        String options = "{\"backoff_base\": \"20 ms\", \"backoff_cap\": \"50 ms\", \"max_attempts\": 4}";
        select("SELECT once.subscriber_set(?, 'webhooks', ?::json)", topic, options);
    }

    static void run() {
        test("events arrive byte for byte with their own keys", RelayTest::bytes);
        test("an order that is paid is told to the webhook", RelayTest::order);
        test("a worker killed in the middle of a batch loses nothing", RelayTest::killed);
        test("a lost answer is delivered again with the same key", RelayTest::lostAnswer);
        test("an ack whose answer was lost is sent again, and the event is handled once", RelayTest::lostAck);
        test("a nack whose answer was lost is sent again, and counts one attempt", RelayTest::lostNack);
        for (String statement : List.of("outbox_take", "outbox_nack", "outbox_ack")) {
            for (boolean arrives : new boolean[] {false, true}) {
                String which = statement + ", which " + (arrives ? "arrives" : "does not arrive");
                test("a worker killed at " + which + ", loses nothing", test -> test.killedAt(statement, arrives));
            }
        }
        test("failures back off until the event is dead, and a redrive delivers it", RelayTest::dead);
        test("never is dead at once", RelayTest::never);
        test("a handler may ack its event itself, and then fail", RelayTest::ownAck);
        test("Retry-After is honoured", RelayTest::retryAfter);
        test("a failed event holds back those behind it and no others", RelayTest::inOrder);
        test("a receiver slower than the lease is waited for", RelayTest::slowReceiver);
        test("SIGTERM finishes the event at hand and gives the others back", RelayTest::sigterm);
        if (Check.POOLER_URL != null) test("all of it works through PgBouncer", RelayTest::pooler);
    }

    private static void test(String name, Body body) {
        Check.test(name, () -> {
            try (RelayTest test = new RelayTest()) {
                body.run(test);
            }
        });
    }

    @Override
    public void close() {
        outside.close();
    }

    private void bytes() throws Exception {
        emit(null, 1, 2, 3);
        try (Program worker = worker(60)) {
            untilDone(1, 2, 3);
        }
        equal(outside.requests().stream().map(Seen::body).sorted().toList(), List.of(payload(1), payload(2), payload(3)));
        equal(outside.effects(), 3);
    }

    private void order() throws Exception {
        topic = "orders";
        String key = newKey();
        try (Program orders = OrdersTest.service(outside)) {
            equal(OrdersTest.post(orders, key, OrdersTest.order("tea", 700)).status(), 201);
        }
        String orderId = scalar("SELECT order_id FROM orders WHERE idempotency_key = ?", Check.stored(key));
        try (Program worker = worker(60)) {
            until("the event", () -> outside.done(orderId).stream().anyMatch(seen -> seen.path().equals("/webhook")));
        }
    }

    private void killed() throws Exception {
        int[] numbers = IntStream.rangeClosed(1, 7).toArray();
        emit(null, numbers);
        outside.holding(3, () -> {
            try (Program doomed = worker(1)) {
                untilAsked(4); // the receiver acts on the fourth, and does not answer
                doomed.kill();
                equal(doomed.ended(), Program.KILLED);
            }
            return null;
        });
        try (Program worker = worker(1)) {
            untilDone(numbers);
            untilAsked(numbers.length + 1); // the fourth comes twice: it was not acked
        }
        equal(outside.effects(), numbers.length);
    }

    private void lostAnswer() throws Exception {
        String event = emit(null, 1);
        outside.lose(1);
        try (Program worker = worker(60)) {
            untilAsked(2);
        }
        equal(outside.effects(), 1);
        equal(failed(event), List.of(List.of("transport")));
    }

    private void lostAck() throws Exception {
        emit(null, 1, 2);
        losing("outbox_ack", 3);
        equal(outside.requests().size(), 2);
        equal(left(), "0");
    }

    private void lostNack() throws Exception {
        String event = emit("a", 1);
        emit("a", 2);
        outside.say(new Saying("<1>", 503, Map.of()));
        losing("outbox_nack", 2);
        equal(failed(event), List.of(List.of("http 503")));
        equal(left(), "0");
    }

    /** A worker delivers events 1 and 2. The answer to its first `call` is lost; it sends `calls` of them in all. */
    private void losing(String call, long calls) throws Exception {
        try (Proxy proxy = new Proxy(Check.URL)) {
            proxy.cut(call, 1, true, false);
            try (Program worker = worker(60, proxy.url())) {
                untilDone(1, 2);
                worker.terminate();
                equal(worker.ended(), Program.TERMINATED);
            }
            equal(proxy.count(call), calls);
            equal(proxy.refusals(), List.of("ON006"));
        }
    }

    private void killedAt(String statement, boolean arrives) throws Exception {
        emit(null, 1, 2);
        outside.say(new Saying("<1>", 503, Map.of()));
        try (Proxy proxy = new Proxy(Check.URL)) {
            proxy.cut(statement, 1, arrives, true);
            try (Program doomed = worker(1, proxy.url())) {
                until("the statement", proxy::struck);
                doomed.kill();
                equal(doomed.ended(), Program.KILLED);
            }
        }
        try (Program worker = worker(1)) {
            untilDone(1, 2);
            until("both acks", () -> left().equals("0"));
        }
        equal(outside.effects(), 2);
        equal(select("SELECT event_id FROM once.outbox_dead(?, 'webhooks')", topic), List.of());
    }

    /** How many events a take finds after the end of all leases, in a transaction that is rolled back. */
    private String left() {
        return Check.ADMIN.call(connection -> {
            connection.setAutoCommit(false);
            connection.createStatement().execute("SELECT set_config('once.fake_now', (clock_timestamp() + '1 h')::text, true)");
            String take = "SELECT count(*) FROM once.outbox_take(?, 'webhooks', 100)";
            String count = Database.rows(connection, take, row -> row.getString(1), topic).get(0);
            connection.rollback();
            return count;
        });
    }

    private void dead() throws Exception {
        String event = emit(null, 1);
        Saying busy = new Saying("<1>", 503, Map.of());
        outside.say(busy, busy, busy, busy);
        try (Program worker = worker(60)) {
            equal(theDeadLetter(), List.of(event, "http 503"));
            equal(failed(event), Collections.nCopies(4, List.of("http 503")));
            equal(scalar("SELECT once.outbox_redrive(?, 'webhooks')", topic), "1");
            untilDone(1);
        }
        equal(outside.requests().stream().map(Seen::key).distinct().count(), 1L);
    }

    private void never() throws Exception {
        String event = emit(null, 1);
        outside.say(new Saying("<1>", 410, Map.of()));
        try (Program worker = worker(60)) {
            equal(theDeadLetter(), List.of(event, "never"));
        }
        equal(outside.requests().size(), 1);
    }

    private void ownAck() throws Exception {
        emit("a", 1, 2);
        Subscriber subscriber = new Subscriber(topic, "webhooks");
        CountDownLatch stop = new CountDownLatch(1);
        List<Subscriber.Event> came = new ArrayList<>();
        new Outbox(Check.ADMIN, subscriber, 5).work(event -> {
            came.add(event);
            if (came.size() == 2) {
                stop.countDown();
                return;
            }
            Check.ADMIN.call(connection -> subscriber.ack(connection, event.token(), List.of(event.id())));
            throw new IllegalStateException("the answer to the COMMIT is lost");
        }, stop);
        equal(came.stream().map(Subscriber.Event::payload).toList(), List.of(payload(1), payload(2)));
        equal(came.get(0).token(), came.get(1).token()); // the second did not wait for the lease
        equal(left(), "0");
    }

    private void retryAfter() throws Exception {
        try (Program worker = worker(60)) {
            for (int n = 1; n <= 4; n++) {
                String date = DateTimeFormatter.RFC_1123_DATE_TIME.format(ZonedDateTime.now(ZoneOffset.UTC).plusSeconds(3));
                String wait = List.of("1", date, "0", "Thu, 1 Jan 1970 00:00:00 GMT").get(n - 1);
                outside.say(new Saying("<" + n + ">", 429, Map.of("Retry-After", wait)));
                emit(null, n);
                untilDone(n);
                String event = "<" + n + ">";
                List<Seen> came = outside.requests().stream().filter(seen -> seen.body().contains(event)).toList();
                equal(came.get(1).at() - came.get(0).at() >= 900_000_000L, n <= 2);
            }
        }
    }

    private void inOrder() throws Exception {
        emit("a", 1, 2);
        emit("b", 3);
        outside.say(new Saying("<1>", 503, Map.of()));
        try (Program worker = worker(60)) {
            untilDone(1, 2, 3);
        }
        List<String> came = outside.requests().stream().map(seen -> seen.body().replaceAll(".*<(\\d)>.*", "$1")).toList();
        equal(came.stream().sorted().toList(), List.of("1", "1", "2", "3"));
        equal(came.stream().filter(n -> !n.equals("3")).toList(), List.of("1", "1", "2"));
    }

    private void slowReceiver() throws Exception {
        try (Program one = worker(1); Program other = worker(1)) {
            outside.holding(0, () -> {
                emit(null, 1);
                untilAsked(1);
                Thread.sleep(4000); // the lease is 1 s, and a second worker is idle
                return null;
            });
            for (Program worker : List.of(one, other)) {
                worker.terminate();
                equal(worker.ended(), Program.TERMINATED);
            }
        }
        equal(outside.requests().size(), 1);
        equal(select("SELECT event_id FROM once.outbox_take(?, 'webhooks')", topic), List.of());
    }

    private void sigterm() throws Exception {
        try (Program worker = worker(60)) {
            outside.holding(0, () -> {
                select("SELECT once.outbox_emit(?, ?::json) FROM generate_series(1, 5)", topic, payload(1));
                untilAsked(1);
                worker.terminate();
                equal(worker.line(), "stopping");
                return null;
            });
            equal(worker.ended(), Program.TERMINATED);
        }
        equal(outside.requests().size(), 1);
        List<String> first = List.of("1"); // due at once, no attempt counted
        equal(select("SELECT attempt FROM once.outbox_take(?, 'webhooks')", topic), List.of(first, first, first, first));
    }

    private void pooler() throws Exception {
        int[] numbers = IntStream.range(100, 130).toArray();
        emit(null, numbers);
        try (Program one = worker(60, Check.POOLER_URL); Program other = worker(60, Check.POOLER_URL)) {
            untilDone(numbers);
        }
        equal(outside.effects(), numbers.length);
    }

    private static String payload(int n) {
        return "{\"n\":  \"<" + n + ">\", \"x\": 1.0}";
    }

    /** Emits an event for each number; returns the last one's id. */
    private String emit(String orderKey, int... numbers) {
        String event = null;
        for (int n : numbers) {
            event = scalar("SELECT event_id FROM once.outbox_emit(?, ?::json, order_key => ?)", topic, payload(n), orderKey);
        }
        return event;
    }

    private Program worker(double lease) throws IOException {
        return worker(lease, Check.URL);
    }

    private Program worker(double lease, String url) throws IOException {
        Map<String, String> environment = new HashMap<>(Map.of("WEBHOOK_URL", outside.url() + "/webhook",
                "RELAY_LEASE_SECONDS", String.valueOf(lease), "PG_ONCE_URL", url));
        return new Program(environment, Relay.class, topic, "webhooks");
    }

    private void untilDone(int... numbers) throws Exception {
        for (int n : numbers) until("event " + n, () -> !outside.done("<" + n + ">").isEmpty());
    }

    private void untilAsked(int times) throws Exception {
        until(times + " requests", () -> outside.requests().size() >= times);
    }

    private List<String> theDeadLetter() throws Exception {
        return until("the dead letter", () -> select("SELECT event_id, kind FROM once.outbox_dead(?, 'webhooks')", topic)
                .stream().findFirst().orElse(null));
    }

    private List<List<String>> failed(String event) {
        return select("SELECT kind FROM once.outbox_deliveries(?, 'webhooks', ?::bigint)", topic, event);
    }
}
