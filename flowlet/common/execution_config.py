"""``ExecutionConfig``: settings of an environment that operators inherit, and the rows of its options.

Side:   pure.
Rules:  the options themselves are the only state; a setter checks its value at once.  What concerns the speed of Java
        alone has no effect: it is remembered, and a warning says so.
Source: PyFlink ``pyflink.common.execution_config``; Flink ``CoreOptions``, ``PipelineOptions``, ``ExecutionOptions``,
        ``MetricOptions``.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from flowlet.common.checks import check_kind, check_number
from flowlet.common.configuration import Configuration
from flowlet.common.flinks_options import IGNORED, warn_of_setter
from flowlet.common.job_settings import (
    DEFAULT_CANCELLATION_INTERVAL_MS,
    DEFAULT_CANCELLATION_TIMEOUT_MS,
    JobSettings,
)
from flowlet.common.not_yet import ExplainsMissing
from flowlet.common.option import Option, boolean, choice, duration, duration_ms, row_of, text, view_of, whole_number
from flowlet.errors import ConfigError, JobGraphError
from netstack.late import dataclass

__all__ = ["ExecutionConfig"]

# Flink's limit of key groups: KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM.
MAX_MAX_PARALLELISM = 1 << 15
DEFAULT_AUTO_WATERMARK_INTERVAL_MS = 200  # Flink's pipeline.auto-watermark-interval

# The switches without an effect, by the method that turns them on: the option of equal meaning, and its value then.
_SWITCHES: Final = {
    "enable_object_reuse": ("pipeline.object-reuse", "true"),
    "set_use_snapshot_compression": ("execution.checkpointing.snapshot-compression", "true"),
    "disable_closure_cleaner": ("pipeline.closure-cleaner-level", "none"),
    "enable_force_kryo": ("pipeline.force-kryo", "true"),
    "enable_force_avro": ("pipeline.force-avro", "true"),
    "disable_generic_types": ("pipeline.generic-types", "false"),
}


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """The settings that ``StreamExecutionEnvironment`` and ``ExecutionConfig`` use while a program is built.

    Args:
        parallelism: subtasks of each operator; else the usable cores, on a remote cluster 1.
        max_parallelism: key groups; else they follow from the parallelism.
        job_name: the job's name, if `execute()` gets none.
        is_chaining_enabled: whether operators may share a task.
        has_auto_generated_uids: whether operators without a uid may run.
        auto_watermark_interval_ms: how often watermark generators are called; 0: only at the end.
        latency_tracking_interval_ms: how often sources send a latency marker; 0: never.
        runtime_mode: running results, final ones, or final ones if all inputs end.
        buffer_timeout_ms: the longest time that a record waits for its buffer to fill.
        is_buffer_timeout_enabled: `false`: records wait until their buffer is full.

    Raises:
        JobGraphError: the max parallelism is out of range.
    """

    parallelism: int | None = whole_number("parallelism.default", least=1).field()
    max_parallelism: int | None = whole_number("pipeline.max-parallelism", least=1).field()
    job_name: str | None = text("pipeline.name").field()
    is_chaining_enabled: bool = boolean(
        "pipeline.operator-chaining.enabled", "pipeline.operator-chaining", default=True
    ).field()
    has_auto_generated_uids: bool = boolean("pipeline.auto-generate-uids", default=True).field()
    auto_watermark_interval_ms: int = duration(
        "pipeline.auto-watermark-interval", default=DEFAULT_AUTO_WATERMARK_INTERVAL_MS
    ).field()
    latency_tracking_interval_ms: int = duration("metrics.latency.interval", default=0).field()
    runtime_mode: str = choice(
        "execution.runtime-mode",
        {"streaming": "STREAMING", "batch": "BATCH", "automatic": "AUTOMATIC"},
        default="STREAMING",
    ).field()
    buffer_timeout_ms: int = Option(
        "execution.buffer-timeout.interval",
        lambda found: -1 if found == "-1" else duration_ms(found),
        "a duration such as '100 ms', or -1 (no limit)",
        100,
        ("execution.buffer-timeout",),
    ).field()
    is_buffer_timeout_enabled: bool = boolean("execution.buffer-timeout.enabled", default=True).field()

    def __post_init__(self) -> None:
        if self.max_parallelism is not None:
            check_max_parallelism(self.max_parallelism, "the environment's")


class ExecutionConfig(ExplainsMissing):
    """The default parallelism, maximum parallelism and intervals; setters raise JobGraphError for a value out of range.

    ``PARALLELISM_DEFAULT`` as a parallelism leaves the choice to the environment; as a maximum, it is derived from each
    operator's parallelism.
    """

    PARALLELISM_DEFAULT = -1
    PARALLELISM_UNKNOWN = -2

    __slots__ = ("_options",)

    def __init__(self) -> None:
        self._options = Configuration()

    def get_parallelism(self) -> int:
        """Return the default number of subtasks of an operator, or ``PARALLELISM_DEFAULT``."""
        return self._found.parallelism or ExecutionConfig.PARALLELISM_DEFAULT

    def set_parallelism(self, parallelism: int) -> "ExecutionConfig":
        """Set the default number of subtasks, 1 or more."""
        if parallelism == ExecutionConfig.PARALLELISM_DEFAULT:
            self._options.remove_config(row_of(EnvironmentSettings, "parallelism").name)
            return self
        check_parallelism(parallelism, "the environment's")
        return self._set("parallelism", parallelism)

    def get_max_parallelism(self) -> int:
        """Return the default number of key groups, or ``PARALLELISM_DEFAULT``."""
        return self._found.max_parallelism or ExecutionConfig.PARALLELISM_DEFAULT

    def set_max_parallelism(self, max_parallelism: int) -> "ExecutionConfig":
        """Set the default number of key groups, 1 to 32768: the highest parallelism to which an operator can ever be
        rescaled.
        """
        check_max_parallelism(max_parallelism, "the environment's")
        return self._set("max_parallelism", max_parallelism)

    def set_auto_watermark_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often watermark generators are called, in milliseconds; 0: only at the end of the input."""
        return self._set("auto_watermark_interval_ms", _checked_interval(interval, "auto watermark"))

    def get_auto_watermark_interval(self) -> int:
        """How often watermark generators are called, in milliseconds."""
        return self._found.auto_watermark_interval_ms

    def set_latency_tracking_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often sources send a latency marker, in milliseconds; 0, the default: never."""
        return self._set("latency_tracking_interval_ms", _checked_interval(interval, "latency tracking"))

    def get_latency_tracking_interval(self) -> int:
        """How often sources send a latency marker, in milliseconds; 0: never."""
        return self._found.latency_tracking_interval_ms

    def set_task_cancellation_interval(self, interval: int) -> "ExecutionConfig":
        """Set how often a cancelled task that does not end is reported, in milliseconds, 1 or more."""
        JobSettings(_checked_interval(interval, "task cancellation"))
        row_of(JobSettings, "cancellation_interval_ms").set(self._options, interval)
        return self

    def get_task_cancellation_interval(self) -> int:
        """How often a cancelled task that does not end is reported, in milliseconds."""
        interval_ms = view_of(JobSettings, self._options).cancellation_interval_ms
        return DEFAULT_CANCELLATION_INTERVAL_MS if interval_ms is None else interval_ms

    def set_task_cancellation_timeout(self, timeout: int) -> "ExecutionConfig":
        """Set after how many milliseconds a cancelled task that does not end makes its TaskManager end itself; 0:
        never.
        """
        _checked_interval(timeout, "task cancellation timeout's")
        row_of(JobSettings, "cancellation_timeout_ms").set(self._options, timeout)
        return self

    def get_task_cancellation_timeout(self) -> int:
        """After how many milliseconds a cancelled task that does not end makes its TaskManager end itself; 0: never."""
        timeout_ms = view_of(JobSettings, self._options).cancellation_timeout_ms
        return DEFAULT_CANCELLATION_TIMEOUT_MS if timeout_ms is None else timeout_ms

    def get_global_job_parameters(self) -> dict[str, str]:
        """Return the parameters that all functions of the job can read."""
        return dict(view_of(JobSettings, self._options).parameters)

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
        texts = {name: str(value) for name, value in global_job_parameters_dict.items()}
        row_of(JobSettings, "parameters").set(self._options, json.dumps(texts))
        return self

    def enable_auto_generated_uids(self) -> "ExecutionConfig":
        """Let operators without a uid have one that follows from their place in the program; the default."""
        return self._set("has_auto_generated_uids", value=True)

    def disable_auto_generated_uids(self) -> "ExecutionConfig":
        """Refuse a job with an operator that has no uid."""
        return self._set("has_auto_generated_uids", value=False)

    def has_auto_generated_uids_enabled(self) -> bool:
        """Whether operators need no uid."""
        return self._found.has_auto_generated_uids

    def enable_object_reuse(self) -> "ExecutionConfig":
        """Set an option without an effect, and warn of it: chained operators always pass on the record object itself,
        as PyFlink's do.
        """
        return self._turn("enable_object_reuse")

    def disable_object_reuse(self) -> "ExecutionConfig":
        """Set the default, which has no effect."""
        return self._turn_back("enable_object_reuse")

    def is_object_reuse_enabled(self) -> bool:
        """Whether ``enable_object_reuse`` was called last; the default is False; without an effect."""
        return self._is_turned("enable_object_reuse")

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> "ExecutionConfig":  # noqa: FBT001  # PyFlink's signature
        """Set an option without an effect, and warn of it: snapshots are not compressed.  Raises ConfigError: it is no
        bool.
        """
        check_kind(use_snapshot_compression, bool, "set_use_snapshot_compression() needs True or False", ConfigError)
        turn = self._turn if use_snapshot_compression else self._turn_back
        return turn("set_use_snapshot_compression")

    def is_use_snapshot_compression(self) -> bool:
        """Whether compression was asked for; snapshots are not compressed."""
        return self._is_turned("set_use_snapshot_compression")

    def enable_closure_cleaner(self) -> "ExecutionConfig":
        """Set the default, which has no effect."""
        return self._turn_back("disable_closure_cleaner")

    def disable_closure_cleaner(self) -> "ExecutionConfig":
        """Set an option without an effect, and warn of it."""
        return self._turn("disable_closure_cleaner")

    def is_closure_cleaner_enabled(self) -> bool:
        """True unless ``disable_closure_cleaner`` was called last; without an effect."""
        return not self._is_turned("disable_closure_cleaner")

    def enable_force_kryo(self) -> "ExecutionConfig":
        """Set an option without an effect, and warn of it."""
        return self._turn("enable_force_kryo")

    def disable_force_kryo(self) -> "ExecutionConfig":
        """Set the default, which has no effect."""
        return self._turn_back("enable_force_kryo")

    def is_force_kryo_enabled(self) -> bool:
        """Whether ``enable_force_kryo`` was called last; the default is False; without an effect."""
        return self._is_turned("enable_force_kryo")

    def enable_force_avro(self) -> "ExecutionConfig":
        """Set an option without an effect, and warn of it."""
        return self._turn("enable_force_avro")

    def disable_force_avro(self) -> "ExecutionConfig":
        """Set the default, which has no effect."""
        return self._turn_back("enable_force_avro")

    def is_force_avro_enabled(self) -> bool:
        """Whether ``enable_force_avro`` was called last; the default is False; without an effect."""
        return self._is_turned("enable_force_avro")

    def enable_generic_types(self) -> "ExecutionConfig":
        """Set the default, which has no effect."""
        return self._turn_back("disable_generic_types")

    def disable_generic_types(self) -> "ExecutionConfig":
        """Set an option without an effect, and warn of it."""
        return self._turn("disable_generic_types")

    def has_generic_types_disabled(self) -> bool:
        """Whether ``disable_generic_types`` was called last; the default is False; without an effect."""
        return self._is_turned("disable_generic_types")

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """Return an empty dict: there are no serializers of Java."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """Return an empty list: there are no serializers of Java."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """Return an empty list: there are no serializers of Java."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        settings = view_of(JobSettings, self._options)
        return (
            self.get_parallelism(),
            self.get_max_parallelism(),
            self.get_auto_watermark_interval(),
            self.get_latency_tracking_interval(),
            settings.cancellation_interval_ms,
            settings.cancellation_timeout_ms,
            settings.parameters,
            self.has_auto_generated_uids_enabled(),
            *map(self._is_turned, _SWITCHES),
        )

    @property
    def _found(self) -> EnvironmentSettings:
        return view_of(EnvironmentSettings, self._options)

    def _set(self, field: str, value: object) -> "ExecutionConfig":
        row_of(EnvironmentSettings, field).set(self._options, value)
        return self

    def _turn(self, switch: str) -> "ExecutionConfig":
        name, value = _SWITCHES[switch]
        self._options.set_string(name, value)
        warn_of_setter(f"{switch}()", IGNORED[name])
        return self

    def _turn_back(self, switch: str) -> "ExecutionConfig":
        self._options.remove_config(_SWITCHES[switch][0])
        return self

    def _is_turned(self, switch: str) -> bool:
        name, value = _SWITCHES[switch]
        return self._options.get_string(name, "").strip().lower() == value


def config_of(options: Configuration) -> ExecutionConfig:
    """Make the settings from the options of an environment; its setters change the options."""
    config = ExecutionConfig()
    config._options = options
    return config


def _checked_interval(interval: int, what: str) -> int:
    check_number(interval, 0, f"the {what} interval must be 0 or more milliseconds")
    return interval


def check_parallelism(parallelism: int, whose: str) -> None:
    """Check that this is a whole number of 1 or more.  Raises JobGraphError, which names ``whose`` it is: it is not."""
    check_number(parallelism, 1, f"{whose} parallelism must be a whole number of 1 or more")


def check_max_parallelism(max_parallelism: int, whose: str) -> None:
    """Check that this is a whole number in 1..32768.  Raises JobGraphError, which names ``whose`` it is: it is not."""
    needs = f"{whose} max parallelism must be a whole number from 1 to {MAX_MAX_PARALLELISM}"
    check_number(max_parallelism, 1, needs, at_most=MAX_MAX_PARALLELISM)
