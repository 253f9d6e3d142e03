"""``FileSource``: the lines of text files.  ``FileSink``: records in files of a bulk format.

Side:   pure.  Files are listed by the JobManager and opened by the tasks that read or write them: paths are paths on their machines.
Source: PyFlink ``pyflink.datastream.connectors.file_system``; ``set_split_size`` is our own (Flink splits files of bulk formats by blocks,
        text files never).
Absent: ``monitor_continuously``, reading bulk formats, enumerators and split assigners of one's own; row formats, buckets, rolling and
        compaction of the sink.
"""

from typing import final

from flowlet.common.checks import is_name
from flowlet.datastream.connectors.base import Sink, Source
from flowlet.errors import JobGraphError

__all__ = ["BulkWriterFactory", "FileSink", "FileSource", "FileSourceBuilder", "StreamFormat"]


@final
class StreamFormat:
    """How the bytes of a file become records."""

    __slots__ = ("charset_name",)

    def __init__(self, charset_name: str) -> None:
        self.charset_name = charset_name

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> "StreamFormat":
        """One ``str`` per line, without its end; bytes that are not of the charset are replaced.

        Raises:
            JobGraphError: the charset is unknown.
        """
        try:
            "".encode(charset_name)
        except (LookupError, TypeError) as error:
            raise JobGraphError(
                f"text_line_format: the charset {charset_name!r} is unknown; use one that Python knows, such as UTF-8"
            ) from error
        return StreamFormat(charset_name)


class FileSource(Source):
    """Lines of the given files; made by ``FileSource.for_record_stream_format``.

    A directory stands for all files below it that are not hidden by a leading ``.`` or ``_``.  Names that end in ``.gz``, ``.gzip``,
    ``.bz2``, ``.xz`` or ``.zst`` are those of compressed files.

    A file is read by one subtask, in its order: records with the same key stay in the order of their file.  Each subtask gets the next file
    when it has read the last one, the largest file first; so several files keep several subtasks busy, and a single one does not, unless
    ``FileSourceBuilder.set_split_size`` allows it.
    """

    __slots__ = ("paths", "split_bytes", "stream_format")

    def __init__(self, stream_format: StreamFormat, paths: tuple[str, ...], split_bytes: int | None = None) -> None:
        self.stream_format = stream_format
        self.paths = paths
        self.split_bytes = split_bytes

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> "FileSourceBuilder":
        """A builder of a source of these files.

        Raises:
            JobGraphError: there is no path, or one is not a path.
        """
        return FileSourceBuilder(stream_format, paths)


class FileSourceBuilder:
    """Makes a ``FileSource``."""

    def __init__(self, stream_format: StreamFormat, paths: tuple[str, ...]) -> None:
        if not isinstance(stream_format, StreamFormat):
            raise JobGraphError(f"a file source needs a format such as StreamFormat.text_line_format(), got {stream_format!r}")
        if not paths:
            raise JobGraphError("a file source needs at least one path")
        for path in paths:
            if not is_name(path):
                raise JobGraphError(f"a file source reads paths given as texts, got {path!r}")
            if any("\ud800" <= character <= "\udfff" for character in path):  # what os.listdir() makes of other bytes
                raise JobGraphError(f"a file source reads paths that are UTF-8, got {path!r}; rename the file")
        self._stream_format = stream_format
        self._paths = paths
        self._split_bytes: int | None = None

    def process_static_file_set(self) -> "FileSourceBuilder":
        """Read the files that are there at the start, once; this is the default."""
        return self

    def set_split_size(self, split_bytes: int) -> "FileSourceBuilder":
        """Have several subtasks read one file, so many bytes each at a time; not in PyFlink.

        For jobs that do not depend on the order of lines: it is kept within a part, no longer within a file.  16 MiB is a good size.
        Compressed files, and those in charsets such as UTF-16, are read as a whole nevertheless.

        Raises:
            JobGraphError: it is not a whole number above 0.
        """
        if type(split_bytes) is not int or split_bytes < 1:
            raise JobGraphError(f"set_split_size() needs a number of bytes above 0, such as 16 * 1024 * 1024, got {split_bytes!r}")
        self._split_bytes = split_bytes
        return self

    def build(self) -> FileSource:
        """The source."""
        return FileSource(self._stream_format, self._paths, self._split_bytes)


class BulkWriterFactory:
    """Base of what makes the writers of a ``FileSink``; from ``ParquetBulkWriters``."""

    __slots__ = ()


class FileSink(Sink):
    """Records in files of one folder; made by ``FileSink.for_bulk_format``.

    Each subtask writes one file, ``part-<subtask>-<random>``.  A file gets its name when the input has ended and everything is in it;
    before, its name begins with a dot, which readers leave out, and when the job fails it is removed.
    """

    __slots__ = ("base_path", "writer_factory")

    def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
        self.base_path = base_path
        self.writer_factory = writer_factory

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> "FileSink.BulkFormatBuilder":
        """A builder of a sink into this folder, which is made where it does not exist.

        Raises:
            JobGraphError: an argument is not of its kind.
        """
        return FileSink.BulkFormatBuilder(base_path, writer_factory)

    class BulkFormatBuilder:
        """Makes a ``FileSink``."""

        def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
            if not is_name(base_path):
                raise JobGraphError(f"a file sink writes into a folder given as text, got {base_path!r}")
            if not isinstance(writer_factory, BulkWriterFactory):
                raise JobGraphError(f"a file sink needs a format such as ParquetBulkWriters.for_row_type(...), got {writer_factory!r}")
            self._sink = FileSink(base_path, writer_factory)

        def build(self) -> "FileSink":
            """The sink."""
            return self._sink
