"""Sources and sinks."""

from flowlet.datastream.connectors.base import DiscardingSink, Sink, Source
from flowlet.datastream.connectors.file_system import BulkWriterFactory, FileSink, FileSource, FileSourceBuilder, StreamFormat

__all__ = ["BulkWriterFactory", "DiscardingSink", "FileSink", "FileSource", "FileSourceBuilder", "Sink", "Source", "StreamFormat"]
