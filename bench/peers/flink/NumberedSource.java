import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource.NumberSequenceSplit;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * The records of the numbers 0 .. count-1, made one per call of {@code pollNext}. Flink's own number sequence deals out one range per
 * reader. A reader writes the monotonic nanosecond of its first record into {@code folder/start-SUBTASK}.
 */
public class NumberedSource<T> implements Source<T, NumberSequenceSplit, Collection<NumberSequenceSplit>> {

    /** Makes the record of a number; {@code open} is not measured. */
    public interface Maker<T> extends Serializable {
        default void open() throws IOException {}

        T make(long number);
    }

    private final NumberSequenceSource ranges;
    private final Maker<T> maker;
    private final String folder;
    private final long recordsPerSecond; // 0: as fast as possible

    public NumberedSource(long count, Maker<T> maker, String folder, long recordsPerSecond) {
        this.ranges = new NumberSequenceSource(0, count - 1);
        this.maker = maker;
        this.folder = folder;
        this.recordsPerSecond = recordsPerSecond;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.BOUNDED; // the runtime mode is STREAMING all the same
    }

    @Override
    public SplitEnumerator<NumberSequenceSplit, Collection<NumberSequenceSplit>> createEnumerator(
            SplitEnumeratorContext<NumberSequenceSplit> context) {
        return ranges.createEnumerator(context);
    }

    @Override
    public SplitEnumerator<NumberSequenceSplit, Collection<NumberSequenceSplit>> restoreEnumerator(
            SplitEnumeratorContext<NumberSequenceSplit> context, Collection<NumberSequenceSplit> splits) {
        return ranges.restoreEnumerator(context, splits);
    }

    @Override
    public SimpleVersionedSerializer<NumberSequenceSplit> getSplitSerializer() {
        return ranges.getSplitSerializer();
    }

    @Override
    public SimpleVersionedSerializer<Collection<NumberSequenceSplit>> getEnumeratorCheckpointSerializer() {
        return ranges.getEnumeratorCheckpointSerializer();
    }

    @Override
    public SourceReader<T, NumberSequenceSplit> createReader(SourceReaderContext context) {
        return new Reader(context);
    }

    private final class Reader implements SourceReader<T, NumberSequenceSplit> {
        private final SourceReaderContext context;
        private final Queue<NumberSequenceSplit> waiting = new ArrayDeque<>();
        private CompletableFuture<Void> somethingToDo = new CompletableFuture<>();
        private boolean isEverythingDealtOut;
        private long next;
        private long end; // of the current range, exclusive; next == end: there is none
        private long startNanos;
        private long made;

        Reader(SourceReaderContext context) {
            this.context = context;
        }

        @Override
        public void start() {
            try {
                maker.open();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            context.sendSplitRequest();
        }

        @Override
        public InputStatus pollNext(ReaderOutput<T> output) throws IOException {
            if (next == end && !takeNextRange()) {
                return isEverythingDealtOut ? InputStatus.END_OF_INPUT : InputStatus.NOTHING_AVAILABLE;
            }
            if (made == 0) {
                startNanos = System.nanoTime();
                Files.writeString(Path.of(folder, "start-" + context.getIndexOfSubtask()), Long.toString(startNanos));
            }
            if (recordsPerSecond > 0) {
                long due = startNanos + made * 1_000_000_000L / recordsPerSecond;
                for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
            }
            made++;
            output.collect(maker.make(next++));
            return InputStatus.MORE_AVAILABLE;
        }

        private boolean takeNextRange() {
            NumberSequenceSplit range = waiting.poll();
            if (range == null) {
                if (!isEverythingDealtOut && somethingToDo.isDone()) {
                    somethingToDo = new CompletableFuture<>();
                    context.sendSplitRequest();
                }
                return false;
            }
            next = range.from();
            end = range.to() + 1;
            return true;
        }

        @Override
        public void addSplits(List<NumberSequenceSplit> splits) {
            waiting.addAll(splits);
            somethingToDo.complete(null);
        }

        @Override
        public void notifyNoMoreSplits() {
            isEverythingDealtOut = true;
            somethingToDo.complete(null);
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return somethingToDo;
        }

        @Override
        public List<NumberSequenceSplit> snapshotState(long checkpointId) {
            List<NumberSequenceSplit> rest = new ArrayList<>(waiting);
            if (next < end) {
                rest.add(new NumberSequenceSplit("current-" + context.getIndexOfSubtask(), next, end - 1));
            }
            return rest;
        }

        @Override
        public void close() {}
    }
}
