package shop.test;

import java.sql.Connection;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import pgonce.Action;
import pgonce.Inbox;
import pgonce.Key;
import pgonce.Lease;
import pgonce.Subscriber;
import pgonce.Subscriber.Event;
import pgonce.Topic;
import shop.test.ConformanceTest.Said;

/** The calls of the cases (conformance.json), by name, as methods of the package pgonce. */
final class Conformance {
    /** of: the lease, action or batch that the call is made with. */
    interface Method {
        Said call(Connection connection, Object of, With with);
    }

    /** A take's subscriber and events. */
    private record Batch(Subscriber subscriber, List<Event> events) {
        long token() {
            return events.get(0).token();
        }

        List<Long> ids(With with) {
            if (with.text("events") == null) return null;
            return Arrays.stream(with.text("events").split(",")).map(place -> events.get(Integer.parseInt(place)).id()).toList();
        }
    }

    /** The arguments of a call. */
    record With(Map<String, String> values) {
        String text(String name) {
            return values.get(name);
        }

        Double seconds(String name) {
            return text(name) == null ? null : Double.valueOf(text(name));
        }

        int number(String name, int otherwise) {
            return text(name) == null ? otherwise : Integer.parseInt(text(name));
        }

        private Subscriber subscriber() {
            return new Subscriber(text("topic"), "default");
        }
    }

    static final Map<String, Method> METHODS = new HashMap<>();

    static {
        METHODS.put("key.claim", Conformance::claimKey);
        METHODS.put("key.advance", (connection, of, with) ->
                nothing(((Lease) of).advance(connection, with.text("recovery_point"), with.text("state"))));
        METHODS.put("key.step", (connection, of, with) ->
                row(((Lease) of).step(connection, with.text("step"), with.text("on_abort"))));
        METHODS.put("key.step_done", (connection, of, with) -> row(((Lease) of).stepDone(connection, with.text("step"),
                with.text("result"), with.text("on_complete"), with.text("on_abort"))));
        METHODS.put("key.complete", (connection, of, with) -> row(((Lease) of).complete(connection, with.number("code", 0),
                with.text("body"), with.text("headers"))));
        METHODS.put("key.abort", (connection, of, with) -> row(((Lease) of).abort(connection, with.number("code", 0),
                with.text("body"), with.text("headers"))));
        METHODS.put("key.release", (connection, of, with) ->
                nothing(((Lease) of).release(connection, with.text("error"), with.seconds("retry_after"))));
        METHODS.put("key.park", (connection, of, with) -> nothing(((Lease) of).park(connection, with.text("reason"))));
        METHODS.put("key.extend", (connection, of, with) -> nothing(((Lease) of).extend(connection, with.seconds("lease"))));
        METHODS.put("action.claim", Conformance::claimAction);
        METHODS.put("action.extend", (connection, of, with) -> row(((Action) of).extend(connection, with.seconds("lease"))));
        METHODS.put("action.finish", (connection, of, with) -> row(((Action) of).finish(connection, with.text("patch"))));
        METHODS.put("action.release", (connection, of, with) -> row(((Action) of).release(connection, with.text("error"))));
        METHODS.put("outbox.emit", (connection, of, with) -> events(List.of(new Topic(with.text("topic")).emit(connection,
                with.text("payload"), with.text("order_key"), with.text("dedupe_key"), with.text("headers"), with.seconds("delay"))), null));
        METHODS.put("outbox.take", Conformance::take);
        METHODS.put("outbox.ack", (connection, of, with) -> {
            Batch batch = (Batch) of;
            return number("acked", batch.subscriber.ack(connection, batch.token(), batch.ids(with)));
        });
        METHODS.put("outbox.nack", Conformance::nack);
        METHODS.put("outbox.extend", (connection, of, with) -> {
            Batch batch = (Batch) of;
            return nothing(batch.subscriber.extend(connection, batch.token(), with.seconds("lease")));
        });
        METHODS.put("outbox.dead", (connection, of, with) ->
                events(with.subscriber().dead(connection, with.number("max", 100)), null));
        METHODS.put("outbox.redrive", (connection, of, with) ->
                number("redriven", with.subscriber().redrive(connection, with.number("max", 100), null)));
        METHODS.put("inbox.accept", (connection, of, with) ->
                row(new Inbox(with.text("scope")).accept(connection, with.text("message_id"), with.seconds("ttl"))));
        METHODS.put("inbox.record", (connection, of, with) ->
                nothing(new Inbox(with.text("scope")).record(connection, with.text("message_id"), with.text("verdict"))));
    }

    private Conformance() {}

    private static Said claimKey(Connection connection, Object of, With with) {
        Key.Claimed claimed = new Key(null, with.text("scope"), with.text("key")).claimOnce(connection, with.text("request"),
                with.text("holder"), with.seconds("lease"), with.seconds("ttl"));
        Map<String, Object> fields = ConformanceTest.fields(claimed);
        fields.put("code", claimed.answer() == null ? null : claimed.answer().status());
        return new Said(claimed.lease(), List.of(fields));
    }

    private static Said claimAction(Connection connection, Object of, With with) {
        Long version = with.text("version") == null ? null : Long.valueOf(with.text("version"));
        Action.Claimed claimed = Action.claim(connection, with.text("machine"), with.text("id"), with.text("step"),
                with.text("requester"), with.seconds("lease"), with.text("holder"), version);
        return new Said(claimed.action(), List.of(ConformanceTest.fields(claimed)));
    }

    private static Said take(Connection connection, Object of, With with) {
        List<Event> events = with.subscriber().take(connection, with.number("max", 10), with.seconds("lease"));
        return events(events, new Batch(with.subscriber(), events));
    }

    private static Said nack(Connection connection, Object of, With with) {
        Batch batch = (Batch) of;
        String kind = with.text("kind") == null ? "error" : with.text("kind");
        return events(batch.subscriber.nack(connection, batch.token(), with.text("error"), kind, with.seconds("retry_after"),
                batch.ids(with)), null);
    }

    private static Said events(List<? extends Record> events, Batch batch) {
        List<Map<String, Object>> rows = events.stream().map(ConformanceTest::fields).toList();
        rows.forEach(row -> row.put("event_id", row.get("id")));
        return new Said(batch, rows);
    }

    private static Said row(Record record) {
        return new Said(null, List.of(ConformanceTest.fields(record)));
    }

    private static Said number(String name, int value) {
        return new Said(null, List.of(Map.of(name, value)));
    }

    private static Said nothing(Void none) {
        return new Said(null, List.of());
    }
}
