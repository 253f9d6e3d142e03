"""``CheckpointConfig``: the options ``execution.checkpointing.*`` of an environment as methods.

Side:   pure.
Units:  milliseconds.
Rules:  the options themselves are the only state; a setter checks its value at once.  A setting without an effect here
        is kept, with a warning; one that would change results or durability and cannot be had is an error, which names
        possible ones.
Source: PyFlink ``pyflink.datastream.checkpoint_config``.
"""

from typing import Final, Self

from flowlet.common.checks import check_kind
from flowlet.common.configuration import Configuration
from flowlet.common.flinks_options import FORCED_UNALIGNED, IGNORED, warn_of_setter
from flowlet.common.job_settings import UNLIMITED, CheckpointSettings
from flowlet.common.not_yet import ExplainsMissing
from flowlet.common.option import row_of, view_of
from flowlet.common.options.known_options import replace_options
from flowlet.common.time import Duration, Length, millis_of
from flowlet.datastream.checkpoint_storage import BUFFER, THRESHOLD, CheckpointStorage, FileSystemCheckpointStorage
from flowlet.datastream.checkpointing_mode import CheckpointingMode
from flowlet.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from flowlet.errors import ConfigError, JobGraphError

__all__ = ["CheckpointConfig"]

DISABLED: Final = -1


class CheckpointConfig(ExplainsMissing):
    """How an environment's jobs take checkpoints; made by ``StreamExecutionEnvironment.get_checkpoint_config``.

    Threading: one thread.  Every setter raises ConfigError if the value is wrong, or means something that this version
               lacks.

    Args:
        configuration: holds the options, and is changed by the setters; left out, one that no environment reads.
    """

    __slots__ = ("_options",)

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._options = Configuration() if configuration is None else configuration

    def is_checkpointing_enabled(self) -> bool:
        """Whether an interval is set."""
        return self.get_checkpoint_interval() != DISABLED

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Whether records count exactly once, the default, or at least once."""
        return CheckpointingMode.EXACTLY_ONCE if self._found.is_exactly_once else CheckpointingMode.AT_LEAST_ONCE

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> Self:
        """Set whether records count exactly once or at least once."""
        check_kind(checkpointing_mode, CheckpointingMode, "a CheckpointingMode is needed", ConfigError)
        return self._set("is_exactly_once", checkpointing_mode.name)

    def get_checkpoint_interval(self) -> int:
        """The time from one checkpoint to the next; -1: none are taken."""
        interval_ms = self._found.interval_ms
        return DISABLED if interval_ms is None else interval_ms

    def set_checkpoint_interval(self, checkpoint_interval: int) -> Self:
        """Take checkpoints, with this time from one to the next: 10 or more."""
        return self._set("interval_ms", checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """The time after which a checkpoint that is not complete fails; 10 minutes unless set."""
        return self._found.timeout_ms

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> Self:
        """Set the time after which a checkpoint that is not complete fails: 10 or more."""
        return self._set("timeout_ms", checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """The time that passes at least between the end of a checkpoint and the next one."""
        return self._found.min_pause_ms

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> Self:
        """Set the time that passes at least between the end of a checkpoint and the next one."""
        return self._set("min_pause_ms", min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """How many checkpoints may be under way at a time."""
        return self._found.max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> Self:
        """Set how many checkpoints may be under way at a time."""
        return self._set("max_concurrent", max_concurrent_checkpoints)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Whether the first checkpoint that fails makes the job fail."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> Self:  # noqa: FBT001  # PyFlink's
        """Set whether the first checkpoint that fails makes the job fail, or none does."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else UNLIMITED)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """How many checkpoints may fail one after the other; the next one makes the job fail."""
        return self._found.tolerable_failures

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> Self:
        """Set how many checkpoints may fail one after the other."""
        return self._set("tolerable_failures", tolerable_checkpoint_failure_number)

    def set_externalized_checkpoint_retention(self, retention_mode: ExternalizedCheckpointRetention) -> Self:
        """Set whether the newest checkpoints stay when their job is cancelled or fails."""
        check_kind(
            retention_mode, ExternalizedCheckpointRetention, "an ExternalizedCheckpointRetention is needed", ConfigError
        )
        return self._set("is_retained_on_failure", retention_mode.name)

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether the newest checkpoints stay at least when their job fails."""
        return (
            self.get_externalized_checkpoint_retention()
            is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        )

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention | None:
        """Whether the newest checkpoints stay when their job is cancelled or fails; a job that finishes deletes its
        checkpoints.
        """
        if self._found.is_retained_on_cancellation:
            return ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        if self._found.is_retained_on_failure:
            return ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
        return ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether barriers may overtake records."""
        return self._found.is_unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002  # PyFlink's signature
        """Let barriers overtake records, which become part of the checkpoint: it ends soon under back pressure, too."""
        return self._set("is_unaligned", enabled)

    def disable_unaligned_checkpoints(self) -> Self:
        """Align barriers, the default."""
        return self.enable_unaligned_checkpoints(enabled=False)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Length) -> Self:
        """Let barriers overtake only when the alignment takes longer than this; needs
        ``enable_unaligned_checkpoints``.
        """
        try:
            timeout_ms = millis_of(alignment_timeout, "set_aligned_checkpoint_timeout()")
        except JobGraphError as error:
            raise ConfigError(str(error)) from None
        return self._set("aligned_timeout_ms", timeout_ms)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """How long the alignment may take before barriers overtake; 0, the default: they overtake at once."""
        return Duration.of_millis(self._found.aligned_timeout_ms)

    def set_alignment_timeout(self, alignment_timeout: Length) -> Self:
        """Call ``set_aligned_checkpoint_timeout``, of which this is another name."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_alignment_timeout(self) -> Duration:
        """The result of ``get_aligned_checkpoint_timeout``, of which this is another name."""
        return self.get_aligned_checkpoint_timeout()

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> Self:
        """Set where checkpoints are kept: the option ``execution.checkpointing.dir``.  In PyFlink until 1.20."""
        needs = "a CheckpointStorage is needed, such as FileSystemCheckpointStorage('/a/directory')"
        check_kind(storage, CheckpointStorage, needs, ConfigError)
        replace_options(self._options, (THRESHOLD, BUFFER), storage.options())
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> Self:
        """Keep checkpoints in a directory.  In PyFlink until 1.20."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """The storage of checkpoints, or None if none is set.  In PyFlink until 1.20."""
        directory = self._found.directory
        return FileSystemCheckpointStorage.of_options(directory, self._options) if directory else None

    def set_force_unaligned_checkpoints(
        self,
        force_unaligned_checkpoints: bool = True,  # noqa: FBT001, FBT002  # PyFlink's signature
    ) -> Self:
        """Keep the setting, and warn that it has no effect: no job has iterations, which alone would need it."""
        check_kind(
            force_unaligned_checkpoints, bool, "set_force_unaligned_checkpoints() needs True or False", ConfigError
        )
        self._options.set_boolean(FORCED_UNALIGNED, force_unaligned_checkpoints)
        if force_unaligned_checkpoints:
            warn_of_setter("set_force_unaligned_checkpoints()", IGNORED[FORCED_UNALIGNED])
        return self

    def is_force_unaligned_checkpoints(self) -> bool:
        """Whether forced unaligned checkpoints were asked for, which has no effect."""
        return self._options.get_boolean(FORCED_UNALIGNED, default_value=False)

    @property
    def _found(self) -> CheckpointSettings:
        return view_of(CheckpointSettings, self._options)

    def _set(self, field: str, value: object) -> Self:
        row_of(CheckpointSettings, field).set(self._options, value)
        return self
