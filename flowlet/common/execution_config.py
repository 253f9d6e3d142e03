"""``ExecutionConfig``: settings of an environment that operators inherit.

Side:   pure.
Source: PyFlink ``pyflink.common.execution_config``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from flowlet.common.checks import is_whole_number
from flowlet.common.not_yet import missing_attribute
from flowlet.common.settings.checkpoint_settings import CheckpointSettings
from flowlet.common.settings.execution_switches import ExecutionSwitches
from flowlet.common.settings.job_settings import (
    DEFAULT_CANCELLATION_INTERVAL_MS,
    DEFAULT_CANCELLATION_TIMEOUT_MS,
    JobSettings,
)
from flowlet.common.settings.restart_settings import RestartSettings
from flowlet.errors import JobGraphError

__all__ = ["ExecutionConfig"]

# Flink's limit of key groups: KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM.
MAX_MAX_PARALLELISM = 1 << 15
DEFAULT_AUTO_WATERMARK_INTERVAL_MS = 200  # Flink's pipeline.auto-watermark-interval


class ExecutionConfig(ExecutionSwitches):
    """The default parallelism, maximum parallelism and intervals; setters raise JobGraphError for a value out of range.

    ``PARALLELISM_DEFAULT`` as a parallelism leaves the choice to the environment; as a maximum, it is derived from each
    operator's parallelism.
    """

    PARALLELISM_DEFAULT = -1
    PARALLELISM_UNKNOWN = -2

    __slots__ = (
        "_auto_watermark_interval_ms",
        "_cancellation_interval_ms",
        "_cancellation_timeout_ms",
        "_global_job_parameters",
        "_latency_tracking_interval_ms",
        "_max_parallelism",
        "_parallelism",
    )

    def __init__(self) -> None:
        super().__init__()
        self._parallelism = ExecutionConfig.PARALLELISM_DEFAULT
        self._max_parallelism = ExecutionConfig.PARALLELISM_DEFAULT
        self._auto_watermark_interval_ms = DEFAULT_AUTO_WATERMARK_INTERVAL_MS
        self._latency_tracking_interval_ms = 0
        self._cancellation_interval_ms: int | None = None  # None: the TaskManager's
        self._cancellation_timeout_ms: int | None = None  # None: the TaskManager's
        self._global_job_parameters: tuple[tuple[str, str], ...] = ()

    def get_parallelism(self) -> int:
        """The default number of subtasks of an operator, or ``PARALLELISM_DEFAULT``."""
        return self._parallelism

    def set_parallelism(self, parallelism: int) -> "ExecutionConfig":
        """Set the default number of subtasks, 1 or more."""
        if parallelism != ExecutionConfig.PARALLELISM_DEFAULT:
            check_parallelism(parallelism, "the environment's")
        self._parallelism = parallelism
        return self

    def get_max_parallelism(self) -> int:
        """The default number of key groups, or ``PARALLELISM_DEFAULT``."""
        return self._max_parallelism

    def set_max_parallelism(self, max_parallelism: int) -> "ExecutionConfig":
        """Set the default number of key groups, 1 to 32768: the highest parallelism to which an operator can ever be
        rescaled.
        """
        check_max_parallelism(max_parallelism, "the environment's")
        self._max_parallelism = max_parallelism
        return self

    def set_auto_watermark_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often watermark generators are called, in milliseconds; 0: only at the end of the input."""
        self._auto_watermark_interval_ms = _checked_interval(interval, "auto watermark")
        return self

    def get_auto_watermark_interval(self) -> int:
        """How often watermark generators are called, in milliseconds."""
        return self._auto_watermark_interval_ms

    def set_latency_tracking_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often sources send a latency marker, in milliseconds; 0, the default: never."""
        self._latency_tracking_interval_ms = _checked_interval(interval, "latency tracking")
        return self

    def get_latency_tracking_interval(self) -> int:
        """How often sources send a latency marker, in milliseconds; 0: never."""
        return self._latency_tracking_interval_ms

    def set_task_cancellation_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often a cancelled task that does not end is reported, in milliseconds, 1 or more."""
        self._cancellation_interval_ms = JobSettings(
            _checked_interval(interval, "task cancellation")
        ).cancellation_interval_ms
        return self

    def get_task_cancellation_interval(self) -> int:
        """How often a cancelled task that does not end is reported, in milliseconds."""
        interval_ms = self._cancellation_interval_ms
        return DEFAULT_CANCELLATION_INTERVAL_MS if interval_ms is None else interval_ms

    def set_task_cancellation_timeout(self, timeout: int) -> "ExecutionConfig":
        """Set after how many milliseconds a cancelled task that does not end makes its TaskManager end itself; 0:
        never.
        """
        self._cancellation_timeout_ms = _checked_interval(timeout, "task cancellation timeout's")
        return self

    def get_task_cancellation_timeout(self) -> int:
        """After how many milliseconds a cancelled task that does not end makes its TaskManager end itself; 0: never."""
        timeout_ms = self._cancellation_timeout_ms
        return DEFAULT_CANCELLATION_TIMEOUT_MS if timeout_ms is None else timeout_ms

    def get_global_job_parameters(self) -> dict[str, str]:
        """The parameters that all functions of the job can read."""
        return dict(self._global_job_parameters)

    def set_global_job_parameters(self, global_job_parameters_dict: Any) -> "ExecutionConfig":
        """Set the parameters that all functions can read by ``RuntimeContext.get_job_parameter``;
        values become texts.
        """
        if not isinstance(global_job_parameters_dict, Mapping) or not all(
            isinstance(name, str) for name in global_job_parameters_dict
        ):
            raise JobGraphError(
                f"set_global_job_parameters() needs a dict with names as keys, got {global_job_parameters_dict!r}"
            )
        self._global_job_parameters = tuple((name, str(value)) for name, value in global_job_parameters_dict.items())
        return self

    def job_settings(
        self,
        max_record_bytes: int | None,
        checkpoints: CheckpointSettings | None = None,
        restart: RestartSettings | None = None,
    ) -> JobSettings:
        """What was set, for the tasks of a job; not in PyFlink."""
        settings = JobSettings(
            self._cancellation_interval_ms,
            self._cancellation_timeout_ms,
            max_record_bytes,
            checkpoints,
            restart or RestartSettings(),
        )
        return replace(settings, parameters=self._global_job_parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in (*self.__slots__, *ExecutionSwitches.__slots__))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)


def _checked_interval(interval: int, what: str) -> int:
    if not is_whole_number(interval) or interval < 0:
        raise JobGraphError(f"the {what} interval must be 0 or more milliseconds, got {interval!r}")
    return interval


def check_parallelism(parallelism: int, whose: str) -> None:
    """Raise JobGraphError, which names ``whose`` it is, unless this is a whole number of 1 or more."""
    if not is_whole_number(parallelism) or parallelism < 1:
        raise JobGraphError(f"{whose} parallelism must be a whole number of 1 or more, got {parallelism!r}")


def check_max_parallelism(max_parallelism: int, whose: str) -> None:
    """Raise JobGraphError, which names ``whose`` it is, unless this is a whole number in 1..32768."""
    if not is_whole_number(max_parallelism) or not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise JobGraphError(
            f"{whose} max parallelism must be a whole number from 1 to {MAX_MAX_PARALLELISM}, got {max_parallelism!r}"
        )
