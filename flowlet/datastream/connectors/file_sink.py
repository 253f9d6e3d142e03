"""``FileSink``: records in part files, each of which is there when it counts.

Side:   pure.  It describes; tasks open files: paths are paths on their machines, below a folder that all of them reach.
Source: PyFlink ``pyflink.datastream.connectors.file_system``, which exports these names here, too.
Absent: compaction; object stores.
"""

from typing import Any, ClassVar, Final, NoReturn, Self

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.not_yet import java_only
from flowlet.common.paths import local_path
from flowlet.common.serialization import Encoder
from flowlet.datastream.connectors.base import Sink
from flowlet.datastream.connectors.bucket_assigner import BucketAssigner
from flowlet.datastream.connectors.rolling_policy import OnCheckpointRollingPolicy, OutputFileConfig, RollingPolicy
from flowlet.errors import JobGraphError

__all__ = ["BulkWriterFactory", "FileSink"]

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
            if not is_name(base_path):
                raise JobGraphError(f"a file sink writes into a folder given as text, got {base_path!r}")
            try:
                path = local_path(base_path)
            except ValueError as error:
                raise JobGraphError(f"a file sink cannot write there: {error}") from None
            self._sink = FileSink(path, file_format, rolling_policy)

        def with_bucket_check_interval(self, interval: int) -> Self:
            """Look so often, in milliseconds, for files that are old or idle.

            Raises JobGraphError: it is no number above 0.
            """
            if not is_whole_number(interval) or interval < 1:
                raise JobGraphError(f"with_bucket_check_interval() needs milliseconds above 0, got {interval!r}")
            self._sink.check_interval_ms = interval
            return self

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
            """Say into which folders records go; by default one per hour.

            Raises JobGraphError: it is no ``BucketAssigner``.
            """
            if not isinstance(bucket_assigner, BucketAssigner):
                raise JobGraphError(f"with_bucket_assigner() needs a BucketAssigner, got {bucket_assigner!r}")
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
            if not isinstance(encoder, Encoder):
                raise JobGraphError(
                    f"a file sink needs an encoder such as Encoder.simple_string_encoder(), got {encoder!r}"
                )
            super().__init__(base_path, encoder, RollingPolicy.default_rolling_policy())

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            """Say when a file is complete.  Raises JobGraphError: it is no ``RollingPolicy``."""
            if not isinstance(rolling_policy, RollingPolicy):
                raise JobGraphError(f"with_rolling_policy() needs a RollingPolicy, got {rolling_policy!r}")
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
