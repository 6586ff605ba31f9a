package shop.test;

/** All tests, one after another; the exit code tells. */
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
