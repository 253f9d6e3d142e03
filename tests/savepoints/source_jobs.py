"""Programs with each kind of source, sink and asynchronous function, and records in flight, each with a savepoint of
its own.
"""

import asyncio
import gzip
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from flowlet.common import Encoder, Row, Time, Types, WatermarkStrategy
from flowlet.common.serialization import SimpleStringSchema
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    SinkContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
    TwoPhaseCommitSinkFunction,
)
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.datastream.connectors import (
    NO_RECORD,
    CommitRequest,
    Committer,
    CommittingSinkWriter,
    DefaultRollingPolicy,
    FileSink,
    FileSource,
    OnCheckpointRollingPolicy,
    Sink,
    SinkWriterContext,
    SplitSource,
    StatefulSinkWriter,
    StreamFormat,
    SupportsCommitter,
    SupportsGlobalCommitter,
    SupportsWriterState,
    WriterInitContext,
)
from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from flowlet.datastream.connectors.file_system import BucketAssigner
from flowlet.datastream.connectors.hybrid_source import HybridSource
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcSink
from flowlet.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.datastream.formats.csv import CsvBulkWriters, CsvSchema
from flowlet.datastream.formats.parquet import ParquetBulkWriters
from flowlet.datastream.state import ValueStateDescriptor
from tests.savepoints.keyed_jobs import AT_THE_END, HALF, PAIR, PAIRS, WITH_WATERMARKS, Color, Place
from tests.savepoints.stage import HERE, POLL_S, STAGE, Held, feed, keep, keep_named, lines_of, pace

NO_WATERMARKS: Final = WatermarkStrategy.no_watermarks()


def keep_some(stream: DataStream, label: str, half: int, one_of: int, pause_s: float) -> None:
    keep(stream.flat_map(Held(label, half, one_of, pause_s), output_type=Types.LONG()).uid(f"held {label}"), label)


# -- sources of numbers and collections: chunks of a thousand, between which barriers pass


