"""What a file sink is told: ``FileSink`` and its builders, into which folders records go (``BucketAssigner``), and when
a part file is complete (``RollingPolicy``).

Side:   pure.  It describes; tasks open files: paths are paths on their machines, below a folder that all of them reach.
Source: PyFlink ``pyflink.datastream.connectors.file_system``, which exports these names here, too; Flink
        ``BasePathBucketAssigner``, ``DateTimeBucketAssigner``; of ``DateTimeFormatter`` the letters that are in
        ``_LETTERS``.  Your own assigners are not in PyFlink.
Units:  sizes in bytes, times in milliseconds.
Absent: compaction; object stores.
"""

import datetime
import itertools
import zoneinfo
from abc import ABC, abstractmethod
from dataclasses import dataclass  # not late: programs may ask for the parameters of its __init__
from typing import Any, ClassVar, Final, NoReturn, Self

from flowlet.common.checks import check_kind, check_name, check_number
from flowlet.common.not_yet import java_only
from flowlet.common.paths import local_path
from flowlet.common.serialization import Encoder
from flowlet.datastream.connectors.base import Sink
from flowlet.errors import JobGraphError

__all__ = [
    "BucketAssigner",
    "BucketContext",
    "BulkWriterFactory",
    "DefaultRollingPolicy",
    "FileSink",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
]


_LETTERS: Final = {"y": "year", "M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second", "S": "microsecond"}
_YEARS: Final = 4  # digits


