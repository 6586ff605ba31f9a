package pgonce;

import java.util.Map;

/** What goes to the HTTP client. The body is the stored text, never parsed on its way. */
public record Answer(int status, String body, Map<String, String> headers) {
    /** A problem document. Its title is written without quotes and backslashes. */
    public static Answer problem(int status, String title) {
        return new Answer(status, "{\"title\": \"" + title + "\"}", Map.of("Content-Type", "application/problem+json"));
    }

    /** Retry-After (seconds) is there exactly when coming back can help without anybody's verdict. */
    public static Answer problem(int status, String title, double after) {
        String seconds = String.valueOf(Math.max(1, (long) Math.ceil(after)));
        return new Answer(status, problem(status, title).body,
                Map.of("Content-Type", "application/problem+json", "Retry-After", seconds));
    }
}
