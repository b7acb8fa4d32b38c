package compat;

import java.nio.file.Path;

/** What `cargo xtask compat` runs; each command ends with status 0 only when everything was as expected. */
public final class Main {
    private Main() {
    }

    public static void main(String[] a) {
        try {
            switch (a[0]) {
                // NAMESRV BROKER SENT FIRST COUNT
                case "produce" -> Produce.run(a[1], a[2], Path.of(a[3]), Integer.parseInt(a[4]), Integer.parseInt(a[5]));
                // NAMESRV BROKER SENT OUT
                case "verify-broker" -> verify(new ClientSource(a[1], a[2]), a[3], a[4], true);
                // STORE SEGMENT-BYTES QUEUE-FILE-BYTES SENT OUT; after a crash Java accepts that its index lacks entries
                case "verify-store" -> verify(store(a), a[4], a[5], true);
                case "verify-crashed-store" -> verify(store(a), a[4], a[5], false);
                // NAMESRV BROKER
                case "round-trip" -> RoundTrip.run(a[1], a[2]);
                default -> throw new IllegalArgumentException("unknown command " + a[0]);
            }
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static Source store(String[] a) throws Exception {
        return new StoreSource(a[1], Integer.parseInt(a[2]), Integer.parseInt(a[3]));
    }

    private static void verify(Source source, String sent, String out, boolean index) throws Exception {
        try (source) {
            Verify.run(source, Path.of(sent), Path.of(out), index);
        }
    }
}
