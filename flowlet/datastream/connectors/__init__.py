"""Sources and sinks."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.datastream.connectors.base import DiscardingSink, Sink, Source
from flowlet.datastream.connectors.file_system import BulkWriterFactory, FileSink, FileSource, FileSourceBuilder, StreamFormat

__all__ = ["BulkWriterFactory", "DiscardingSink", "FileSink", "FileSource", "FileSourceBuilder", "Sink", "Source", "StreamFormat"]

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
