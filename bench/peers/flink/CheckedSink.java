import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;

/**
 * Counts (key, long) records, and keeps the last ones until the clock has stopped. Writes {@code folder/sink-SUBTASK}: the count, the
 * monotonic nanoseconds of the first record and of the end of input, and a line per key with its last value. With {@code takesLatencies}
 * the value of a record is the moment at which it was made, and every latency is a line.
 */
public class CheckedSink<K> implements Sink<Tuple2<K, Long>> {
    private final String folder;
    private final long keepFrom;
    private final int keep;
    private final boolean takesLatencies;

    public CheckedSink(String folder, long keepFrom, long keep, boolean takesLatencies) {
        this.folder = folder;
        this.keepFrom = keepFrom;
        this.keep = (int) keep;
        this.takesLatencies = takesLatencies;
    }

    @Override
    public SinkWriter<Tuple2<K, Long>> createWriter(WriterInitContext context) {
        return new Writer(context.getTaskInfo().getIndexOfThisSubtask());
    }

    private final class Writer implements SinkWriter<Tuple2<K, Long>> {
        private final int subtask;
        private final Object[] keys = new Object[keep];
        private final long[] values = new long[keep];
        private long count;
        private long kept;
        private long firstNanos;
        private long endNanos;

        Writer(int subtask) {
            this.subtask = subtask;
        }

        @Override
        public void write(Tuple2<K, Long> record, Context context) {
            if (count++ == 0) {
                firstNanos = System.nanoTime();
            }
            if (count > keepFrom) {
                int slot = (int) (kept++ % keep);
                keys[slot] = record.f0;
                values[slot] = takesLatencies ? System.nanoTime() - record.f1 : record.f1;
            }
        }

        @Override
        public void flush(boolean isEndOfInput) {
            if (isEndOfInput) {
                endNanos = System.nanoTime();
            }
        }

        @Override
        public void close() throws IOException {
            Path file = Path.of(folder, "sink-" + subtask);
            Path partial = Path.of(folder, "partial-sink-" + subtask);
            try (BufferedWriter out = Files.newBufferedWriter(partial)) {
                out.write(count + "\t" + firstNanos + "\t" + endNanos + "\n");
                if (takesLatencies) {
                    writeLatencies(out);
                } else {
                    writeLastValues(out);
                }
            }
            Files.move(partial, file, StandardCopyOption.ATOMIC_MOVE);
        }

        private void writeLatencies(BufferedWriter out) throws IOException {
            for (int i = 0; i < Math.min(kept, keep); i++) {
                out.write(keys[i] + "\t" + values[i] + "\n");
            }
        }

        private void writeLastValues(BufferedWriter out) throws IOException {
            Map<Object, Long> last = new LinkedHashMap<>();
            for (long number = Math.max(0, kept - keep); number < kept; number++) {
                last.put(keys[(int) (number % keep)], values[(int) (number % keep)]);
            }
            for (Map.Entry<Object, Long> entry : last.entrySet()) {
                out.write(entry.getKey() + "\t" + entry.getValue() + "\n");
            }
        }
    }
}
