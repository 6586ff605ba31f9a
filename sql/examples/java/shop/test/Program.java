package shop.test;

import java.io.BufferedReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** One of the example programs in a process of its own, killed by close. */
final class Program implements AutoCloseable {
    static final int KILLED = 128 + 9;
    static final int TERMINATED = 128 + 15; // the JVM's exit code after its shutdown hooks
    private final Process process;
    private final BufferedReader output;
    private final String firstLine;

    Program(Map<String, String> environment, Class<?> program, String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java",
                "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path")));
        command.add(program.getName());
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().putAll(environment);
        process = builder.start();
        output = process.inputReader();
        firstLine = output.readLine();
        Check.isTrue("the program starts", firstLine != null);
    }

    int port() {
        return Integer.parseInt(firstLine.substring(firstLine.lastIndexOf(' ') + 1));
    }

    /** The next line that the program prints. */
    String line() throws IOException {
        return output.readLine();
    }

    void kill() {
        process.destroyForcibly();
    }

    void terminate() {
        process.toHandle().destroy(); // process.destroy() would close its output, too
    }

    /** Waits until the program has ended; returns the exit code. */
    int ended() throws InterruptedException {
        Check.isTrue("the program ends within 30 s", process.waitFor(30, TimeUnit.SECONDS));
        return process.exitValue();
    }

    @Override
    public void close() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }
}
