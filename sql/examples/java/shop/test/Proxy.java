package shop.test;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A network that fails: a TCP proxy between a program and PostgreSQL. */
final class Proxy implements AutoCloseable {
    private static final Pattern REFUSAL = Pattern.compile("C(ON00\\d)\0");
    private static final Pattern READY = Pattern.compile("Z\0\0\0\5[ITE]\\z"); // ReadyForQuery: the end of an answer
    // Query or Parse, without the SET statements of the driver for each new connection
    private static final Pattern STATEMENT = Pattern.compile("[QP].{4}\0?+(?!SET ).*", Pattern.DOTALL);
    private final URI server;
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<String> statements = new ArrayList<>(); // without heartbeats, which come at any time
    private final List<String> refusals = new ArrayList<>(); // each ON001 to ON007 among the server's errors
    private boolean struck; // whether `cut` has taken effect
    private Cut next;

    /** The arguments of `cut`; nth counts down with each statement that has this text. */
    private record Cut(String text, int nth, boolean arrives, boolean hold) {}

    Proxy(String url) throws IOException {
        server = URI.create(url);
        run(() -> {
            while (true) carry(listener.accept());
        });
    }

    String url() {
        return "postgresql://" + server.getUserInfo() + "@127.0.0.1:" + listener.getLocalPort() + server.getPath();
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }

    /**
     * Cuts the connection at the nth statement from now that has this text. arrives: the server executes it, and the
     * answer is lost. hold: stays connected, so the client waits.
     */
    synchronized void cut(String text, int nth, boolean arrives, boolean hold) {
        struck = false;
        next = new Cut(text, nth, arrives, hold);
    }

    synchronized boolean struck() {
        return struck;
    }

    synchronized List<String> refusals() {
        return List.copyOf(refusals);
    }

    /** How many statements had this text. */
    synchronized long count(String text) {
        return statements.stream().filter(statement -> statement.contains(text)).count();
    }

    private void carry(Socket client) throws IOException {
        Socket upstream = new Socket(server.getHost(), server.getPort() < 0 ? 5432 : server.getPort());
        Cut[] cut = {null}; // of this connection
        run(() -> {
            try (client; upstream) {
                carryRequests(client, upstream.getOutputStream(), cut);
            }
        });
        run(() -> {
            boolean held = carryAnswers(upstream.getInputStream(), client.getOutputStream(), cut);
            if (!held) client.close(); // which ends the other thread
        });
    }

    private void carryRequests(Socket client, OutputStream to, Cut[] cut) throws IOException {
        byte[] bytes = new byte[65536];
        for (int read; (read = client.getInputStream().read(bytes)) > 0; ) {
            if (read == 8 && bytes[0] == 0) {
                client.getOutputStream().write('N'); // the answer to SSLRequest: no SSL
            } else if (began(text(bytes, read), cut)) {
                if (!cut[0].hold) return;
            } else {
                to.write(bytes, 0, read);
            }
        }
    }

    /** Returns whether the client's connection stays open, so that the client waits. */
    private boolean carryAnswers(InputStream from, OutputStream to, Cut[] cut) throws IOException {
        byte[] bytes = new byte[65536];
        for (int read; (read = from.read(bytes)) > 0; ) {
            String answer = text(bytes, read);
            synchronized (this) {
                for (Matcher refusal = REFUSAL.matcher(answer); refusal.find(); ) refusals.add(refusal.group(1));
                if (cut[0] != null) {
                    if (!READY.matcher(answer).find()) continue;
                    struck = true;
                    return cut[0].hold;
                }
            }
            to.write(bytes, 0, read);
        }
        return false;
    }

    /** Whether to drop the request. Sets cut[0] at the statement of `cut`. */
    private synchronized boolean began(String request, Cut[] cut) {
        if (cut[0] == null) cut[0] = cutOf(request);
        if (cut[0] == null || cut[0].arrives) return false;
        struck = true;
        return true;
    }

    private Cut cutOf(String request) {
        if (!STATEMENT.matcher(request).matches() || request.contains("_extend(")) return null;
        statements.add(request);
        if (next == null || !request.contains(next.text)) return null;
        Cut here = next;
        next = here.nth == 1 ? null : new Cut(here.text, here.nth - 1, here.arrives, here.hold);
        return here.nth == 1 ? here : null;
    }

    private static String text(byte[] bytes, int length) {
        return new String(bytes, 0, length, StandardCharsets.ISO_8859_1);
    }

    private interface Carrying {
        void run() throws IOException;
    }

    private static void run(Carrying carrying) {
        Thread thread = new Thread(() -> {
            try {
                carrying.run();
            } catch (IOException closed) {
                return; // a socket was closed
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
