package shop;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import pgonce.Answer;
import pgonce.Database;
import pgonce.Outbox;
import pgonce.Outbox.NotDelivered;
import pgonce.Subscriber;
import pgonce.Subscriber.Event;

/**
 * A worker that posts a topic's events to a webhook, each with its delivery key as the Idempotency-Key.
 *
 * <pre>
 * PG_ONCE_URL=postgresql://shop@127.0.0.1/shop WEBHOOK_URL=http://127.0.0.1:9000/webhook java ... shop.Relay orders webhooks
 * </pre>
 *
 * <p>SIGTERM: finishes the present event, and gives the rest of the batch back with no attempt counted.
 */
public final class Relay {
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final URI WEBHOOK = URI.create(System.getenv("WEBHOOK_URL"));

    private static void post(Event event) throws NotDelivered, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(WEBHOOK).timeout(Duration.ofSeconds(10))
                .header("Idempotency-Key", event.deliveryKey()).header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(event.payload())).build();
        HttpResponse<Void> response;
        try {
            response = HTTP.send(request, BodyHandlers.discarding());
        } catch (IOException e) {
            throw new NotDelivered("the receiver did not answer: " + e, "transport", null, e);
        }
        int status = response.statusCode();
        if (status / 100 == 2) return;
        if (status == 410) throw new NotDelivered("the receiver says 410: never again", "never", null, null);
        Double after = response.headers().firstValue("Retry-After").map(Answer::secondsUntil).orElse(null);
        throw new NotDelivered("the receiver says " + status, "http " + status, after, null);
    }

    public static void main(String[] args) throws InterruptedException {
        double lease = Double.parseDouble(System.getenv().getOrDefault("RELAY_LEASE_SECONDS", "60"));
        Outbox outbox = new Outbox(Database.at(System.getenv("PG_ONCE_URL")), new Subscriber(args[0], args[1]), lease);
        CountDownLatch stop = new CountDownLatch(1);
        Thread worker = Thread.currentThread();
        // The JVM ends when the hook returns, so the hook waits for the worker. (The exit code is 143 nevertheless.)
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop.countDown();
            System.out.println("stopping");
            try {
                worker.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        System.out.println("working");
        outbox.work(Relay::post, stop);
    }
}
