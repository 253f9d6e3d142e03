"""What a job's options say about its checkpoints and restarts.

Side:   pure.
Rules:  an option that would have no effect, because what it belongs to is not used, is an error that names it.
Source: Flink ``CheckpointConfig``, ``RestartBackoffTimeStrategyFactoryLoader``.
"""

from collections.abc import Iterable
from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.options import known_options as known
from flowlet.common.options.option import Option
from flowlet.common.paths import absolute_url, check_checkpoint_url
from flowlet.common.settings.checkpoint_settings import CheckpointSettings
from flowlet.common.settings.gate_settings import GateSettings
from flowlet.common.settings.restart_settings import RestartKind, RestartSettings
from flowlet.common.settings.state_settings import StateSettings
from flowlet.errors import ConfigError, JobGraphError, StorageError

_ANY_NUMBER: Final = -1  # of attempts


def checkpoint_settings(options: Configuration, default_directory: str | None) -> CheckpointSettings | None:
    """The checkpoints of a job; None: it takes none, and no savepoints either.

    Args:
        options: the environment's.
        default_directory: where they are kept if no option says so; None: the option is needed.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
        JobGraphError: there is no directory, checkpoints cannot be kept in what it names, or unaligned ones do not go
            with the rest.
    """
    interval_ms = known.CHECKPOINT_INTERVAL.find(options)
    savepoint_directory = known.SAVEPOINT_DIRECTORY.find(options) or ""
    if savepoint_directory:
        savepoint_directory = _checked_url(savepoint_directory)
    if interval_ms is None:
        takes_savepoints = bool(savepoint_directory) or known.RECOVERY_PATH.find(options) is not None
        without_effect = known.FOR_PERIODIC_CHECKPOINTS if takes_savepoints else known.FOR_CHECKPOINTS
        _refuse(
            options,
            without_effect,
            f"no checkpoints are taken: set {known.CHECKPOINT_INTERVAL.name!r} too, or leave it out",
        )
        return _savepoints_alone(options, savepoint_directory) if takes_savepoints else None
    directory = known.CHECKPOINT_DIRECTORY.find(options) or default_directory
    if not directory:
        raise JobGraphError(
            "checkpoints of a job on a cluster need a directory that the JobManager and all TaskManagers reach: set "
            f"the option {known.CHECKPOINT_DIRECTORY.name!r}, to the path of a shared file system or a URL such as "
            "s3://bucket/checkpoints"
        )
    is_unaligned = known.UNALIGNED.get(options)
    if not is_unaligned and known.ALIGNED_TIMEOUT.get(options):
        wanted = f"set {known.UNALIGNED.name!r} too, or leave it out"
        _refuse(options, (known.ALIGNED_TIMEOUT,), f"no checkpoint may become unaligned: {wanted}")
    directory = _checked_url(directory)
    num_retained, restore_fallback = known.NUM_RETAINED.get(options), known.RESTORE_FALLBACK.get(options)
    if restore_fallback and num_retained == 1:
        why = f"only one checkpoint is kept: set {known.NUM_RETAINED.name!r} to 2 or more"
        _refuse(options, (known.RESTORE_FALLBACK,), why)
    return CheckpointSettings(
        interval_ms=interval_ms,
        directory=directory,
        is_exactly_once=known.CHECKPOINT_MODE.get(options) == "EXACTLY_ONCE",
        timeout_ms=known.CHECKPOINT_TIMEOUT.get(options),
        min_pause_ms=known.MIN_PAUSE.get(options),
        max_concurrent=known.MAX_CONCURRENT.get(options),
        tolerable_failures=known.TOLERABLE_FAILURES.get(options),
        num_retained=num_retained,
        after_tasks_finish=known.AFTER_TASKS_FINISH.get(options),
        is_unaligned=is_unaligned,
        aligned_timeout_ms=known.ALIGNED_TIMEOUT.get(options),
        is_retained_on_cancellation=known.RETENTION.get(options) == "RETAIN_ON_CANCELLATION",
        is_retained_on_failure=known.RETENTION.get(options) != "NO_EXTERNALIZED_CHECKPOINTS",
        restore_fallback=restore_fallback,
        savepoint_directory=savepoint_directory,
    )


