import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Runs jobs on a cluster, one per line of standard input: {@code WORK key=value ...}. Answers each with a line {@code DONE} or
 * {@code FAILED reason}. Usage: {@code Driver REST_PORT}.
 */
public final class Driver {
    private static final TypeInformation<Tuple2<String, Long>> STRING_PAIR = Types.TUPLE(Types.STRING, Types.LONG);
    private static final TypeInformation<Tuple2<Long, Long>> LONG_PAIR = Types.TUPLE(Types.LONG, Types.LONG);

    private final int port;
    private final Map<String, String> options;

    private Driver(int port, Map<String, String> options) {
        this.port = port;
        this.options = options;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("READY");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, String> options = new HashMap<>();
            String[] words = line.trim().split(" ");
            for (int i = 1; i < words.length; i++) {
                String[] option = words[i].split("=", 2);
                options.put(option[0], option[1]);
            }
            try {
                new Driver(Integer.parseInt(arguments[0]), options).run(words[0]);
                System.out.println("DONE");
            } catch (Exception error) {
                error.printStackTrace();
                System.out.println("FAILED " + error);
            }
        }
    }

    private void run(String work) throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createRemoteEnvironment("127.0.0.1", port, new Configuration());
        environment.setParallelism((int) number("parallelism"));
        environment.getConfig().enableObjectReuse();
        switch (work) {
            case "wordcount":
                wordcount(environment);
                break;
            case "shuffle-long":
                shuffle(environment, new Makers.LongPairs(options.get("keys")), LONG_PAIR, Types.LONG);
                break;
            case "shuffle-string":
                shuffle(environment, new Makers.StringPairs(options.get("keys")), STRING_PAIR, Types.STRING);
                break;
            case "latency":
                latency(environment);
                break;
            case "nexmark-q0":
            case "nexmark-q1":
            case "nexmark-q2":
                nexmark(environment, work);
                break;
            case "windows":
                windows(environment);
                break;
            default:
                throw new IllegalArgumentException("no such work: " + work);
        }
        JobClient job = environment.executeAsync("bench " + work);
        if (options.containsKey("cancelAfterSeconds")) {
            TimeUnit.SECONDS.sleep(number("cancelAfterSeconds"));
            job.cancel().get();
        } else {
            job.getJobExecutionResult().get();
        }
    }

    private void wordcount(StreamExecutionEnvironment environment) {
        DataStream<String> lines = source(environment, new Makers.Lines(options.get("lines")), Types.STRING, 0);
        if (options.get("topology").equals("unchained")) {
            ((SingleOutputStreamOperator<String>) lines).setParallelism(1);
        }
        lines.flatMap(new Split())
                .returns(STRING_PAIR)
                .keyBy(pair -> pair.f0, Types.STRING)
                .reduce((one, other) -> Tuple2.of(one.f0, one.f1 + other.f1))
                .sinkTo(sink());
    }

    private <K> void shuffle(
            StreamExecutionEnvironment environment,
            NumberedSource.Maker<Tuple2<K, Long>> maker,
            TypeInformation<Tuple2<K, Long>> type,
            TypeInformation<K> keyType) {
        source(environment, maker, type, 0)
                .keyBy(pair -> pair.f0, keyType)
                .reduce((one, other) -> Tuple2.of(one.f0, one.f1 + other.f1))
                .sinkTo(sink());
    }

    private void nexmark(StreamExecutionEnvironment environment, String query) {
        DataStream<Nexmark.Event> events = source(environment, new Nexmark.Events(options.get("events")), Nexmark.EVENT, 0);
        Nexmark.query(query, events).sinkTo(new TextNumberSink(options.get("folder"), true));
    }

    private void windows(StreamExecutionEnvironment environment) {
        long count = number("count");
        long parallelism = number("parallelism");
        int keys = (int) number("keys");
        String folder = options.get("folder");
        DataStream<Tuple2<String, Long>> sums;
        if (options.get("form").equals("twin")) {
            var source = new NumberedSource<>(count, new Windows.Delayed(count, parallelism, keys), folder, 0);
            sums = Windows.sums(environment, source, Types.STRING, true);
        } else {
            var source = new NumberedSource<>(count, new Windows.Ordered(count, parallelism, keys), folder, 0);
            sums = Windows.sums(environment, source, Types.LONG, false);
        }
        sums.sinkTo(new TextNumberSink(folder, false));
    }

    private void latency(StreamExecutionEnvironment environment) {
        environment.setBufferTimeout(number("bufferTimeout"));
        environment.setParallelism(1);
        source(environment, new Makers.Stamps(), LONG_PAIR, number("perSecond"))
                .slotSharingGroup("sender")
                .disableChaining()
                .sinkTo(this.<Long>sink())
                .slotSharingGroup("receiver");
        if (number("neighbours") > 0) {
            for (String group : new String[] {"sender", "receiver"}) {
                environment
                        .fromSource(new BusySource(), WatermarkStrategy.noWatermarks(), "busy", Types.LONG)
                        .slotSharingGroup(group)
                        .sinkTo(new DiscardingSink<>())
                        .slotSharingGroup(group);
            }
        }
    }

    private <T> SingleOutputStreamOperator<T> source(
            StreamExecutionEnvironment environment, NumberedSource.Maker<T> maker, TypeInformation<T> type, long perSecond) {
        NumberedSource<T> source = new NumberedSource<>(number("count"), maker, options.get("folder"), perSecond);
        return environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source", type);
    }

    private <K> CheckedSink<K> sink() {
        return new CheckedSink<>(options.get("folder"), number("keepFrom"), number("keep"), options.containsKey("perSecond"));
    }

    private long number(String option) {
        return Long.parseLong(options.getOrDefault(option, "0"));
    }

    /** The user's function of the word count. */
    public static final class Split implements FlatMapFunction<String, Tuple2<String, Long>> {
        @Override
        public void flatMap(String line, Collector<Tuple2<String, Long>> output) {
            int start = 0;
            int space = line.indexOf(' ');
            while (space >= 0) {
                output.collect(Tuple2.of(line.substring(start, space), 1L));
                start = space + 1;
                space = line.indexOf(' ', start);
            }
            output.collect(Tuple2.of(line.substring(start), 1L));
        }
    }
}
