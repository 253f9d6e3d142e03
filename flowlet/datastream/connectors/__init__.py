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
from flowlet.datastream.connectors.file_system import BulkWriterFactory, FileSink, FileSource, FileSourceBuilder, StreamFormat
from flowlet.datastream.connectors.sink_writer import (
    CommittingSinkWriter,
    SinkWriter,
    SinkWriterContext,
    StatefulSinkWriter,
    WriterInitContext,
)

__all__ = [
    "BulkWriterFactory",
    "CommitRequest",
    "Committer",
    "CommittingSinkWriter",
    "DeliveryGuarantee",
    "DiscardingSink",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "Sink",
    "SinkWriter",
    "SinkWriterContext",
    "Source",
    "StatefulSinkWriter",
    "StreamFormat",
    "SupportsCommitter",
    "SupportsGlobalCommitter",
    "SupportsWriterState",
    "WriterInitContext",
]

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