def collections(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    keep_some(env.from_collection(list(range(5_000)), Types.LONG()).uid("typed"), "typed", 1_500, 100, 0.001)
    keep_some(env.from_collection([*range(0, 10_000, 2)]).uid("objects"), "objects", 1_500, 100, 0.001)


def sequences(env: StreamExecutionEnvironment) -> None:
    """Numbers that no subtask has yet are with the JobManager."""
    env.set_parallelism(2)
    keep_some(env.from_sequence(1, 20_000).uid("sequence"), "sequence", 2_500, 200, 0.001)
    source = env.from_source(NumberSequenceSource(-5, 19_000), NO_WATERMARKS, "numbers").uid("numbers")
    keep_some(source, "numbers", 2_500, 200, 0.001)


def double(number: int) -> int:
    return 2 * number


def generators(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(2)
    source = DataGeneratorSource(double, 20_000, RateLimiterStrategy.no_op(), Types.LONG())
    keep_some(env.from_source(source, NO_WATERMARKS, "generator").uid("generator"), "generator", 2_500, 400, 0.001)


NUM_ROWS: Final = 2_000


def _batches(subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, NUM_ROWS, 50):
        yield pa.record_batch({"n": pa.array(range(start, start + 50), pa.int64())})


def number_of(row: Row) -> int:
    return int(row["n"])


def arrow_tables(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    table = pa.concat_tables([pa.Table.from_batches([each]) for each in _batches(0, 1)])
    schema = pa.schema([("n", pa.int64())])
    for name, source in (("table", env.from_arrow(table)), ("function", env.from_arrow(_batches, schema))):
        numbers = source.uid(name).to_records().map(number_of, output_type=Types.LONG()).uid(f"number of {name}")
        keep_some(numbers, name, 500, 20, 0.002)


# -- files


def write_files() -> None:
    """Write twelve files of lines, of which each third is compressed."""
    for index in range(12):
        text = "".join(f"{each}\n" for each in range(index, 480, 12)).encode()
        path = Path("files", f"{index}.txt.gz" if index % 3 == 0 else f"{index}.txt")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0) if index % 3 == 0 else text)


def files(env: StreamExecutionEnvironment) -> None:
    """Splits that are read, that one reader has, and that are not handed out."""
    env.set_parallelism(2)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{HERE}/files").build()
    keep_some(env.from_source(source, NO_WATERMARKS, "files").uid("files"), "files", 60, 5, 0.01)


def cut_files(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    source = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{HERE}/files").set_split_size(50).build()
    )
    keep_some(env.from_source(source, NO_WATERMARKS, "cut files").uid("cut files"), "cut files", 150, 5, 0.005)


# -- sources in splits


class Held4(SplitSource):
    """A source of four splits; the second and the last one stay at their middles."""

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {f"split {number}": range(number * 100, number * 100 + 20) for number in range(4)}

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        for number in split[num_read:]:
            while number in (110, 310) and not STAGE.go_on.is_set():
                STAGE.halves.add(f"split at {number}")
                yield NO_RECORD
            yield number


class HeldOneByOne(Held4):
    """Splits that are not handed out are with the JobManager."""

    max_open_splits: int | None = 1

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        for number in split[num_read:]:
            while number == 110 and not STAGE.go_on.is_set():
                STAGE.halves.add("one by one")
                yield NO_RECORD
            yield number


def splits(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(2)
    keep_named(env.from_source(Held4(), NO_WATERMARKS, "splits", Types.LONG()), "splits")
    one_by_one = (
        env.from_source(HeldOneByOne(), NO_WATERMARKS, "one by one", Types.LONG()).set_parallelism(1).uid("one by one")
    )
    keep(one_by_one, "one by one")


def hybrid_first(env: StreamExecutionEnvironment) -> None:
    """The savepoint is in the files, the first source."""
    _hybrid(env, 100)


def hybrid_second(env: StreamExecutionEnvironment) -> None:
    """The savepoint is in the numbers, the second source."""
    _hybrid(env, 1_200)


def _hybrid(env: StreamExecutionEnvironment, half: int) -> None:
    env.set_parallelism(1)
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{HERE}/files").build()
    source = HybridSource.builder(lines).add_source(NumberSequenceSource(1_000, 5_000)).build()
    keep_some(env.from_source(source, NO_WATERMARKS, "hybrid").uid("hybrid"), "hybrid", half, 10, 0.003)


class Replayed(SourceFunction):
    """Marks its position after every tenth number, and stays behind an unmarked one."""

    next = 0

    def restore_position(self, position: int) -> None:
        self.next = position

    def run(self, ctx: SourceContext) -> None:
        while self.next < 50 and not ctx.is_cancelled:
            if self.next == 25:
                STAGE.halves.add("replayed")
                if not STAGE.go_on.wait(POLL_S):
                    continue
            ctx.collect(self.next)
            self.next += 1
            if self.next % 10 == 0:
                ctx.mark_position(self.next)


def replayed(env: StreamExecutionEnvironment) -> None:
    """The numbers behind the mark and in front of the savepoint come again, and are dropped."""
    keep_named(env.add_source(Replayed(), type_info=Types.LONG()), "replayed")


# -- Kafka

TOPIC, NUM_PARTITIONS, NUM_MESSAGES = "numbers", 4, 40
SERVERS: Final[list[str]] = []  # of the broker that runs


@contextmanager
def broker(goes_on: bool) -> Iterator[None]:
    """Run a broker with all messages, or with the first half of them."""
    from tests.kafka.brokers import mock_cluster  # here, because it needs a package

    with mock_cluster() as cluster:
        SERVERS[:] = [cluster.servers]
        cluster.new_topic(name=TOPIC)
        cluster.produce(
            TOPIC,
            [f"{number}" for number in range(NUM_MESSAGES if goes_on else NUM_MESSAGES // 2)],
            partitions=NUM_PARTITIONS,
        )
        yield


class HalfOfMessages(MapFunction):
    """Says when it has seen the first half."""

    count = 0

    def map(self, value: str) -> str:
        self.count += 1
        if self.count == NUM_MESSAGES // 2:
            STAGE.halves.add("kafka")
        return value


def kafka(env: StreamExecutionEnvironment) -> None:
    """Ends behind the last message of each partition, which is not there yet when the savepoint is taken."""
    ends = {KafkaTopicPartition(TOPIC, each): NUM_MESSAGES // NUM_PARTITIONS for each in range(NUM_PARTITIONS)}
    builder = KafkaSource.builder().set_bootstrap_servers(SERVERS[0]).set_topics(TOPIC).set_group_id("group")
    builder.set_starting_offsets(KafkaOffsetsInitializer.earliest()).set_bounded(KafkaOffsetsInitializer.offsets(ends))
    source = builder.set_value_only_deserializer(SimpleStringSchema()).build()
    texts = env.from_source(source, NO_WATERMARKS, "kafka").uid("kafka")
    keep(texts.map(HalfOfMessages(), output_type=Types.STRING()).uid("half"), "kafka")


# -- asynchronous functions


class Later(AsyncFunction):
    """A function whose coroutines end in the second half, for some records: they are in the queue."""

    async def async_invoke(self, value: tuple[str, int]) -> list[tuple[str, int]]:
        while value[1] % 5 == 3 and not STAGE.go_on.is_set():  # noqa: ASYNC110 - the event is of threads
            await asyncio.sleep(POLL_S)
        return [(value[0], -value[1])]


class EmptyOnce(AsyncFunction):
    """The first result of some records is empty; until the second half there is no other."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    async def async_invoke(self, value: tuple[str, int]) -> list[tuple[str, int]]:
        if value[1] % 4 == 0 and (value[1] not in self.seen or not STAGE.go_on.is_set()):
            self.seen.add(value[1])
            return []
        return [(value[0], value[1] + 1_000)]


def is_empty(values: Sequence[Any]) -> bool:
    return not values


def asynchronous(env: StreamExecutionEnvironment) -> None:
    pairs, seconds = feed(env, PAIRS, HALF, PAIR), Time.seconds(100)
    objects = pairs.map(as_object).uid("objects")
    timed = feed(env, WITH_WATERMARKS, 2 * HALF, PAIR, name="with watermarks")
    keep_named(AsyncDataStream.ordered_wait(timed, Later(), seconds, 100, output_type=PAIR), "ordered timed")
    keep_named(AsyncDataStream.unordered_wait(timed, Later(), seconds, 100, output_type=PAIR), "unordered timed")
    keep_named(AsyncDataStream.unordered_wait(pairs, Later(), seconds, 100, output_type=PAIR), "unordered")
    keep_named(AsyncDataStream.ordered_wait(pairs, Later(), seconds, 100, output_type=PAIR), "ordered")
    keep_named(AsyncDataStream.ordered_wait(objects, LaterObjects(), seconds, 100), "ordered objects")
    retries: Any = AsyncRetryStrategy.fixed_delay(100_000, 5, is_empty, None)
    keep_named(
        AsyncDataStream.unordered_wait_with_retry(pairs, EmptyOnce(), seconds, retries, 100, output_type=PAIR),
        "retried",
    )


def as_object(pair: Any) -> Any:
    return Place(pair[1], Color.RED if pair[1] % 2 else Color.BLUE)


class LaterObjects(AsyncFunction):
    async def async_invoke(self, value: Place) -> list[Any]:
        assert type(value) is Place
        assert value.color in Color
        while value.number % 5 == 3 and not STAGE.go_on.is_set():  # noqa: ASYNC110 - the event is of threads
            await asyncio.sleep(POLL_S)
        return [value]


# -- sinks


def text_of(pair: Any) -> str:
    return f"{pair[0]} {pair[1]}"


def file_sinks(env: StreamExecutionEnvironment) -> None:
    """A file that goes on behind the savepoint, and files that end with it."""
    pairs, bucket = feed(env, PAIRS, HALF, PAIR), BucketAssigner.base_path_bucket_assigner()
    texts = pairs.map(text_of, output_type=Types.STRING()).uid("texts")
    encoder = Encoder.simple_string_encoder()
    rolling = DefaultRollingPolicy.default_rolling_policy()
    for name, policy in (("goes on", rolling), ("ends", OnCheckpointRollingPolicy.on_checkpoint_rolling_policy())):
        sink = (
            FileSink.for_row_format(f"{HERE}/out/{name}", encoder)
            .with_bucket_assigner(bucket)
            .with_rolling_policy(policy)
            .build()
        )
        texts.sink_to(sink).uid(name)
    row_type = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
    rows = pairs.map(as_row, output_type=row_type).uid("rows")
    schema = CsvSchema.builder().add_string_column("k").add_number_column("n").build()
    csv = (
        FileSink.for_bulk_format(f"{HERE}/out/csv", CsvBulkWriters.for_schema(schema))
        .with_bucket_assigner(bucket)
        .build()
    )
    rows.sink_to(csv).uid("csv")
    parquet = (
        FileSink.for_bulk_format(f"{HERE}/out/parquet", ParquetBulkWriters.for_row_type(row_type))
        .with_bucket_assigner(bucket)
        .build()
    )
    rows.sink_to(parquet).uid("parquet")


def as_row(pair: Any) -> Row:
    return Row(k=pair[0], n=pair[1])


def written_files() -> list[str]:
    found = [f"{name}: {line}" for name in ("goes on", "ends", "csv") for line in lines_of(Path("out", name))]
    tables = [pq.read_table(each) for each in sorted(Path("out", "parquet").rglob("part-*"))]
    return found + [f"parquet: {row}" for table in tables for row in table.to_pylist()]


class Writer(CommittingSinkWriter[Any], StatefulSinkWriter[Any]):
    """Keeps the number of records as its state; each committable is a batch of records."""

    def __init__(self, label: str, number: int) -> None:
        self.label, self.number = label, number
        self.waiting: list[Any] = []

    def write(self, value: Any, context: SinkWriterContext) -> None:
        self.number += 1
        self.waiting.append((self.number, value))

    def flush(self, *, end_of_input: bool) -> None:
        pass

    def prepare_commit(self) -> Sequence[Any]:
        waiting, self.waiting = self.waiting, []
        return [(self.label, each, Place(each[0], Color.BLUE)) for each in waiting]

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return [Place(self.number, Color.RED)]


class Commits(Committer[Any]):
    def __init__(self, word: str) -> None:
        self.word = word

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        for each in requests:
            label, record, place = each.get_committable()
            assert place.color is Color.BLUE
            STAGE.results.append(f"{label} {self.word}: {record}")


class CommittingSink(Sink, SupportsCommitter, SupportsWriterState):
    label = "sink"

    def create_writer(self, context: WriterInitContext) -> Writer:
        return Writer(self.label, 0)

    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[Any]) -> Writer:
        (place,) = recovered_state
        assert place.color is Color.RED
        return Writer(self.label, place.number)

    def create_committer(self, context: WriterInitContext) -> Commits:
        return Commits("committed")


class GlobalSink(CommittingSink, SupportsGlobalCommitter):
    label = "global sink"

    def create_global_committer(self, context: WriterInitContext) -> Commits:
        return Commits("published")


class Transactions(TwoPhaseCommitSinkFunction):
    def begin_transaction(self) -> list[Any]:
        return []

    def invoke_in_transaction(self, transaction: list[Any], value: Any, context: SinkContext) -> None:
        transaction.append(value)

    def pre_commit(self, transaction: list[Any]) -> None:
        pass

    def commit(self, transaction: list[Any]) -> None:
        STAGE.results.extend(f"transaction: {each}" for each in transaction)

    def abort(self, transaction: list[Any]) -> None:
        pass


def sinks(env: StreamExecutionEnvironment) -> None:
    """Write to sinks whose prepared records, in the savepoint, the restored run commits once more."""
    pairs = feed(env, PAIRS, HALF, PAIR)
    pairs.sink_to(CommittingSink()).uid("sink")
    pairs.sink_to(GlobalSink()).uid("global sink")
    pairs.add_sink(Transactions()).uid("transactions")


def make_database() -> None:
    with sqlite3.connect("database.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS pairs (k TEXT, n INTEGER)")
    database.close()


def database_sink(env: StreamExecutionEnvironment) -> None:
    row_type = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(f"sqlite:///{HERE}/database.db").build()
    sink = JdbcSink.exactly_once_sink("INSERT INTO pairs (k, n) VALUES (?, ?)", row_type, options)
    feed(env, PAIRS, HALF, PAIR).map(as_row, output_type=row_type).uid("rows").sink_to(sink).uid("database")


def written_rows() -> list[str]:
    database = sqlite3.connect("database.db")
    rows = database.execute("SELECT k, n FROM pairs").fetchall()
    database.close()
    return [f"row: {each}" for each in rows]


# -- records in flight


class SlowSum(KeyedProcessFunction):
    """Emits its sums at the end alone; slow while a checkpoint is made, so that records wait in front of it."""

    def __init__(self, name: str, number_of: Callable[[Any], int] | None = None) -> None:
        self.name, self.number_of = name, number_of or number_in

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        pace(self.name, 0.02)
        self.sum.update((self.sum.value() or 0) + self.number_of(value))
        ctx.timer_service().register_event_time_timer(AT_THE_END)
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), self.sum.value()


def number_in(value: Any) -> int:
    if isinstance(value, Place):
        assert type(value) is Place
        assert value.color in Color
    number = value.number if isinstance(value, Place) else value["n"] if isinstance(value, dict | Row) else value
    return int(number[1] if isinstance(number, tuple) else number)


N_ROW: Final = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
N_SCHEMA: Final = pa.schema([("k", pa.string()), ("n", pa.int64())])
IN_FLIGHT: Final[dict[str, tuple[Any, Any]]] = {
    "tuples": (lambda number: (f"key {number % 5}", number), PAIR),
    "untyped tuples": (lambda number: (None, number), None),
    "rows": (lambda number: Row(k=f"key {number % 5}", n=number), N_ROW),
    "untyped rows": (lambda number: Row(k=None, n=number), None),
    "dicts": (lambda number: {"n": number, "more": [number]}, None),
    "texts": (lambda number: f"{number}", Types.STRING()),
    "numbers": (lambda number: number, None),
    "objects": (lambda number: Place(number, Color.RED if number % 2 else Color.BLUE), None),
}


def in_flight(env: StreamExecutionEnvironment) -> None:
    """Records of each form; the tasks are not chained."""
    env.set_parallelism(2).disable_operator_chaining()
    source = env.from_collection(list(range(1_000)), Types.LONG()).uid("source")
    for name, (make, type_info) in IN_FLIGHT.items():
        made = source.map(make, output_type=type_info).set_parallelism(1).uid(f"made {name}")
        keep(made.key_by(lambda value: number_in(value) % 4).process(SlowSum(name)).uid(f"sum {name}"), name)
    rows = source.map(as_batch_row, output_type=N_ROW).set_parallelism(1).uid("batch rows").to_arrow(N_SCHEMA)
    keep(rows.key_by("k").process(SlowSum("columns")).uid("sum columns"), "columns")


def as_batch_row(number: int) -> Row:
    return Row(k=f"key {number % 5}", n=number)
