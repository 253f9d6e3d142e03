import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/** Sums by key in tumbling windows; the records and the program of {@code bench/jobs/window_sums.py}. */
public final class Windows {
    private static final long WINDOW_MS = 5_000;
    private static final long RECORDS_PER_MS = 50;
    private static final long DELAY_MS = 3_000;
    private static final long FIRST_MS = 1_000_000;
    private static final long FACTOR = 7_919;
    private static final long AMOUNTS = 997;

    private Windows() {}

    /** Sums of (key, amount, time). */
    static <K> DataStream<Tuple2<String, Long>> sums(
            StreamExecutionEnvironment environment, NumberedSource<Tuple3<K, Long, Long>> source, TypeInformation<K> keyType, boolean isTwin) {
        TypeInformation<Tuple3<K, Long, Long>> type = Types.TUPLE(keyType, Types.LONG, Types.LONG);
        WatermarkStrategy<Tuple3<K, Long, Long>> inOrder = WatermarkStrategy.forMonotonousTimestamps();
        WatermarkStrategy<Tuple3<K, Long, Long>> outOfOrder = WatermarkStrategy.forBoundedOutOfOrderness(Duration.ofMillis(DELAY_MS));
        return environment
                .fromSource(source, (isTwin ? outOfOrder : inOrder).withTimestampAssigner((record, before) -> record.f2), "source", type)
                .keyBy(record -> record.f0, keyType)
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(WINDOW_MS)))
                .reduce((one, other) -> Tuple3.of(one.f0, one.f1 + other.f1, one.f2))
                .map(total -> Tuple2.of(total.f0 + " " + (total.f2 - total.f2 % WINDOW_MS), total.f1))
                .returns(Types.TUPLE(Types.STRING, Types.LONG));
    }

    /**
     * The record of a number. The readers of the source have one range of numbers each; so that they keep pace in event time, the number
     * is spread: of {@code parallelism} readers each has every so many-th record.
     */
    abstract static class Records<K> implements NumberedSource.Maker<Tuple3<K, Long, Long>> {
        private final long share;
        private final long parallelism;
        private transient Tuple3<K, Long, Long> record; // object reuse is on
        final int numKeys;

        Records(long count, long parallelism, int numKeys) {
            this.share = count / parallelism;
            this.parallelism = parallelism;
            this.numKeys = numKeys;
        }

        @Override
        public void open() {
            record = new Tuple3<>();
        }

        @Override
        public Tuple3<K, Long, Long> make(long inRange) {
            long number = parallelism == 1 ? inRange : inRange % share * parallelism + inRange / share;
            record.f0 = key((int) (number * FACTOR % numKeys));
            record.f1 = number % AMOUNTS;
            record.f2 = FIRST_MS + number / RECORDS_PER_MS - delay(number);
            return record;
        }

        abstract K key(int number);

        abstract long delay(long number);
    }

    /** Keys are numbers, records in order. */
    public static final class Ordered extends Records<Long> {
        public Ordered(long count, long parallelism, int numKeys) {
            super(count, parallelism, numKeys);
        }

        @Override
        Long key(int number) {
            return (long) number;
        }

        @Override
        long delay(long number) {
            return 0;
        }
    }

    /** Keys are texts, records late. */
    public static final class Delayed extends Records<String> {
        private transient String[] texts;

        public Delayed(long count, long parallelism, int numKeys) {
            super(count, parallelism, numKeys);
        }

        @Override
        public void open() {
            super.open();
            texts = new String[numKeys];
            for (int key = 0; key < numKeys; key++) {
                texts[key] = "user " + key;
            }
        }

        @Override
        String key(int number) {
            return texts[number];
        }

        @Override
        long delay(long number) {
            return number * FACTOR % DELAY_MS;
        }
    }
}
