"""Former names of flowlet's classes: state, savepoints and checkpoints still have them when a class has moved or was
renamed.

Internal: not a public API, and may change with any version.

Side:       pure.
Rules:      a pickle names classes and functions by their module and qualified name.  A class that state can hold
            (``tests/frozen/lists/state_names.txt`` has them all) gets a row in ``_MOVED`` when it moves, and so does
            each class inside of it.  No other class gets a former name.  A key keeps the hash that its class's first
            name gave it: key groups of stored state go by it (``first_name``).
Absent:     classes of users, which ``serde/pickles/former_classes.py`` finds.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

# The classes that moved and kept their names.  A row: the former modules, the oldest first, then the present one, all
# in flowlet, and the qualified names of the classes; a row goes on in lines that are indented.
_MOVED: Final = """
common.units.memory_size > common.written_values: MemorySize
windows.window_columns_snapshot > windows.window_columns_operator > windows.window_blocks: WindowColumnsSnapshot
common.settings.tuning_options > common.flinks_options: IgnoredOptionWarning
columns.array_column > columns.column_kinds: ArrayColumn
columns.arrow_column > columns.column_kinds: ArrowColumn
columns.coded_column > columns.column_kinds: CodedColumn NameTable
columns.constant_column > columns.column_kinds: ConstantColumn
columns.list_column > columns.column_kinds: ListColumn
columns.offset_column > columns.column_kinds: OffsetColumn
keys.namespaced_key > keys.exact_keys: NamespacedKey
operators.aggregation_snapshot > operators.keyed_aggregation_operator > state.state_table: AggregationSnapshot StateForm
state.incremental_snapshot > state.state_snapshots: IncrementalSnapshot SharedFile
state.keyed_state_snapshot > state.state_snapshots: KeyedStateSnapshot StateDescription StateKind StateRows TypeForm
state.operator_state_snapshot > state.state_snapshots: OperatorStateRows OperatorStateSnapshot Redistribution
timers.timer_queue > timers.time_api > timers.keyed_timer_service: Timer
connectors.files.file_sink_writer > connectors.files.sink: OpenPart PendingFile StaleFile
connectors.number_source > connectors.numbers.reader: NumberPosition
connectors.text_line_source > connectors.files.reader: SplitPosition TextPosition
connectors.write_ahead.committable_rows > connectors.write_ahead_writer: CommittableRows
datastream.connectors.committer > datastream.connectors.base: CommitRequest Committer
datastream.connectors.sink_writer > datastream.connectors.base: CommittingSinkWriter SinkWriter SinkWriterContext
    StatefulSinkWriter WriterInitContext
datastream.connectors.split_source > datastream.connectors.base: SplitSource
datastream.connectors.jdbc > datastream.connectors.database_statement > connectors.database.statement:
    JdbcConnectionOptions JdbcConnectionOptions.JdbcConnectionOptionsBuilder JdbcExecutionOptions
    JdbcExecutionOptions.Builder
datastream.connectors.database_statement > connectors.database.statement: DatabaseKind DatabaseStatement DatabaseUrl
    Statement
datastream.connectors.jdbc > connectors.database.api: JdbcExactlyOnceSink JdbcSink
datastream.connectors.bucket_assigner > datastream.connectors.file_sink > datastream.connectors.file_system >
    connectors.files.api: BucketAssigner BucketContext
datastream.connectors.rolling_policy > datastream.connectors.file_sink > datastream.connectors.file_system >
    connectors.files.api: DefaultRollingPolicy OnCheckpointRollingPolicy OutputFileConfig
    OutputFileConfig.OutputFileConfigBuilder RollingPolicy
datastream.connectors.file_sink > datastream.connectors.file_system > connectors.files.api: BasePathBucketAssigner
    BulkWriterFactory DateTimeBucketAssigner FileSink FileSink.BaseBuilder FileSink.BulkFormatBuilder
    FileSink.RowFormatBuilder