def _savepoints_alone(options: Configuration, directory: str) -> CheckpointSettings:
    return CheckpointSettings(
        interval_ms=None,
        directory="",
        is_exactly_once=known.CHECKPOINT_MODE.get(options) == "EXACTLY_ONCE",
        timeout_ms=known.CHECKPOINT_TIMEOUT.get(options),
        after_tasks_finish=known.AFTER_TASKS_FINISH.get(options),
        savepoint_directory=directory,
    )


def _checked_url(directory: str) -> str:
    """The absolute path, or the URL, of a directory that the program names by its own working directory."""
    try:
        url = absolute_url(directory)
        check_checkpoint_url(url)
        return url
    except StorageError as error:
        raise JobGraphError(str(error)) from error


def _absolute(path: str) -> str:
    try:
        return absolute_url(path)
    except StorageError as error:
        raise ConfigError(f"option {known.RECOVERY_PATH.name!r}: {error}") from error


def recovery_settings(options: Configuration) -> tuple[str, bool]:
    """The checkpoint or savepoint that a job starts from, empty: none; and whether state that it does not use is left
    out.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    path = known.RECOVERY_PATH.find(options) or ""
    if not path:
        without = f"the job starts from no checkpoint or savepoint: set {known.RECOVERY_PATH.name!r}, or leave it out"
        _refuse(options, (known.IGNORES_UNCLAIMED_STATE,), without)
    return _absolute(path) if path else "", known.IGNORES_UNCLAIMED_STATE.get(options)


def gate_settings(options: Configuration, *, has_checkpoints: bool) -> GateSettings:
    """What writes into remote gates can rely on.

    Raises:
        ConfigError: an option is not of its kind, or has no effect.
    """
    if not has_checkpoints:
        _refuse(
            options,
            known.FOR_GATES,
            f"no checkpoints are taken: set {known.CHECKPOINT_INTERVAL.name!r} too, or leave it out",
        )
    return GateSettings(known.GATE_ACKNOWLEDGE.get(options), known.GATE_RETRIES.get(options))


def refuse_gate_options(options: Configuration) -> None:
    """Raise ConfigError if an option about remote gates is set, because the job has none."""
    _refuse(options, known.FOR_GATES, "the job has no remote gate: leave it out")


def state_settings(options: Configuration) -> StateSettings:
    """Where keyed state is kept.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    is_rocksdb, is_incremental = known.STATE_BACKEND.get(options) == "rocksdb", known.INCREMENTAL.get(options)
    if not is_rocksdb:
        wanted = f"keyed state is kept on the heap: set {known.STATE_BACKEND.name!r} to 'rocksdb', or leave it out"
        _refuse(options, [known.INCREMENTAL] if is_incremental else [], wanted)
        _refuse(options, [known.ROCKSDB_DIRECTORIES], wanted)
    elif is_incremental and known.CHECKPOINT_INTERVAL.find(options) is None:
        _refuse(
            options,
            [known.INCREMENTAL],
            f"no checkpoints are taken: set {known.CHECKPOINT_INTERVAL.name!r} too, or leave it out",
        )
    return StateSettings(is_rocksdb, is_incremental, known.ROCKSDB_DIRECTORIES.find(options) or ())


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
    if used is RestartKind.NONE:
        _refuse(
            options,
            (known.FAILOVER_STRATEGY,),
            f"nothing starts again: set {known.RESTART_STRATEGY.name!r} too, or leave it out",
        )
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
        is_regional=known.FAILOVER_STRATEGY.get(options) == "region",
    )


def _refuse(options: Configuration, without_effect: Iterable[Option[Any]], why: str) -> None:
    for option in without_effect:
        name = option.is_set(options)
        if name is not None:
            raise ConfigError(f"option {name!r} is set and has no effect, because {why}")
