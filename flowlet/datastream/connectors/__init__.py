"""Sources and sinks."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.connectors.files.api import BucketAssigner as BucketAssigner
    from flowlet.connectors.files.api import BulkWriterFactory as BulkWriterFactory
    from flowlet.connectors.files.api import DefaultRollingPolicy as DefaultRollingPolicy
    from flowlet.connectors.files.api import FileSink as FileSink
    from flowlet.connectors.files.api import FileSource as FileSource
    from flowlet.connectors.files.api import FileSourceBuilder as FileSourceBuilder
    from flowlet.connectors.files.api import OnCheckpointRollingPolicy as OnCheckpointRollingPolicy
    from flowlet.connectors.files.api import OutputFileConfig as OutputFileConfig
    from flowlet.connectors.files.api import RollingPolicy as RollingPolicy
    from flowlet.connectors.files.api import StreamFormat as StreamFormat
    from flowlet.connectors.kafka.api import KafkaOffsetResetStrategy as KafkaOffsetResetStrategy
    from flowlet.connectors.kafka.api import KafkaOffsetsInitializer as KafkaOffsetsInitializer
    from flowlet.connectors.kafka.api import KafkaRecordSerializationSchema as KafkaRecordSerializationSchema
    from flowlet.connectors.kafka.api import KafkaSink as KafkaSink
    from flowlet.connectors.kafka.api import KafkaSource as KafkaSource
    from flowlet.connectors.kafka.api import KafkaTopicPartition as KafkaTopicPartition
    from flowlet.datastream.connectors.base import NO_RECORD as NO_RECORD
    from flowlet.datastream.connectors.base import CommitRequest as CommitRequest
    from flowlet.datastream.connectors.base import Committer as Committer
    from flowlet.datastream.connectors.base import CommittingSinkWriter as CommittingSinkWriter
    from flowlet.datastream.connectors.base import DeliveryGuarantee as DeliveryGuarantee
    from flowlet.datastream.connectors.base import DiscardingSink as DiscardingSink
    from flowlet.datastream.connectors.base import Sink as Sink
    from flowlet.datastream.connectors.base import SinkWriter as SinkWriter
    from flowlet.datastream.connectors.base import SinkWriterContext as SinkWriterContext
    from flowlet.datastream.connectors.base import Source as Source
    from flowlet.datastream.connectors.base import SplitSource as SplitSource
    from flowlet.datastream.connectors.base import StatefulSinkWriter as StatefulSinkWriter
    from flowlet.datastream.connectors.base import SupportsCommitter as SupportsCommitter
    from flowlet.datastream.connectors.base import SupportsGlobalCommitter as SupportsGlobalCommitter
    from flowlet.datastream.connectors.base import SupportsWriterState as SupportsWriterState
    from flowlet.datastream.connectors.base import WriterInitContext as WriterInitContext
    from flowlet.datastream.connectors.datagen import DataGeneratorSource as DataGeneratorSource
    from flowlet.datastream.connectors.datagen import RateLimiterStrategy as RateLimiterStrategy
    from flowlet.datastream.connectors.hybrid_source import HybridSource as HybridSource
    from flowlet.datastream.connectors.jdbc import *  # noqa: F403 - they are all below
    from flowlet.datastream.connectors.number_seq import NumberSequenceSource as NumberSequenceSource
    from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink as WriteAheadSink
    from flowlet.datastream.connectors.write_ahead_sink import WriteAheadTarget as WriteAheadTarget

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = late_names(
        __name__,
        {
            "datastream.connectors.base": (
                "NO_RECORD CommitRequest Committer CommittingSinkWriter DeliveryGuarantee DiscardingSink Sink "
                "SinkWriter SinkWriterContext Source SplitSource StatefulSinkWriter SupportsCommitter "
                "SupportsGlobalCommitter SupportsWriterState WriterInitContext"
            ),
            "datastream.connectors.datagen": "DataGeneratorSource RateLimiterStrategy",
            "connectors.files.api": (
                "BucketAssigner BulkWriterFactory DefaultRollingPolicy FileSink FileSource FileSourceBuilder "
                "OnCheckpointRollingPolicy OutputFileConfig RollingPolicy StreamFormat"
            ),
            "datastream.connectors.hybrid_source": "HybridSource",
            "datastream.connectors.jdbc": "JdbcConnectionOptions JdbcExactlyOnceSink JdbcExecutionOptions JdbcSink",
            "connectors.kafka.api": (
                "KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaRecordSerializationSchema KafkaSink KafkaSource "
                "KafkaTopicPartition"
            ),
            "datastream.connectors.number_seq": "NumberSequenceSource",
            "datastream.connectors.write_ahead_sink": "WriteAheadSink WriteAheadTarget",
        },
        missing_names(__name__),
    )
