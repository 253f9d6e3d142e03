"""Sources and sinks."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.datastream.connectors.base import (
        NO_RECORD,
        CommitRequest,
        Committer,
        CommittingSinkWriter,
        DeliveryGuarantee,
        DiscardingSink,
        Sink,
        SinkWriter,
        SinkWriterContext,
        Source,
        SplitSource,
        StatefulSinkWriter,
        SupportsCommitter,
        SupportsGlobalCommitter,
        SupportsWriterState,
        WriterInitContext,
    )
    from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
    from flowlet.datastream.connectors.file_system import (
        BucketAssigner,
        BulkWriterFactory,
        DefaultRollingPolicy,
        FileSink,
        FileSource,
        FileSourceBuilder,
        OnCheckpointRollingPolicy,
        OutputFileConfig,
        RollingPolicy,
        StreamFormat,
    )
    from flowlet.datastream.connectors.hybrid_source import HybridSource
    from flowlet.datastream.connectors.jdbc import (
        JdbcConnectionOptions,
        JdbcExactlyOnceSink,
        JdbcExecutionOptions,
        JdbcSink,
    )
    from flowlet.datastream.connectors.kafka import (
        KafkaOffsetResetStrategy,
        KafkaOffsetsInitializer,
        KafkaRecordSerializationSchema,
        KafkaSink,
        KafkaSource,
        KafkaTopicPartition,
    )
    from flowlet.datastream.connectors.number_seq import NumberSequenceSource
    from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget

__all__ = [
    "NO_RECORD",
    "BucketAssigner",
    "BulkWriterFactory",
    "CommitRequest",
    "Committer",
    "CommittingSinkWriter",
    "DataGeneratorSource",
    "DefaultRollingPolicy",
    "DeliveryGuarantee",
    "DiscardingSink",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "HybridSource",
    "JdbcConnectionOptions",
    "JdbcExactlyOnceSink",
    "JdbcExecutionOptions",
    "JdbcSink",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaSink",
    "KafkaSource",
    "KafkaTopicPartition",
    "NumberSequenceSource",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RateLimiterStrategy",
    "RollingPolicy",
    "Sink",
    "SinkWriter",
    "SinkWriterContext",
    "Source",
    "SplitSource",
    "StatefulSinkWriter",
    "StreamFormat",
    "SupportsCommitter",
    "SupportsGlobalCommitter",
    "SupportsWriterState",
    "WriteAheadSink",
    "WriteAheadTarget",
    "WriterInitContext",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "datastream.connectors.base": (
                "NO_RECORD CommitRequest Committer CommittingSinkWriter DeliveryGuarantee DiscardingSink Sink "
                "SinkWriter SinkWriterContext Source SplitSource StatefulSinkWriter SupportsCommitter "
                "SupportsGlobalCommitter SupportsWriterState WriterInitContext"
            ),
            "datastream.connectors.datagen": "DataGeneratorSource RateLimiterStrategy",
            "datastream.connectors.file_system": (
                "BucketAssigner BulkWriterFactory DefaultRollingPolicy FileSink FileSource FileSourceBuilder "
                "OnCheckpointRollingPolicy OutputFileConfig RollingPolicy StreamFormat"
            ),
            "datastream.connectors.hybrid_source": "HybridSource",
            "datastream.connectors.jdbc": "JdbcConnectionOptions JdbcExactlyOnceSink JdbcExecutionOptions JdbcSink",
            "datastream.connectors.kafka": (
                "KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaRecordSerializationSchema KafkaSink KafkaSource "
                "KafkaTopicPartition"
            ),
            "datastream.connectors.number_seq": "NumberSequenceSource",
            "datastream.connectors.write_ahead_sink": "WriteAheadSink WriteAheadTarget",
        },
        missing_names(__name__),
    )
