"""``FileSource``: the lines of text files; with the names of ``FileSink``, as in PyFlink.

Side:   pure.  The JobManager lists files, and tasks open them: paths are paths on their machines.
Source: PyFlink ``pyflink.datastream.connectors.file_system``; ``set_split_size`` is not in PyFlink (Flink splits bulk
        formats by blocks, and never text files).
Absent: ``monitor_continuously``, reading bulk formats, your own enumerators and split assigners.
"""

import datetime
import itertools
import zoneinfo
from dataclasses import asdict, dataclass  # not late: programs may ask for the parameters of its __init__
from typing import Any, ClassVar, Final, NoReturn, Self, final

from flowlet.common.checks import check_kind, check_name, check_number, known_charset
from flowlet.common.not_yet import java_only
from flowlet.common.paths import local_path
from flowlet.common.serialization import Encoder
from flowlet.datastream.connectors.base import BuiltInSource, Sink, SinkWriterContext
from flowlet.errors import JobGraphError

_LETTERS: Final = {"y": "year", "M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second", "S": "microsecond"}
_YEARS: Final = 4  # digits


class BucketContext(SinkWriterContext):
    """The record whose bucket is asked for; valid during one call of ``get_bucket_id``."""

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int, watermark: int) -> None:
        super().__init__(watermark)
        self._now_ms = now_ms

    def current_processing_time(self) -> int:
        """The time of the clock, in milliseconds since the epoch."""
        return self._now_ms


class BucketAssigner:
    """Chooses the bucket of each record, a folder below the base path; your own assigner has ``get_bucket_id``."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The path of the folder below the base path; empty for the base path itself."""
        raise NotImplementedError(f"{type(self).__name__} has no get_bucket_id()")

    @staticmethod
    def base_path_bucket_assigner() -> "BucketAssigner":
        """An assigner that puts all files into the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> "BucketAssigner":
        """An assigner of a folder per hour, or as the format says, by the clock of the machine.

        Args:
            format_str: letters of Java's ``DateTimeFormatter`` for years to fractions of seconds; ``'text in quotes'``.
            timezone_id: such as ``Europe/Berlin``; None: the zone of the machine.

        Raises:
            JobGraphError: the format has another letter, or the time zone is unknown.
        """
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    """Puts all files into the base path."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """Return an empty text: the base path itself."""
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """Puts files into a folder per hour, or as the format says."""

    def __init__(self, format_str: str, timezone_id: str | None) -> None:
        self._parts = _parts_of(format_str)
        self._zone: datetime.tzinfo | None = None
        if timezone_id is not None:
            try:
                self._zone = zoneinfo.ZoneInfo(timezone_id)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
                raise JobGraphError(f"date_time_bucket_assigner: the time zone {timezone_id!r} is unknown") from error

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The folder of the present hour, or as the format says."""
        return self.bucket_at(context.current_processing_time())

    def bucket_at(self, now_ms: int) -> str:
        """The folder at a time in milliseconds since the epoch."""
        at = datetime.datetime.fromtimestamp(now_ms / 1_000, self._zone)
        return "".join(text if letter is None else _digits(at, letter, len(text)) for letter, text in self._parts)


def _parts_of(pattern: Any) -> list[tuple[str | None, str]]:
    """The parts of a format: each run of a known letter, with this letter, and each text, with None."""
    if not isinstance(pattern, str) or not pattern:
        raise JobGraphError(f"date_time_bucket_assigner() needs a format such as 'yyyy-MM-dd--HH', got {pattern!r}")
    found: list[tuple[str | None, str]] = []
    quoted = pattern.split("'")
    if len(quoted) % 2 == 0:
        raise JobGraphError(f"date_time_bucket_assigner: the format {pattern!r} has a quote without its end")
    for index, piece in enumerate(quoted):
        if index % 2:
            found.append((None, piece or "'"))
            continue
        for letter, run in itertools.groupby(piece):
            if letter.isalpha() and letter not in _LETTERS:
                known = ", ".join(_LETTERS)
                raise JobGraphError(
                    f"date_time_bucket_assigner: the format {pattern!r} has the letter {letter!r}; known are {known}, "
                    "and 'text in quotes'"
                )
            found.append((letter if letter in _LETTERS else None, "".join(run)))
    return found


def _digits(at: datetime.datetime, letter: str, width: int) -> str:
    value: int = getattr(at, _LETTERS[letter])
    if letter == "S":
        return f"{value:06}".ljust(width, "0")[:width]
    if letter == "y" and width < _YEARS:
        value %= 100
    return f"{value:0{width}}"


_PART_SIZE: Final = 128 * 1024 * 1024
_MINUTE: Final = 60_000


