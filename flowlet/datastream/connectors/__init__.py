"""Sources and sinks."""

from flowlet.datastream.connectors.base import DiscardingSink, Sink, Source
from flowlet.datastream.connectors.file_system import FileSource, FileSourceBuilder, StreamFormat

__all__ = ["DiscardingSink", "FileSource", "FileSourceBuilder", "Sink", "Source", "StreamFormat"]
