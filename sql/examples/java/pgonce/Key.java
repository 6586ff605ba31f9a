package pgonce;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * One logical request, one execution: claim, phases, answer.
 *
 * <p>{@link #run} does it all. Its argument {@code work} continues from lease.recoveryPoint(), whichever attempt
 * reached that, and stores the answer itself, by lease.complete or lease.abort in the transaction of its last writes.
 * Invariant: wherever a process dies, the next claim of the key continues correctly.
 */
public record Key(Database database, String scope, String key) {
    private static final int ROUNDS = 3; // the most calls of the work in one run; it is repeated after a database error
    private static final String CLAIM = """
            SELECT outcome, token, attempt, recovery_point, state, response_code, response_body, response_headers,
                   ARRAY(SELECT unnest(ARRAY[h.key, h.value]) FROM json_each_text(response_headers) h) AS header_list,
                   extract(epoch FROM lease_left)::float8 AS lease_left,
                   extract(epoch FROM retry_after)::float8 AS retry_after
              FROM once.key_claim(?, ?, ?::json, lease => make_interval(secs => ?), ttl => make_interval(secs => ?), holder => ?)""";
    private static final Pattern QUOTED = Pattern.compile("\"((?:[ !#-\\[\\]-~]|\\\\[\"\\\\])*)\"");

    @FunctionalInterface
    public interface Phases {
        Answer run(Lease lease);
    }

    /** The work failed, and another attempt may succeed: the key is released. */
    public static class Retry extends RuntimeException {
        private final Double after;

        /** afterSeconds: at most a day; null: longer after each attempt. */
        public Retry(String error, Double afterSeconds, Throwable cause) {
            super(error, cause);
            after = afterSeconds;
        }
    }

    /** Nobody knows whether the call acted, and a retry could act twice: the key is parked. */
    public static class Unknown extends RuntimeException {
        public Unknown(String reason) { super(reason); }
    }

    /**
     * The server's answer to a claim. lease: null unless claimed or resumed; answer: null unless replayed; headers: of
     * that answer, as the stored JSON text; retryAfter: seconds.
     */
    public record Claimed(String outcome, int attempt, Lease lease, Answer answer, String headers, double retryAfter) {}

    /** A claim for HTTP: a lease or an answer; the other is null. */
    public record Claim(Lease lease, Answer answer) {}

    /** The result of ofHeader: a key or an answer; the other is null. */
    public record OfHeader(String key, Answer answer) {}

    /**
     * Answers a request: does the work, replays the stored answer, or says why not. request: the JSON text as it
     * came; another request under the same key is 422.
     */
    public Answer run(String request, Phases work) {
        for (int round = 1; ; round++) {
            Claim claim = claim(request);
            if (claim.answer != null) return claim.answer;
            Lease lease = claim.lease;
            boolean finished; // whether this lease has stored the answer
            try (Database.Heartbeat beating = database.heartbeat(lease.seconds(), lease::extend)) {
                return work.run(lease);
            } catch (Retry failure) {
                double after = Lease.storableWait(failure.after == null ? waitAfter(lease.attempt()) : failure.after);
                giveBack(lease, failure.getMessage(), after);
                return Answer.problem(503, "the request could not be finished", after);
            } catch (Unknown failure) {
                return park(lease, failure.getMessage());
            } catch (OnceException.LeaseLost e) { // of this lease, or of another that the work holds
                giveBack(lease, e.getMessage(), 1.0);
                return inProgress();
            } catch (OnceException.Conflict | OnceException.Unavailable | OnceException.AlreadyDone e) {
                // The work's last transaction may have been committed. Once the key is released, an old transaction
                // that still runs cannot commit a write with this token. So the next claim finds the final state.
                // (Claiming with the same holder would not end the token.)
                finished = giveBack(lease, e.getMessage(), null);
            } catch (RuntimeException | Error e) {
                finished = giveBack(lease, e.toString(), waitAfter(lease.attempt()));
                // If the COMMIT was carried out, its repeat may have met a row of its own, such as by 23505.
                if (!finished || !(e instanceof OnceException)) throw e;
                Database.LOG.log(Level.WARNING, scope + " " + key + " was answered before this error of the work", e);
            }
            if (round >= ROUNDS && !finished) return Answer.problem(503, "the request could not be finished", 1);
            Database.pause(Database.waitBefore(round));
        }
    }

    /** A claim for HTTP. If the server's answer is lost, the same holder gets its own lease back. */
    public Claim claim(String request) {
        String holder = UUID.randomUUID().toString();
        Claimed claimed = database.call(connection -> claimOnce(connection, request, holder, null, null));
        Answer answer = switch (claimed.outcome) {
            case "claimed", "resumed" -> null;
            case "replayed" -> {
                Map<String, String> headers = new LinkedHashMap<>(claimed.answer.headers());
                headers.put("Idempotent-Replayed", "true");
                yield new Answer(claimed.answer.status(), claimed.answer.body() == null ? "" : claimed.answer.body(), headers);
            }
            case "in_progress" -> Answer.problem(409, "a request with this key is in progress", claimed.retryAfter);
            case "mismatched" -> Answer.problem(422, "this key was used for a different request");
            case "gone" -> Answer.problem(410, "a request with this key was finished long ago");
            case "parked" -> Answer.problem(409, "the outcome of a request with this key is not known yet");
            default -> throw new IllegalStateException("an outcome that this program does not know: " + claimed.outcome);
        };
        return new Claim(claimed.lease, answer);
    }

    /**
     * One claim as the server answers it. A claim that may be repeated needs a holder: a random UUID for each attempt.
     * lease, ttl: seconds, or null for the scope's.
     */
    public Claimed claimOnce(Connection connection, String request, String holder, Double lease, Double ttl) {
        return Database.rows(connection, CLAIM, row -> {
            String outcome = row.getString("outcome");
            boolean ours = row.getString("token") != null;
            if (ours) Database.LOG.log(Level.DEBUG, outcome);
            return new Claimed(outcome, row.getInt("attempt"),
                    ours ? new Lease(scope, key, row.getLong("token"), row.getInt("attempt"),
                            row.getString("recovery_point"), row.getString("state"), row.getDouble("lease_left")) : null,
                    outcome.equals("replayed") ? new Answer(row.getInt("response_code"), row.getString("response_body"),
                            Lease.headersOf(row)) : null,
                    row.getString("response_headers"), row.getDouble("retry_after"));
        }, scope, key, request, lease, ttl, holder).get(0);
    }

    /**
     * The key of a user's Idempotency-Key header: {@code <user>/<what the client sent>}, or the 401 or 400 to answer.
     * user: the authenticated user, never a value of the request's body. {@code /} in the name is written %2F and %
     * is written %25, so that nobody reaches the keys of another. header: quoted (as the IETF draft has it) or bare.
     */
    public static OfHeader ofHeader(String user, String header) {
        String name = user == null ? "" : user.replaceAll("^[ \t]+|[ \t]+$", "");
        if (name.isEmpty()) return new OfHeader(null, Answer.problem(401, "the request is not authenticated"));
        String sent = header == null ? "" : header.strip();
        Matcher quoted = QUOTED.matcher(sent);
        if (quoted.matches()) {
            sent = quoted.group(1).replaceAll("\\\\(.)", "$1");
        } else if (sent.contains("\"")) {
            sent = "";
        }
        String key = name.replace("%", "%25").replace("/", "%2F") + "/" + sent;
        if (sent.isEmpty() || sent.chars().anyMatch(Character::isISOControl) || key.length() > 255) {
            return new OfHeader(null, Answer.problem(400, "the Idempotency-Key header is missing, not well formed or too long"));
        }
        return new OfHeader(key, null);
    }

    /** Seconds until a key that failed is due again. It grows, so that an outage does not use up max_attempts. */
    private static double waitAfter(int attempt) {
        return ThreadLocalRandom.current().nextDouble(0.5, 1) * Math.min(Math.pow(2, attempt - 1), 300);
    }

    private static Answer inProgress() {
        return Answer.problem(409, "a request with this key is in progress", 1);
    }

    private Answer park(Lease lease, String reason) {
        try {
            database.call(connection -> lease.park(connection, reason));
        } catch (OnceException.LeaseLost e) {
            return inProgress();
        }
        return Answer.problem(409, "the outcome of a request with this key is not known yet");
    }

    /** Returns whether this lease has finished the key. */
    private boolean giveBack(Lease lease, String error, Double after) {
        try {
            database.call(connection -> lease.release(connection, error, after));
        } catch (OnceException.AlreadyDone e) {
            return true;
        } catch (OnceException.LeaseLost e) {
            // Nothing to release: the next claim shows the key's state.
        } catch (OnceException.Conflict | OnceException.Unavailable e) {
            Database.LOG.log(Level.WARNING, "the key is left to its lease: {0}", error);
        }
        return false;
    }
}