class RollingPolicy:
    """Decides when a part file is complete."""

    __slots__ = ()

    @staticmethod
    def default_rolling_policy(
        part_size: int = _PART_SIZE, rollover_interval: int = _MINUTE, inactivity_interval: int = _MINUTE
    ) -> "DefaultRollingPolicy":
        """A policy by which a file is complete when it is so large, so old, or got no record for so long.

        Raises:
            JobGraphError: a value is no whole number above 0.
        """
        policy = DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)
        for name, value in asdict(policy).items():
            check_number(value, 1, f"default_rolling_policy: {name} must be a whole number above 0")
        return policy

    @staticmethod
    def on_checkpoint_rolling_policy() -> "OnCheckpointRollingPolicy":
        """A policy by which a file is complete with each checkpoint."""
        return OnCheckpointRollingPolicy()

    def rolls_on_checkpoint(self, num_bytes: int) -> bool:
        """Whether a file is complete in front of a checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} has no rolls_on_checkpoint()")

    def rolls_on_size(self, num_bytes: int) -> bool:
        """Whether a file is complete before the next record."""
        raise NotImplementedError(f"{type(self).__name__} has no rolls_on_size()")

    def rolls_on_time(self, age_ms: int, idle_ms: int) -> bool:
        """Whether a file is complete that is so old, and got no record for so long."""
        raise NotImplementedError(f"{type(self).__name__} has no rolls_on_time()")


@dataclass(frozen=True, slots=True)
class DefaultRollingPolicy(RollingPolicy):
    """Completes files by size, age and inactivity."""

    part_size: int = _PART_SIZE
    rollover_interval: int = _MINUTE
    inactivity_interval: int = _MINUTE

    def rolls_on_checkpoint(self, num_bytes: int) -> bool:
        """Whether the file is large enough."""
        return self.rolls_on_size(num_bytes)

    def rolls_on_size(self, num_bytes: int) -> bool:
        """Whether the file is large enough."""
        return num_bytes >= self.part_size

    def rolls_on_time(self, age_ms: int, idle_ms: int) -> bool:
        """Whether the file is old enough, or was idle for long enough."""
        return age_ms >= self.rollover_interval or idle_ms >= self.inactivity_interval


@dataclass(frozen=True, slots=True)
class OnCheckpointRollingPolicy(RollingPolicy):
    """Completes files with each checkpoint."""

    def rolls_on_checkpoint(self, num_bytes: int) -> bool:
        """Return True."""
        return True

    def rolls_on_size(self, num_bytes: int) -> bool:
        """Return False."""
        return False

    def rolls_on_time(self, age_ms: int, idle_ms: int) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, slots=True)
class OutputFileConfig:
    """The beginning and the end of the names of part files: ``<prefix>-<uuid>-<number><suffix>``; made by ``builder``.

    ``part_suffix`` None: the suffix of the format.
    """

    part_prefix: str = "part"
    part_suffix: str | None = None

    @staticmethod
    def builder() -> "OutputFileConfig.OutputFileConfigBuilder":
        """A builder of the names."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """The beginning."""
        return self.part_prefix

    def get_part_suffix(self) -> str:
        """The end; empty if the format decides."""
        return self.part_suffix or ""

    class OutputFileConfigBuilder:
        """Builds an ``OutputFileConfig``."""

        def __init__(self) -> None:
            self.part_prefix = "part"
            self.part_suffix: str | None = None

        def with_part_prefix(self, prefix: str) -> Self:
            """Set the beginning of the names.

            Raises JobGraphError: it is empty, begins with a dot or an underscore, or has a slash.
            """
            self.part_prefix = _checked(prefix, "with_part_prefix")
            if not prefix or prefix[0] in "._":
                raise JobGraphError(
                    f"with_part_prefix: readers take files with names like {prefix!r} for hidden; use another prefix"
                )
            return self

        def with_part_suffix(self, suffix: str) -> Self:
            """Set the end of the names.  Raises JobGraphError: it has a slash."""
            self.part_suffix = _checked(suffix, "with_part_suffix")
            return self

        def build(self) -> "OutputFileConfig":
            """Build the names."""
            return OutputFileConfig(self.part_prefix, self.part_suffix)


def _checked(text: Any, method: str) -> str:
    if not isinstance(text, str) or "/" in text or "\0" in text:
        raise JobGraphError(f"{method}() needs a text without slashes, got {text!r}")
    return text


_CHECK_INTERVAL_MS: Final = 60_000  # Flink's


class BulkWriterFactory:
    """Base class of factories that make writers of a bulk format; see ``ParquetBulkWriters`` and ``CsvBulkWriters``."""

    __slots__ = ()
    suffix: ClassVar[str] = ""  # of the names of files, unless an ``OutputFileConfig`` says otherwise


class FileSink(Sink):
    """Writes records into part files below a folder, exactly once; made by ``for_row_format`` or ``for_bulk_format``.

    A file gets its name when a checkpoint is complete that holds it, or at the end of a job without checkpoints.
    Before, its name begins with a dot, which readers ignore.
    """

    __slots__ = ("base_path", "bucket_assigner", "check_interval_ms", "file_config", "format", "rolling_policy")
    get_transformer = java_only("sink_to(), which takes the sink itself")

    def __init__(self, base_path: str, file_format: Encoder | BulkWriterFactory, rolling_policy: RollingPolicy) -> None:
        self.base_path = base_path
        self.format = file_format
        self.rolling_policy = rolling_policy
        self.bucket_assigner: BucketAssigner = BucketAssigner.date_time_bucket_assigner()
        self.check_interval_ms = _CHECK_INTERVAL_MS
        self.file_config = OutputFileConfig()

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> "FileSink.RowFormatBuilder":
        """A builder of a sink that appends records one by one.

        Raises JobGraphError: an argument has the wrong type.
        """
        return FileSink.RowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> "FileSink.BulkFormatBuilder":
        """A builder of a sink whose files are complete with each checkpoint.

        Raises JobGraphError: an argument has the wrong type.
        """
        return FileSink.BulkFormatBuilder(base_path, writer_factory)

    class BaseBuilder:
        """The common part of the builders; the folder is created if missing."""

        def __init__(
            self, base_path: str, file_format: Encoder | BulkWriterFactory, rolling_policy: RollingPolicy
        ) -> None:
            check_name(base_path, "a file sink writes into a folder given as text")
            path = _local(base_path, "a file sink cannot write there")
            self._sink = FileSink(path, file_format, rolling_policy)

        def with_bucket_check_interval(self, interval: int) -> Self:
            """Set how often, in milliseconds, to look for files that are old or idle.

            Raises JobGraphError: it is no number above 0.
            """
            check_number(interval, 1, "with_bucket_check_interval() needs milliseconds above 0")
            self._sink.check_interval_ms = interval
            return self

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
            """Set the assigner of folders to records; by default there is a folder per hour.

            Raises JobGraphError: it is no ``BucketAssigner``.
            """
            check_kind(bucket_assigner, BucketAssigner, "with_bucket_assigner() needs a BucketAssigner")
            self._sink.bucket_assigner = bucket_assigner
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
            """Set how names of files begin and end.  Raises JobGraphError: it is no ``OutputFileConfig``."""
            needs = "with_output_file_config() needs OutputFileConfig.builder()...build()"
            check_kind(output_file_config, OutputFileConfig, needs)
            self._sink.file_config = output_file_config
            return self

        def enable_compact(self, strategy: Any, compactor: Any) -> NoReturn:
            """Raise JobGraphError: files cannot be compacted yet."""
            raise JobGraphError(
                "a file sink cannot compact files yet: leave enable_compact() out, and use a larger checkpoint interval"
            )

        def disable_compact(self) -> Self:
            """Leave files as they are, as always."""
            return self

        def build(self) -> "FileSink":
            """Build the sink."""
            return self._sink

    class RowFormatBuilder(BaseBuilder):
        """Builds a sink that appends records."""

        def __init__(self, base_path: str, encoder: Encoder) -> None:
            check_kind(encoder, Encoder, "a file sink needs an encoder such as Encoder.simple_string_encoder()")
            super().__init__(base_path, encoder, RollingPolicy.default_rolling_policy())

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            """Set when a file is complete.  Raises JobGraphError: it is no ``RollingPolicy``."""
            check_kind(rolling_policy, RollingPolicy, "with_rolling_policy() needs a RollingPolicy")
            self._sink.rolling_policy = rolling_policy
            return self

    class BulkFormatBuilder(BaseBuilder):
        """Builds a sink whose files are complete with each checkpoint."""

        def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
            needs = "a file sink needs a format such as ParquetBulkWriters.for_row_type(...)"
            check_kind(writer_factory, BulkWriterFactory, needs)
            super().__init__(base_path, writer_factory, RollingPolicy.on_checkpoint_rolling_policy())

        def with_rolling_policy(self, rolling_policy: OnCheckpointRollingPolicy) -> Self:
            """Accept the only policy of bulk formats: files end with each checkpoint.

            Raises JobGraphError: it is another policy.
            """
            needs = "a bulk format needs RollingPolicy.on_checkpoint_rolling_policy()"
            check_kind(rolling_policy, OnCheckpointRollingPolicy, needs)
            self._sink.rolling_policy = rolling_policy
            return self


@final
class StreamFormat:
    """How a file is decoded into records."""

    __slots__ = ("charset_name",)

    def __init__(self, charset_name: str) -> None:
        self.charset_name = charset_name

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> "StreamFormat":
        """A format with one ``str`` per line, without its line end; bytes outside the charset are replaced.

        Raises:
            JobGraphError: the charset is unknown.
        """
        known_charset(charset_name, "text_line_format")
        return StreamFormat(charset_name)


class FileSource(BuiltInSource):
    """The lines of files; made by ``FileSource.for_record_stream_format``.

    A directory stands for all files below it, except hidden ones, whose names begin with ``.`` or ``_``.  Files ending
    in ``.gz``, ``.gzip``, ``.bz2``, ``.xz``, ``.zst`` or ``.deflate`` are decompressed; so are others that begin as
    such files do, except for ``.deflate``.  A relative path is below the working directory of the program: see
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
        self._paths = tuple(_local(path, "a file source cannot read that") for path in paths)
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


def _local(path: str, refusal: str) -> str:
    try:
        return local_path(path)
    except ValueError as error:
        raise JobGraphError(f"{refusal}: {error}") from None
