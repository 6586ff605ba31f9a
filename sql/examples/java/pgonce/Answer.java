package pgonce;

import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.util.Map;

/** The answer to the HTTP client. The body is the stored text, which is not parsed on its way. */
public record Answer(int status, String body, Map<String, String> headers) {
    /** A problem document. title: without quotes and backslashes, since it is not escaped. */
    public static Answer problem(int status, String title) {
        return new Answer(status, "{\"title\": \"" + title + "\"}", Map.of("Content-Type", "application/problem+json"));
    }

    /** Retry-After (seconds) is set exactly when a retry can succeed without a verdict. */
    public static Answer problem(int status, String title, double after) {
        String seconds = String.valueOf(Math.max(1, (long) Math.ceil(after)));
        return new Answer(status, problem(status, title).body,
                Map.of("Content-Type", "application/problem+json", "Retry-After", seconds));
    }

    /** The seconds from now of a Retry-After header (seconds or an HTTP date). null: neither, or not in the future. */
    public static Double secondsUntil(String retryAfter) {
        double seconds;
        if (retryAfter.matches("\\d{1,9}")) {
            seconds = Double.parseDouble(retryAfter);
        } else {
            try {
                Instant date = Instant.from(DateTimeFormatter.RFC_1123_DATE_TIME.parse(retryAfter));
                seconds = Duration.between(Instant.now(), date).toMillis() / 1000.0;
            } catch (DateTimeException e) {
                return null;
            }
        }
        return seconds > 0 ? seconds : null;
    }
}
