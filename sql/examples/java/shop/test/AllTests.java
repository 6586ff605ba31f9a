package shop.test;

/** Runs all tests, one after another; the exit code is 1 if any failed. */
public final class AllTests {
    private AllTests() {}

    public static void main(String[] args) throws Exception {
        LibraryTest.run();
        ConformanceTest.run();
        OrdersTest.run();
        RelayTest.run();
        System.exit(Check.summary() ? 0 : 1);
    }
}
