"""``RollingPolicy``: when a file sink closes a part file and begins the next one; ``OutputFileConfig``: the names of
part files.

Side:   pure.
Units:  sizes in bytes, times in milliseconds.
Source: PyFlink ``RollingPolicy``, ``DefaultRollingPolicy``, ``OnCheckpointRollingPolicy``, ``OutputFileConfig``.
"""

from dataclasses import dataclass  # not late: programs may ask for the parameters of its __init__
from typing import Any, Final

from flowlet.common.checks import is_whole_number
from flowlet.errors import JobGraphError

__all__ = ["DefaultRollingPolicy", "OnCheckpointRollingPolicy", "OutputFileConfig", "RollingPolicy"]

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
            if not is_whole_number(value) or value < 1:
                raise JobGraphError(f"default_rolling_policy: {name} must be a whole number above 0, got {value!r}")
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
