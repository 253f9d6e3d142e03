import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;

/**
 * Counts (text, number) records; keeps the last number of each text, or with {@code adds} the sum of its numbers. Writes what {@link
 * CheckedSink} writes.
 */
public class TextNumberSink implements Sink<Tuple2<String, Long>> {
    private final String folder;
    private final boolean adds;

    public TextNumberSink(String folder, boolean adds) {
        this.folder = folder;
        this.adds = adds;
    }

    @Override
    public SinkWriter<Tuple2<String, Long>> createWriter(WriterInitContext context) {
        return new Writer(context.getTaskInfo().getIndexOfThisSubtask());
    }

    private final class Writer implements SinkWriter<Tuple2<String, Long>> {
        private final int subtask;
        private final Map<String, Long> numbers = new HashMap<>();
        private long count;
        private long firstNanos;
        private long endNanos;

        Writer(int subtask) {
            this.subtask = subtask;
        }

        @Override
        public void write(Tuple2<String, Long> record, Context context) {
            if (count++ == 0) {
                firstNanos = System.nanoTime();
            }
            if (adds) {
                numbers.merge(record.f0, record.f1, Long::sum);
            } else {
                numbers.put(record.f0, record.f1);
            }
        }

        @Override
        public void flush(boolean isEndOfInput) {
            if (isEndOfInput) {
                endNanos = System.nanoTime();
                firstNanos = count == 0 ? endNanos : firstNanos;
            }
        }

        @Override
        public void close() throws IOException {
            Path file = Path.of(folder, "sink-" + subtask);
            Path partial = Path.of(folder, "partial-sink-" + subtask);
            try (BufferedWriter out = Files.newBufferedWriter(partial)) {
                out.write(count + "\t" + firstNanos + "\t" + endNanos + "\n");
                for (Map.Entry<String, Long> entry : numbers.entrySet()) {
                    out.write(entry.getKey() + "\t" + entry.getValue() + "\n");
                }
            }
            Files.move(partial, file, StandardCopyOption.ATOMIC_MOVE);
        }
    }
}
