"""Sources and sinks."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.datastream.connectors.base import (
    DeliveryGuarantee,
    DiscardingSink,
    Sink,
    Source,
    SupportsCommitter,
    SupportsGlobalCommitter,
    SupportsWriterState,
)
from flowlet.datastream.connectors.committer import CommitRequest, Committer
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
from flowlet.datastream.connectors.sink_writer import (
    CommittingSinkWriter,
    SinkWriter,
    SinkWriterContext,
    StatefulSinkWriter,
    WriterInitContext,
)
from flowlet.datastream.connectors.split_source import NO_RECORD, SplitSource

__all__ = [
    "NO_RECORD",
    "BucketAssigner",
    "BulkWriterFactory",
    "CommitRequest",
    "Committer",
    "CommittingSinkWriter",
    "DefaultRollingPolicy",
    "DeliveryGuarantee",
    "DiscardingSink",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
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
    "WriterInitContext",
]

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
