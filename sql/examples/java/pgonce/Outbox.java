package pgonce;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * Events that leave the database: emit beside the writes, deliver in a worker. lease: seconds, how soon
 * another worker goes on after this one died.
 *
 * <p>At least once on the wire, once by the delivery key. Invariant: an event is acked only after the delivery
 * has ended well, and whatever dies, what is not acked comes again, with the same delivery key.
 */
public record Outbox(Database database, String topic, String subscriber, double lease) {
    private static final int BATCH = 10;
    private static final long LONGEST_POLL = 1000;
    private static final String EMIT = "SELECT event_id FROM once.outbox_emit(?, ?::json, order_key => ?)";
    private static final String TAKE = """
            SELECT token, event_id, attempt, delivery_key, order_key, payload, headers
              FROM once.outbox_take(?, ?, ?, make_interval(secs => ?))""";
    private static final String ACK = "SELECT acked FROM once.outbox_ack(?, ?, ?, ?::bigint[])";
    private static final String NACK = """
            SELECT event_id, attempt, dead
              FROM once.outbox_nack(?, ?, ?, ?::bigint[], error => ?, kind => ?, retry_after => make_interval(secs => ?))""";
    private static final String EXTEND = "SELECT lease_left FROM once.outbox_extend(?, ?, ?, make_interval(secs => ?))";

    /** payload and headers are JSON text, byte for byte what was emitted. */
    public record Event(long token, long id, int attempt, String deliveryKey, String orderKey, String payload, String headers) {}

    @FunctionalInterface
    public interface Delivery {
        void deliver(Event event) throws NotDelivered, InterruptedException;
    }

    /**
     * It is tried again, after the subscriber's backoff or, where after is not null, after so many seconds.
     * kind: a word by which failures are counted; "never": it is dead at once.
     */
    public static class NotDelivered extends Exception {
        private final String kind;
        private final Double after;

        public NotDelivered(String error, String kind, Double afterSeconds, Throwable cause) {
            super(error, cause);
            this.kind = kind;
            after = afterSeconds;
        }
    }

    /** In the transaction of the writes that the event tells of. payload: JSON text; orderKey may be null. */
    public static long emit(Connection connection, String topic, String payload, String orderKey) {
        return Database.rows(connection, EMIT, row -> row.getLong(1), topic, payload, orderKey).get(0);
    }

    /**
     * Takes batches and delivers their events one after another, until stop; then it finishes the event at hand
     * and gives the rest of the batch back. Run several processes for more.
     */
    public void work(Delivery delivery, CountDownLatch stop) throws InterruptedException {
        int failures = 0;
        long idle = 50;
        while (stop.getCount() > 0) {
            try {
                List<Event> events = take();
                failures = 0;
                if (events.isEmpty()) {
                    stop.await(ThreadLocalRandom.current().nextLong(idle / 2, idle), TimeUnit.MILLISECONDS);
                    idle = Math.min(2 * idle, LONGEST_POLL);
                } else {
                    idle = 50;
                    deliver(events, delivery, stop);
                }
            } catch (OnceException.LeaseLost e) {
                Database.LOG.log(Level.WARNING, "somebody else has the rest of the batch: {0}", e.getMessage());
            } catch (OnceException.Conflict | OnceException.Unavailable e) {
                // What was taken and not acked comes again when its lease has run out.
                failures++;
                Database.LOG.log(Level.WARNING, "the database is away: {0}", e.getMessage());
                stop.await(Database.waitBefore(failures), TimeUnit.MILLISECONDS);
            }
        }
    }

    private void deliver(List<Event> events, Delivery delivery, CountDownLatch stop) throws InterruptedException {
        long token = events.get(0).token;
        Set<String> stuck = new HashSet<>(); // order keys of which one failed: the later ones left the batch with it
        try (Database.Heartbeat beating = database.heartbeat(lease, connection -> extend(connection, token))) {
            for (int place = 0; place < events.size(); place++) {
                Event event = events.get(place);
                if (stuck.contains(event.orderKey)) continue;
                if (stop.getCount() == 0) {
                    List<Event> rest = events.subList(place, events.size());
                    List<Event> ours = rest.stream().filter(other -> !stuck.contains(other.orderKey)).toList();
                    nack(token, ours, new NotDelivered("the worker was stopped", "released", null, null));
                    return;
                }
                NotDelivered failure = attempt(event, delivery);
                if (failure == null) {
                    ack(token, event);
                } else {
                    nack(token, List.of(event), failure);
                    if (event.orderKey != null) stuck.add(event.orderKey);
                }
            }
        }
    }

    private static NotDelivered attempt(Event event, Delivery delivery) throws InterruptedException {
        try {
            delivery.deliver(event);
            return null;
        } catch (NotDelivered failure) {
            return failure;
        } catch (RuntimeException e) { // a fault of the handler is a failure of this event alone
            return new NotDelivered(e.toString(), "exception", null, e);
        }
    }

    /** Once: a take whose answer was lost waits for its lease, and a second one takes other events. */
    private List<Event> take() {
        return database.call(1, connection -> Database.rows(connection, TAKE,
                row -> new Event(row.getLong("token"), row.getLong("event_id"), row.getInt("attempt"),
                        row.getString("delivery_key"), row.getString("order_key"), row.getString("payload"),
                        row.getString("headers")),
                topic, subscriber, BATCH, lease));
    }

    /** An ack or a nack changes nothing twice, so it is repeated until it is answered: at last that it is done. */
    private <T> void retried(Database.Work<T> call) {
        try {
            database.call(call);
        } catch (OnceException.AlreadyDone e) {
            Database.LOG.log(Level.DEBUG, "done already");
        }
    }

    private void ack(long token, Event event) {
        retried(connection -> Database.rows(connection, ACK, row -> null,
                topic, subscriber, token, new Long[] {event.id}));
        Database.LOG.log(Level.DEBUG, "acked");
    }

    private void nack(long token, List<Event> events, NotDelivered failure) {
        Long[] ids = events.stream().map(Event::id).toArray(Long[]::new);
        String error = Lease.storable(failure.getMessage());
        retried(connection -> Database.rows(connection, NACK, row -> {
            String said = "event " + row.getLong(1) + ", attempt " + row.getInt(2) + ": " + error;
            Database.LOG.log(row.getBoolean(3) ? Level.WARNING : Level.INFO, row.getBoolean(3) ? said + ", dead" : said);
            return null;
        }, topic, subscriber, token, ids, error, failure.kind, failure.after));
    }

    private List<Void> extend(Connection connection, long token) {
        return Database.rows(connection, EXTEND, row -> null, topic, subscriber, token, lease);
    }
}
