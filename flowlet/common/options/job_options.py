"""What a job's options say about its checkpoints and restarts.

Side:   pure.
Rules:  an option that would have no effect, because what it belongs to is not used, is an error that names it.
Source: Flink ``CheckpointConfig``, ``RestartBackoffTimeStrategyFactoryLoader``.
"""

from collections.abc import Iterable
from typing import Any, Final

from flowlet.common.checkpoint_settings import CheckpointSettings
from flowlet.common.configuration import Configuration
from flowlet.common.options import known_options as known
from flowlet.common.options.option import Option
from flowlet.common.restart_settings import RestartKind, RestartSettings
from flowlet.errors import ConfigError, JobGraphError

_ANY_NUMBER: Final = -1  # of attempts


def checkpoint_settings(options: Configuration, default_directory: str | None) -> CheckpointSettings | None:
    """The checkpoints of a job; None: it takes none.

    Args:
        options: the environment's.
        default_directory: where they are kept if no option says so; None: the option is needed.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
        JobGraphError: there is no directory.
    """
    interval_ms = known.CHECKPOINT_INTERVAL.find(options)
    if interval_ms is None:
        _refuse(options, known.FOR_CHECKPOINTS, f"no checkpoints are taken: set {known.CHECKPOINT_INTERVAL.name!r} too, or leave it out")
        return None
    directory = known.CHECKPOINT_DIRECTORY.find(options) or default_directory
    if not directory:
        raise JobGraphError(
            f"checkpoints of a job on a cluster need a directory that the JobManager and all TaskManagers reach: set the option "
            f"{known.CHECKPOINT_DIRECTORY.name!r}, to the path of a shared file system or a URL such as s3://bucket/checkpoints"
        )
    return CheckpointSettings(
        interval_ms=interval_ms,
        directory=directory,
        is_exactly_once=known.CHECKPOINT_MODE.get(options) == "EXACTLY_ONCE",
        timeout_ms=known.CHECKPOINT_TIMEOUT.get(options),
        min_pause_ms=known.MIN_PAUSE.get(options),
        max_concurrent=known.MAX_CONCURRENT.get(options),
        tolerable_failures=known.TOLERABLE_FAILURES.get(options),
        num_retained=known.NUM_RETAINED.get(options),
        after_tasks_finish=known.AFTER_TASKS_FINISH.get(options),
    )


def restart_settings(options: Configuration, *, has_checkpoints: bool) -> RestartSettings:
    """How a job restarts.

    Raises:
        ConfigError: an option is not of its type, or belongs to another strategy.
        JobGraphError: two options contradict each other.
    """
    kind = known.RESTART_STRATEGY.get(options)
    used = kind
    if kind is RestartKind.DEFAULT:
        used = RestartKind.EXPONENTIAL_DELAY if has_checkpoints else RestartKind.NONE
    for strategy, its_options in known.FOR_STRATEGIES.items():
        if strategy is not used:
            wanted = f"set {known.RESTART_STRATEGY.name!r} to {strategy.value!r}, or leave it out"
            _refuse(options, its_options, f"the restart strategy is {used.value!r}: {wanted}")
    max_attempts = known.MAX_ATTEMPTS.get(options)
    return RestartSettings(
        kind=kind,
        attempts=known.ATTEMPTS.get(options),
        delay_ms=(known.FAILURE_RATE_DELAY if kind is RestartKind.FAILURE_RATE else known.FIXED_DELAY).get(options),
        max_failures=known.MAX_FAILURES.get(options),
        interval_ms=known.FAILURE_INTERVAL.get(options),
        initial_backoff_ms=known.INITIAL_BACKOFF.get(options),
        max_backoff_ms=known.MAX_BACKOFF.get(options),
        multiplier=known.MULTIPLIER.get(options),
        jitter=known.JITTER.get(options),
        reset_ms=known.RESET_THRESHOLD.get(options),
        max_attempts=_ANY_NUMBER if max_attempts == known.UNLIMITED else max_attempts,
    )


def _refuse(options: Configuration, without_effect: Iterable[Option[Any]], why: str) -> None:
    for option in without_effect:
        name = option.is_set(options)
        if name is not None:
            raise ConfigError(f"option {name!r} is set and has no effect, because {why}")
