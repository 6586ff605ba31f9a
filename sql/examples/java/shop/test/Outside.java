package shop.test;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The other side: a bank (POST /charges) and a receiver of webhooks (POST /webhook), in one small server.
 *
 * <p>It acts once for each Idempotency-Key and remembers its answer. Tests make it lose answers (it acts, and
 * hangs up), answer other things, or hold answers back. Alone: java ... shop.test.Outside 9000
 */
final class Outside implements AutoCloseable {
    record Seen(String path, String key, String body, long at) {}

    /** An answer to the next request with this text, without acting. */
    record Saying(String about, int status, Map<String, String> headers) {}

    private static final Pattern AMOUNT = Pattern.compile("\"amount_cents\": (\\d+)");
    private final HttpServer server;
    private final List<Seen> requests = new ArrayList<>();
    private final Map<String, Seen> effects = new LinkedHashMap<>(); // by key: the request that was acted on
    private final List<Saying> sayings = new ArrayList<>();
    private int lose; // how many of the next answers get lost
    private int holdAfter = Integer.MAX_VALUE; // answers to requests after this many are held back
    private CountDownLatch opened = new CountDownLatch(0);

    Outside(int port) throws IOException {
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.setExecutor(Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        }));
        server.createContext("/", this::serve);
        server.start();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    @Override
    public void close() {
        server.stop(0);
    }

    synchronized List<Seen> requests() {
        return List.copyOf(requests);
    }

    synchronized List<Seen> about(String text) {
        return requests.stream().filter(seen -> seen.body.contains(text)).toList();
    }

    synchronized List<Seen> done(String text) {
        return effects.values().stream().filter(seen -> seen.body.contains(text)).toList();
    }

    synchronized int effects() {
        return effects.size();
    }

    synchronized void lose(int answers) {
        lose = answers;
    }

    synchronized void say(Saying... answers) {
        sayings.addAll(List.of(answers));
    }

    /** Runs work; until its end, holds back all answers but the next `after`. Held requests are carried out at once. */
    <T> T holding(int after, Callable<T> work) throws Exception {
        CountDownLatch open = new CountDownLatch(1);
        synchronized (this) {
            opened = open;
            holdAfter = requests.size() + after;
        }
        try {
            return work.call();
        } finally {
            synchronized (this) {
                holdAfter = Integer.MAX_VALUE;
            }
            open.countDown();
        }
    }

    private void serve(HttpExchange exchange) throws IOException {
        try (exchange) {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            String key = exchange.getRequestHeaders().getFirst("Idempotency-Key");
            Seen seen = new Seen(exchange.getRequestURI().getPath(), key, body, System.nanoTime());
            CountDownLatch wait;
            boolean lost;
            int number;
            synchronized (this) {
                requests.add(seen);
                wait = requests.size() > holdAfter ? opened : new CountDownLatch(0);
                for (Saying saying : sayings) {
                    if (body.contains(saying.about)) {
                        sayings.remove(saying);
                        saying.headers.forEach(exchange.getResponseHeaders()::set);
                        answer(exchange, saying.status, "{}");
                        return;
                    }
                }
                Matcher amount = AMOUNT.matcher(body);
                if (amount.find() && Long.parseLong(amount.group(1)) > 1_000_000) {
                    answer(exchange, 402, "{\"title\": \"too much\"}");
                    return;
                }
                effects.putIfAbsent(key, seen);
                number = List.copyOf(effects.keySet()).indexOf(key);
                lost = lose > 0;
                if (lost) lose--;
            }
            wait.await();
            if (!lost) answer(exchange, 201, "{\"charge_id\": \"ch_" + number + "\"}");
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void answer(HttpExchange exchange, int status, String body) throws IOException {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, bytes.length);
        exchange.getResponseBody().write(bytes);
    }

    public static void main(String[] args) throws IOException {
        System.out.println(new Outside(Integer.parseInt(args[0])).url());
    }
}