class BucketContext(ABC):
    """The record whose bucket is asked for; valid during one call of ``get_bucket_id``."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """What the clock shows, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The timestamp of the record, in milliseconds; None: it has none."""


class BucketAssigner:
    """Says for each record into which bucket, a folder below the base path, it goes; your own has ``get_bucket_id``."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The path of the folder below the base path; empty for the base path itself."""
        raise NotImplementedError(f"{type(self).__name__} has no get_bucket_id()")

    @staticmethod
    def base_path_bucket_assigner() -> "BucketAssigner":
        """All files go into the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> "BucketAssigner":
        """A folder per hour, or as the format says, by the clock of the machine.

        Args:
            format_str: letters of Java's ``DateTimeFormatter`` for years to fractions of seconds; ``'text in quotes'``.
            timezone_id: such as ``Europe/Berlin``; None: that of the machine.

        Raises:
            JobGraphError: the format has another letter, or the time zone is unknown.
        """
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    """All files go into the base path."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """Empty."""
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """A folder per hour, or as the format says."""

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
    """Runs of a letter with that letter, and texts with None."""
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
    """When a part file is complete."""

    __slots__ = ()

    @staticmethod
    def default_rolling_policy(
        part_size: int = _PART_SIZE, rollover_interval: int = _MINUTE, inactivity_interval: int = _MINUTE
    ) -> "DefaultRollingPolicy":
        """A file is complete when it is that large, that old, or got no record for that long.

        Raises:
            JobGraphError: a value is no whole number above 0.
        """
        values = {
            "part_size": part_size,
            "rollover_interval": rollover_interval,
            "inactivity_interval": inactivity_interval,
        }
        for name, value in values.items():
            check_number(value, 1, f"default_rolling_policy: {name} must be a whole number above 0")
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> "OnCheckpointRollingPolicy":
        """A file is complete with each checkpoint."""
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
    """By size, age and inactivity."""

    part_size: int = _PART_SIZE
    rollover_interval: int = _MINUTE
    inactivity_interval: int = _MINUTE

    def rolls_on_checkpoint(self, num_bytes: int) -> bool:
        """If it is large enough."""
        return self.rolls_on_size(num_bytes)

    def rolls_on_size(self, num_bytes: int) -> bool:
        """If it is large enough."""
        return num_bytes >= self.part_size

    def rolls_on_time(self, age_ms: int, idle_ms: int) -> bool:
        """If it is old enough, or was idle for long enough."""
        return age_ms >= self.rollover_interval or idle_ms >= self.inactivity_interval


@dataclass(frozen=True, slots=True)
class OnCheckpointRollingPolicy(RollingPolicy):
    """With each checkpoint."""

    def rolls_on_checkpoint(self, num_bytes: int) -> bool:
        """Always."""
        return True

    def rolls_on_size(self, num_bytes: int) -> bool:
        """Never."""
        return False

    def rolls_on_time(self, age_ms: int, idle_ms: int) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class OutputFileConfig:
    """The beginning and the end of the names of part files: ``<prefix>-<uuid>-<number><suffix>``; made by ``builder``.

    ``part_suffix`` None: that of the format.
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

        def with_part_prefix(self, prefix: str) -> "OutputFileConfig.OutputFileConfigBuilder":
            """Names begin with it.

            Raises JobGraphError: it is empty, begins with a dot or an underscore, or has a slash.
            """
            self.part_prefix = _checked(prefix, "with_part_prefix")
            if not prefix or prefix[0] in "._":
                raise JobGraphError(
                    f"with_part_prefix: readers take files with names like {prefix!r} for hidden; use another prefix"
                )
            return self

        def with_part_suffix(self, suffix: str) -> "OutputFileConfig.OutputFileConfigBuilder":
            """Names end with it.  Raises JobGraphError: it has a slash."""
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
    """Base class of what makes the writers of a bulk format; see ``ParquetBulkWriters`` and ``CsvBulkWriters``."""

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
            try:
                path = local_path(base_path)
            except ValueError as error:
                raise JobGraphError(f"a file sink cannot write there: {error}") from None
            self._sink = FileSink(path, file_format, rolling_policy)

        def with_bucket_check_interval(self, interval: int) -> Self:
            """Look so often, in milliseconds, for files that are old or idle.

            Raises JobGraphError: it is no number above 0.
            """
            check_number(interval, 1, "with_bucket_check_interval() needs milliseconds above 0")
            self._sink.check_interval_ms = interval
            return self

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
            """Say into which folders records go; by default one per hour.

            Raises JobGraphError: it is no ``BucketAssigner``.
            """
            check_kind(bucket_assigner, BucketAssigner, "with_bucket_assigner() needs a BucketAssigner")
            self._sink.bucket_assigner = bucket_assigner
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
            """Say how names of files begin and end.  Raises JobGraphError: it is no ``OutputFileConfig``."""
            if not isinstance(output_file_config, OutputFileConfig):
                raise JobGraphError(
                    f"with_output_file_config() needs OutputFileConfig.builder()...build(), got {output_file_config!r}"
                )
            self._sink.file_config = output_file_config
            return self

        def enable_compact(self, strategy: Any, compactor: Any) -> NoReturn:
            """Not supported yet.  Raises JobGraphError, always."""
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
            """Say when a file is complete.  Raises JobGraphError: it is no ``RollingPolicy``."""
            check_kind(rolling_policy, RollingPolicy, "with_rolling_policy() needs a RollingPolicy")
            self._sink.rolling_policy = rolling_policy
            return self

    class BulkFormatBuilder(BaseBuilder):
        """Builds a sink whose files are complete with each checkpoint."""

        def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
            if not isinstance(writer_factory, BulkWriterFactory):
                raise JobGraphError(
                    f"a file sink needs a format such as ParquetBulkWriters.for_row_type(...), got {writer_factory!r}"
                )
            super().__init__(base_path, writer_factory, RollingPolicy.on_checkpoint_rolling_policy())

        def with_rolling_policy(self, rolling_policy: OnCheckpointRollingPolicy) -> Self:
            """Bulk formats roll with each checkpoint.  Raises JobGraphError: it is another policy."""
            if not isinstance(rolling_policy, OnCheckpointRollingPolicy):
                raise JobGraphError(
                    f"a bulk format needs RollingPolicy.on_checkpoint_rolling_policy(), got {rolling_policy!r}"
                )
            self._sink.rolling_policy = rolling_policy
            return self
