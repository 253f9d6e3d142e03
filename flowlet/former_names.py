"""Former names of our classes, which state, savepoints and checkpoints go on naming when a class has moved or was
renamed.

Internal: not a public API, and may change with any version.

Side:       pure.
Rules:      a pickle names classes and functions by their module and qualified name.  One that state can hold
            (``tests/frozen/lists/state_names.txt`` has them all) gets a line in ``RENAMED`` when it moves, and so does
            each class inside of it.  A former name is never given to anything else.  A key keeps the hash that its
            class's first name gave it: key groups of stored state go by it (``first_name``).
Absent:     classes of users, which ``serde/pickles/former_classes.py`` finds.
"""

from typing import Final

# What moved and kept its name: the module before, the module now, and qualified names.
_MOVED: Final = (
    ("flowlet.connectors.write_ahead.committable_rows", "flowlet.connectors.write_ahead_writer", "CommittableRows"),
    (
        "flowlet.datastream.connectors.bucket_assigner",
        "flowlet.datastream.connectors.file_sink",
        "BucketAssigner BucketContext",
    ),
    ("flowlet.datastream.connectors.committer", "flowlet.datastream.connectors.base", "CommitRequest Committer"),
    (
        "flowlet.datastream.connectors.jdbc",
        "flowlet.datastream.connectors.database_statement",
        "JdbcConnectionOptions JdbcConnectionOptions.JdbcConnectionOptionsBuilder JdbcExecutionOptions",
    ),
    (
        "flowlet.datastream.connectors.jdbc",
        "flowlet.datastream.connectors.database_statement",
        "JdbcExecutionOptions.Builder",
    ),
    (
        "flowlet.datastream.connectors.kafka_offsets",
        "flowlet.datastream.connectors.kafka_source",
        "KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaTopicPartition",
    ),
    (
        "flowlet.datastream.connectors.kafka_serialization",
        "flowlet.datastream.connectors.kafka_sink",
        "KafkaRecordSerializationSchema KafkaRecordSerializationSchemaBuilder KafkaTopicSelector",
    ),
    (
        "flowlet.datastream.connectors.rolling_policy",
        "flowlet.datastream.connectors.file_sink",
        "DefaultRollingPolicy OnCheckpointRollingPolicy OutputFileConfig",
    ),
    (
        "flowlet.datastream.connectors.rolling_policy",
        "flowlet.datastream.connectors.file_sink",
        "OutputFileConfig.OutputFileConfigBuilder RollingPolicy",
    ),
    (
        "flowlet.datastream.connectors.sink_writer",
        "flowlet.datastream.connectors.base",
        "CommittingSinkWriter SinkWriter SinkWriterContext StatefulSinkWriter WriterInitContext",
    ),
    ("flowlet.datastream.connectors.split_source", "flowlet.datastream.connectors.base", "SplitSource"),
    (
        "flowlet.datastream.formats.csv",
        "flowlet.datastream.formats.bulk_formats",
        "CsvColumn CsvSchema CsvSchemaBuilder CsvWriterFactory",
    ),
    ("flowlet.datastream.formats.parquet", "flowlet.datastream.formats.bulk_formats", "ParquetWriterFactory"),
    ("flowlet.sinks.global_commit_operator", "flowlet.sinks.commit_runner", "Committed"),
    ("flowlet.splits.file_split", "flowlet.splits.split_kinds", "FileSet FileSplit"),
    ("flowlet.splits.hybrid_split", "flowlet.splits.split_kinds", "HybridSplit HybridSplits"),
    ("flowlet.splits.kafka_split", "flowlet.splits.split_kinds", "KafkaSplit KafkaTopics OffsetKind OffsetRule"),
    ("flowlet.splits.number_split", "flowlet.splits.split_kinds", "NumberRange NumberSplit"),
    ("flowlet.splits.planned_split", "flowlet.splits.split_kinds", "PlannedSplit PlannedSplits"),
)
RENAMED: Final[dict[str, str]] = {
    f"{before}:{name}": f"{now}:{name}" for before, now, names in _MOVED for name in names.split()
}
"""From each former name to today's, both as ``module:qualified name``; of several former names of one class the first
one comes first.
"""


def first_names(renamed: dict[str, str]) -> dict[str, str]:
    """From today's names to the first ones."""
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
    """The first name of a class or function, with dots: what a key of this class is known by in every version."""
    return FIRST_NAMES.get(f"{module}:{name}", f"{module}.{name}").replace(":", ".")