datastream.connectors.file_system > connectors.files.api: FileSource FileSourceBuilder StreamFormat
datastream.connectors.kafka_offsets > datastream.connectors.kafka_source > datastream.connectors.kafka >
    connectors.kafka.api: KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaTopicPartition
datastream.connectors.kafka_serialization > datastream.connectors.kafka_sink > datastream.connectors.kafka >
    connectors.kafka.api: KafkaRecordSerializationSchema KafkaRecordSerializationSchemaBuilder KafkaTopicSelector
datastream.connectors.kafka_sink > datastream.connectors.kafka > connectors.kafka.api: KafkaSink KafkaSinkBuilder
datastream.connectors.kafka_source > datastream.connectors.kafka > connectors.kafka.api: KafkaSource KafkaSourceBuilder
datastream.connectors.kafka > connectors.kafka.api: ExactlyOnceKafkaSink FlushingKafkaSink
datastream.formats.csv > datastream.formats.bulk_formats: CsvColumn CsvSchema CsvSchemaBuilder CsvWriterFactory
datastream.formats.parquet > datastream.formats.bulk_formats: ParquetWriterFactory
datastream.closeable_iterator > datastream.data_stream: CloseableIterator
datastream.connected_streams > datastream.data_stream: BroadcastConnectedStream BroadcastStream ConnectedStreams
datastream.split_stream > datastream.data_stream: SplitStream
datastream.stream_settings > datastream.data_stream: DataStreamSink
datastream.user_functions.async_function > datastream.user_functions.process_functions: AsyncFunction
datastream.user_functions.join_functions > datastream.user_functions.process_functions: CoGroupFunction FlatJoinFunction
    JoinFunction ProcessJoinFunction ProcessJoinFunction.Context
datastream.user_functions.window_functions > datastream.user_functions.process_functions: AllWindowFunction
    ProcessAllWindowFunction ProcessAllWindowFunction.Context ProcessWindowFunction ProcessWindowFunction.Context
    WindowFunction
datastream.user_functions.function > datastream.states.runtime_context: FunctionInitializationContext
    FunctionSnapshotContext KeyedStateStore RuntimeContext
datastream.windowed_stream > datastream.keyed_stream: AllWindowedStream WindowedStream
sinks.global_commit_operator > sinks.commit_runner: Committed
splits.file_split > splits.split_kinds: FileSet FileSplit
splits.hybrid_split > splits.split_kinds: HybridSplit HybridSplits
splits.kafka_split > splits.split_kinds: KafkaSplit KafkaTopics OffsetKind OffsetRule
splits.number_split > splits.split_kinds: NumberRange NumberSplit
splits.planned_split > splits.split_kinds: PlannedSplit PlannedSplits
"""


def _renamed() -> Iterator[tuple[str, str]]:
    for row in re.sub(r"\n +", " ", _MOVED).split("\n")[1:-1]:
        places, _, names = row.partition(": ")
        *former, now = places.split(" > ")
        for module, name in product(former, names.split()):
            yield f"flowlet.{module}:{name}", f"flowlet.{now}:{name}"


RENAMED: Final = dict(_renamed())
"""Today's name by each former name, both as ``module:qualified name``; of several former names of one class the first
one comes first.
"""


def first_names(renamed: dict[str, str]) -> dict[str, str]:
    """The first names by today's names."""
    return {today: former for former, today in reversed(renamed.items())}


FIRST_NAMES: Final = first_names(RENAMED)


def present_name(module: str, name: str) -> tuple[str, str]:
    """The module and the name today of a class or function that stored state names."""
    today = RENAMED.get(f"{module}:{name}")
    if today is None:
        return module, name
    module, _, name = today.partition(":")
    return module, name


def first_name(module: str, name: str) -> str:
    """The first name of a class or function, with dots: it stands for the class of a key in every version."""
    return FIRST_NAMES.get(f"{module}:{name}", f"{module}.{name}").replace(":", ".")
