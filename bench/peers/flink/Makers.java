import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.api.java.tuple.Tuple2;

/** What the sources make of a number; the same as the readers of bench/jobs do. */
public final class Makers {
    private Makers() {}

    private static List<String> lines(String file) throws IOException {
        try (BufferedReader reader = Files.newBufferedReader(Path.of(file))) {
            return reader.lines().collect(Collectors.toList());
        }
    }

    /** Line number modulo the lines of a file. */
    public static class Lines implements NumberedSource.Maker<String> {
        private final String file;
        private transient List<String> lines;

        public Lines(String file) {
            this.file = file;
        }

        @Override
        public void open() throws IOException {
            lines = Makers.lines(file);
        }

        @Override
        public String make(long number) {
            return lines.get((int) (number % lines.size()));
        }
    }

    /** (a key of a file, the number): long keys. */
    public static class LongPairs implements NumberedSource.Maker<Tuple2<Long, Long>> {
        private final String file;
        private transient long[] keys;
        private transient Tuple2<Long, Long> pair; // object reuse is on

        public LongPairs(String file) {
            this.file = file;
        }

        @Override
        public void open() throws IOException {
            keys = Makers.lines(file).stream().mapToLong(Long::parseLong).toArray();
            pair = new Tuple2<>();
        }

        @Override
        public Tuple2<Long, Long> make(long number) {
            pair.f0 = keys[(int) (number % keys.length)];
            pair.f1 = number;
            return pair;
        }
    }

    /** (a key of a file, the number): string keys. */
    public static class StringPairs implements NumberedSource.Maker<Tuple2<String, Long>> {
        private final String file;
        private transient String[] keys;
        private transient Tuple2<String, Long> pair; // object reuse is on

        public StringPairs(String file) {
            this.file = file;
        }

        @Override
        public void open() throws IOException {
            keys = Makers.lines(file).toArray(new String[0]);
            pair = new Tuple2<>();
        }

        @Override
        public Tuple2<String, Long> make(long number) {
            pair.f0 = keys[(int) (number % keys.length)];
            pair.f1 = number;
            return pair;
        }
    }

    /** The number itself. */
    public static class Numbers implements NumberedSource.Maker<Long> {
        @Override
        public Long make(long number) {
            return number;
        }
    }

    /** (the number, the monotonic nanosecond at which it was made). */
    public static class Stamps implements NumberedSource.Maker<Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> make(long number) {
            return Tuple2.of(number, System.nanoTime());
        }
    }
}
