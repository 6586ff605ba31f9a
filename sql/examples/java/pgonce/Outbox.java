package pgonce;

import java.lang.System.Logger.Level;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import pgonce.Subscriber.Event;

/**
 * A worker that delivers events, which {@link Topic} emits in the transaction of the writes. lease: seconds after which
 * another worker continues if this one died.
 *
 * <p>Delivered at least once; handled once by a receiver that dedupes by the delivery key. Invariant: an event is acked
 * only after its delivery has succeeded. An event without an ack is due again, with the same key, until it is dead.
 */
public record Outbox(Database database, Subscriber subscriber, double lease) {
    private static final int BATCH = 10;
    private static final long LONGEST_POLL = 1000;
    @FunctionalInterface
    public interface Delivery {
        void deliver(Event event) throws NotDelivered, InterruptedException;
    }

    /**
     * The event is tried again, after afterSeconds (at most a day) or, if that is null, after the subscriber's backoff.
     * kind: a word to count failures by; "never": the event is dead at once.
     */
    public static class NotDelivered extends Exception {
        private final String kind;
        private final Double after;

        public NotDelivered(String error, String kind, Double afterSeconds, Throwable cause) {
            super(error, cause);
            boolean refused = !kind.matches("[^\\x00]{1,100}") || kind.equals("expired"); // by the server
            this.kind = refused ? "error" : kind;
            after = afterSeconds;
        }
    }

    /**
     * Takes batches and delivers their events one after another; several processes may run. Once stop is 0, finishes
     * the present event and gives the rest of the batch back. Of the database's errors, it throws only lasting ones.
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
            } catch (OnceException e) {
                if (e.isLasting()) throw e;
                // Events that were taken and not acked are due again when their lease has expired.
                failures++;
                Database.LOG.log(Level.WARNING, "the worker waits for the database: {0}", e.getMessage());
                stop.await(Database.waitBefore(failures), TimeUnit.MILLISECONDS);
            }
        }
    }

    private void deliver(List<Event> events, Delivery delivery, CountDownLatch stop) throws InterruptedException {
        long token = events.get(0).token();
        Set<String> stuck = new HashSet<>(); // order keys with a failed event; their later events left the batch
        try (Database.Heartbeat beating = database.heartbeat(lease, connection -> subscriber.extend(connection, token, lease))) {
            for (int place = 0; place < events.size(); place++) {
                Event event = events.get(place);
                if (stuck.contains(event.orderKey())) continue;
                if (stop.getCount() == 0) {
                    List<Event> rest = events.subList(place, events.size());
                    List<Event> ours = rest.stream().filter(other -> !stuck.contains(other.orderKey())).toList();
                    nack(token, ours, new NotDelivered("the worker was stopped", "released", null, null));
                    return;
                }
                NotDelivered failure = attempt(event, delivery);
                if (failure == null) {
                    ack(token, event);
                } else if (nack(token, List.of(event), failure) && event.orderKey() != null) {
                    stuck.add(event.orderKey());
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

    private List<Event> take() {
        return database.call(1, connection -> subscriber.take(connection, BATCH, lease));
    }

    private void ack(long token, Event event) {
        try {
            database.call(connection -> subscriber.ack(connection, token, List.of(event.id())));
            Database.LOG.log(Level.DEBUG, "acked");
        } catch (OnceException.AlreadyDone e) { // an earlier try, or the delivery itself, has acked it
            Database.LOG.log(Level.DEBUG, "done already");
        }
    }

    /** False: the events had left the batch by another call, such as an ack of the handler's own. */
    private boolean nack(long token, List<Event> events, NotDelivered failure) {
        List<Long> ids = events.stream().map(Event::id).toList();
        String error = Lease.storable(failure.getMessage());
        Database.Work<List<Subscriber.Nacked>> nack =
                connection -> subscriber.nack(connection, token, error, failure.kind, failure.after, ids);
        try {
            for (Subscriber.Nacked nacked : database.call(nack)) {
                String said = "event " + nacked.id() + ", attempt " + nacked.attempt() + ": " + error;
                Database.LOG.log(nacked.dead() ? Level.WARNING : Level.INFO, nacked.dead() ? said + ", dead" : said);
            }
            return true;
        } catch (OnceException.AlreadyDone e) {
            Database.LOG.log(Level.DEBUG, "done already");
            return e.repeated;
        }
    }
}
