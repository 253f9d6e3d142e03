import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.core.io.InputStatus;

/** A task that wants a core for itself: it computes, and emits once in a while. */
public class BusySource extends NumberSequenceSource {
    private static final int UNITS_PER_POLL = 10_000; // well below a millisecond

    public BusySource() {
        super(0, Long.MAX_VALUE - 1);
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<Long, NumberSequenceSplit> createReader(SourceReaderContext context) {
        return new Reader();
    }

    private static final class Reader implements SourceReader<Long, NumberSequenceSplit> {
        private long sum;

        @Override
        public void start() {}

        @Override
        public InputStatus pollNext(ReaderOutput<Long> output) {
            for (int i = 0; i < UNITS_PER_POLL; i++) {
                sum = sum * 6364136223846793005L + 1442695040888963407L;
            }
            if (sum == 0) {
                output.collect(sum);
            }
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public List<NumberSequenceSplit> snapshotState(long checkpointId) {
            return Collections.emptyList();
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void addSplits(List<NumberSequenceSplit> splits) {}

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }
}
