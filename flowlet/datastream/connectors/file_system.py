"""``FileSource``: the lines of text files; with the names of ``FileSink``, as in PyFlink.

Side:   pure.  The JobManager lists files, and tasks open them: paths are paths on their machines.
Source: PyFlink ``pyflink.datastream.connectors.file_system``; ``set_split_size`` is not in PyFlink (Flink splits bulk
        formats by blocks, and never text files).
Absent: ``monitor_continuously``, reading bulk formats, your own enumerators and split assigners.
"""

from typing import TYPE_CHECKING, final

from flowlet.common.checks import check_kind, check_name, check_number
from flowlet.common.not_yet import missing_names
from flowlet.common.paths import local_path
from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.datastream.connectors.file_sink import (
    BucketAssigner,
    BucketContext,
    BulkWriterFactory,
    DefaultRollingPolicy,
    FileSink,
    OnCheckpointRollingPolicy,
    OutputFileConfig,
    RollingPolicy,
)
from flowlet.errors import JobGraphError

__all__ = [
    "BucketAssigner",
    "BucketContext",
    "BulkWriterFactory",
    "DefaultRollingPolicy",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]


@final
class StreamFormat:
    """How a file is decoded into records."""

    __slots__ = ("charset_name",)

    def __init__(self, charset_name: str) -> None:
        self.charset_name = charset_name

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> "StreamFormat":
        """One ``str`` per line, without its line end; bytes outside the charset are replaced.

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


class FileSource(BuiltInSource):
    """The lines of files; made by ``FileSource.for_record_stream_format``.

    A directory stands for all files below it, except hidden ones, whose names begin with ``.`` or ``_``.  Files ending
    in ``.gz``, ``.gzip``, ``.bz2``, ``.xz``, ``.zst`` or ``.deflate`` are decompressed; so are others that begin as
    such files do, except for ``.deflate``.  A path is what it is in the program, by its working directory: see
    docs/sources.md.

    One subtask reads a file, in its order.  Each subtask gets the next file when it has finished one, largest file
    first.  So several files keep several subtasks busy; a single file does only with
    ``FileSourceBuilder.set_split_size``.
    """

    __slots__ = ("paths", "split_bytes", "stream_format")

    def __init__(self, stream_format: StreamFormat, paths: tuple[str, ...], split_bytes: int | None = None) -> None:
        self.stream_format = stream_format
        self.paths = paths
        self.split_bytes = split_bytes

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> "FileSourceBuilder":
        """A builder of a source of these files.  Raises JobGraphError if there is no path, or one is not a path."""
        return FileSourceBuilder(stream_format, paths)


class FileSourceBuilder:
    """Builds a ``FileSource``."""

    def __init__(self, stream_format: StreamFormat, paths: tuple[str, ...]) -> None:
        check_kind(stream_format, StreamFormat, "a file source needs a format such as StreamFormat.text_line_format()")
        if not paths:
            raise JobGraphError("a file source needs at least one path")
        for path in paths:
            check_name(path, "a file source reads paths given as texts")
            # How os.listdir() returns bytes that it cannot decode.
            if any("\ud800" <= character <= "\udfff" for character in path):
                raise JobGraphError(f"a file source reads paths that are UTF-8, got {path!r}; rename the file")
        self._stream_format = stream_format
        self._paths = tuple(map(_local, paths))
        self._split_bytes: int | None = None

    def process_static_file_set(self) -> "FileSourceBuilder":
        """Read the files that exist at the start, once; the default."""
        return self

    def set_split_size(self, split_bytes: int) -> "FileSourceBuilder":
        """Let several subtasks read one file, in parts of ``split_bytes`` bytes (16 MiB is a good size).

        Not in PyFlink.

        For jobs that do not depend on the order of lines, which is then kept only within a part.  Compressed files, and
        those in charsets like UTF-16, are still read as a whole.

        Raises:
            JobGraphError: it is not a whole number above 0.
        """
        check_number(split_bytes, 1, "set_split_size() needs a number of bytes above 0, such as 16 * 1024 * 1024")
        self._split_bytes = split_bytes
        return self

    def build(self) -> FileSource:
        """Build the source."""
        return FileSource(self._stream_format, self._paths, self._split_bytes)


def _local(path: str) -> str:
    try:
        return local_path(path)
    except ValueError as error:
        raise JobGraphError(f"a file source cannot read that: {error}") from None


if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
