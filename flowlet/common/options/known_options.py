"""Every option that something reads, in one table; the check of all options that a program, a file or a command sets;
and what they say about its job: ``JobSettings``.

Side:   pure.
Rules:  an option is added as a row, and nowhere else: a field of the settings class that it belongs to, or a constant
        of ``client_options`` or beside its settings class.  Its effect stands in the first sentence of its entry in the
        docstring of the class, or of the docstring of the constant: ``python -m tests.options_page --write`` puts it
        into ``docs/options.md``.
        An option that nothing reads, or whose value is wrong, is an error at once.  A name that is nearly that of a
        known option is taken for a slip; only then the options of Flink are looked at, by the beginnings of their
        names.  An option that would have no effect on the job, because what it belongs to is not used, is an error that
        names it.
Source: Flink ``CheckpointConfig``, ``RestartBackoffTimeStrategyFactoryLoader``, ``ExecutionOptions``.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.flinks_options import EXACT, IGNORED, PREFIXES, reason_of_prefix, reason_to_ignore, warn_of_option
from flowlet.common.job_settings import (
    CHECKPOINT_INTERVAL,
    FAILURE_RATE_DELAY,
    RECOVERY_PATH,
    BatchSettings,
    CheckpointSettings,
    GateSettings,
    JobSettings,
    RestartKind,
    RestartSettings,
    StateSettings,
)
from flowlet.common.option import Option, fixed, row_of, rows_by_field, settings_of, view_of
from flowlet.common.options import client_options
from flowlet.common.options.python_options import DependencySettings
from flowlet.common.paths import absolute_url, check_checkpoint_url
from flowlet.errors import ConfigError, JobGraphError, StorageError

_STORAGE: Final = fixed(
    "execution.checkpointing.storage",
    "filesystem",
    "state.checkpoint-storage",
    missing="checkpoints are files in the directory 'execution.checkpointing.dir'",
)
"""Checkpoints are files."""
_CLAIM_MODE: Final = fixed(
    "execution.state-recovery.claim-mode",
    "NO_CLAIM",
    "execution.savepoint-restore-mode",
    missing="a job never changes the checkpoint that it starts from",
)
"""A job never changes the checkpoint that it starts from."""
SETTINGS: Final = (
    EnvironmentSettings,
    BatchSettings,
    JobSettings,
    client_options.ClientRetry,
    CheckpointSettings,
    GateSettings,
    RestartSettings,
    StateSettings,
    DependencySettings,
)
_ROWS: Final[tuple[Option[Any], ...]] = (
    *(row for settings in SETTINGS for row in rows_by_field(settings).values()),
    FAILURE_RATE_DELAY,
    *(each for each in vars(client_options).values() if isinstance(each, Option)),
    _STORAGE,
    _CLAIM_MODE,
)
# Two fields may read one option, which stands here once.
KNOWN: Final = tuple({row.name: row for row in reversed(_ROWS)}.values())[::-1]
BY_NAME: Final = {name: row for row in KNOWN for name in row.names}

# Similarities by difflib; names share long beginnings.  Not measured.
_SURE: Final = 0.9
_LIKELY: Final = 0.6

# The settings that count for savepoints, too.
_OF_ANY_CHECKPOINT: Final = ("is_exactly_once", "timeout_ms", "after_tasks_finish")
_NO_CHECKPOINTS: Final = f"no checkpoints are taken: set {CHECKPOINT_INTERVAL!r} too, or leave it out"


def replace_options(options: Configuration, former: Iterable[str], texts: Mapping[str, str]) -> None:
    """Unset the options of the former names, and set others, each in place of its older names; nothing is checked."""
    older = (BY_NAME[name].other_names for name in texts if name in BY_NAME)
    for name in (*former, *chain.from_iterable(older)):
        options.remove_config(name)
    for name, text in texts.items():
        options.set_string(name, text)


def check_options(options: Configuration) -> None:
    """Check names and values of all options.

    Raises:
        ConfigError: one is not known, exists in Flink but not here, or its value is not of its type; in one line.
    """
    for name, text in options.to_dict().items():
        option = BY_NAME.get(name)
        if option is not None:
            option.checked(name, text)
            continue
        slip = None if name in IGNORED or name in EXACT else _nearest(name, _SURE)
        reason = None if slip else reason_to_ignore(name)
        if reason is None:
            raise ConfigError(_unknown(name, slip))
        warn_of_option(name, reason)


def _unknown(name: str, slip: str | None) -> str:
    if name in EXACT:
        return f"option {name!r} exists in Flink, but not here: {EXACT[name]}; leave it out"
    reason = None if slip else reason_of_prefix(name, PREFIXES)
    if reason is not None:
        return f"option {name!r} is not read here: {reason}; leave it out"
    near = slip or _nearest(name, _LIKELY)
    return f"option {name!r} is not known" + (f"; did you mean {near!r}?" if near else "; leave it out")


def _nearest(name: str, similarity: float) -> str | None:
    found = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=similarity)
    return found[0] if found else None


def job_settings(
    options: Configuration, default_directory: str | None, runtime_mode: str, *, takes_checkpoints: bool = True
) -> JobSettings:
    """Make the settings of a job.

    Args:
        options: the environment's.
        default_directory: where checkpoints are kept if no option says so; None: the option is needed.
        runtime_mode: STREAMING, BATCH or AUTOMATIC.
        takes_checkpoints: False: none are taken, whatever the options say.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
        JobGraphError: a value is out of range, or does not go with the rest.
    """
    checkpoints = checkpoint_settings(options, default_directory) if takes_checkpoints else None
    is_periodic = checkpoints is not None and checkpoints.is_periodic
    restart = restart_settings(options, has_checkpoints=is_periodic)
    if not is_periodic:
        refuse(options, _NO_CHECKPOINTS, *_rows(GateSettings))
    return settings_of(
        JobSettings,
        options,
        checkpoints=checkpoints,
        restart=restart,
        recovery_path=recovery_path(options),
        state=state_settings(options),
        gates=settings_of(GateSettings, options),
        batch=batch_settings(options, runtime_mode),
    )


def checkpoint_settings(options: Configuration, default_directory: str | None) -> CheckpointSettings | None:
    """Make the checkpoint settings of a job; None: it takes none, and no savepoints either.

    Args:
        options: the environment's.
        default_directory: where they are kept if no option says so; None: the option is needed.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
        JobGraphError: there is no directory, checkpoints cannot be kept in what it names, or unaligned ones do not go
            with the rest.
    """
    found = view_of(CheckpointSettings, options)
    savepoint_directory = _checked_url(found.savepoint_directory) if found.savepoint_directory else ""
    if found.interval_ms is None:
        refuse(options, _NO_CHECKPOINTS, *_rows(CheckpointSettings, but=(*_OF_ANY_CHECKPOINT, "savepoint_directory")))
        if savepoint_directory or view_of(JobSettings, options).recovery_path:
            return settings_of(CheckpointSettings, options, savepoint_directory=savepoint_directory)
        refuse(options, _NO_CHECKPOINTS, *_rows(CheckpointSettings, but=("savepoint_directory",)))
        return None
    directory = found.directory or default_directory
    if not directory:
        raise JobGraphError(
            "checkpoints of a job on a cluster need a directory that the JobManager and all TaskManagers reach: set "
            f"the option {row_of(CheckpointSettings, 'directory').name!r}, to the path of a shared file system or a "
            "URL such as s3://bucket/checkpoints"
        )
    if found.aligned_timeout_ms and not found.is_unaligned:
        unaligned = row_of(CheckpointSettings, "is_unaligned").name
        why = f"no checkpoint may become unaligned: set {unaligned!r} too, or leave it out"
        refuse(options, why, row_of(CheckpointSettings, "aligned_timeout_ms"))
    directory_url = _checked_url(directory)
    if found.restore_fallback and found.num_retained == 1:
        why = f"only one checkpoint is kept: set {row_of(CheckpointSettings, 'num_retained').name!r} to 2 or more"
        refuse(options, why, row_of(CheckpointSettings, "restore_fallback"))
    return settings_of(CheckpointSettings, options, directory=directory_url, savepoint_directory=savepoint_directory)


def _checked_url(directory: str) -> str:
    """Return the absolute path, or the URL, of a directory that the program names by its own working directory."""
    try:
        url = absolute_url(directory)
        check_checkpoint_url(url)
        return url
    except StorageError as error:
        raise JobGraphError(str(error)) from error


def recovery_path(options: Configuration) -> str:
    """Return the checkpoint or savepoint that a job starts from; empty: none.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    path = view_of(JobSettings, options).recovery_path
    if not path:
        why = f"the job starts from no checkpoint or savepoint: set {RECOVERY_PATH!r}, or leave it out"
        refuse(options, why, row_of(JobSettings, "ignores_unclaimed_state"))
        return ""
    try:
        return absolute_url(path)
    except StorageError as error:
        raise ConfigError(f"option {RECOVERY_PATH!r}: {error}") from error


def refuse_gate_options(options: Configuration) -> None:
    """Refuse options about remote gates, because the job has none.  Raises ConfigError: one is set."""
    refuse(options, "the job has no remote gate: leave it out", *_rows(GateSettings))


def state_settings(options: Configuration) -> StateSettings:
    """Read from the options where keyed state is kept.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    found = settings_of(StateSettings, options)
    incremental = row_of(StateSettings, "is_incremental")
    if not found.is_rocksdb:
        backend = row_of(StateSettings, "is_rocksdb").name
        why = f"keyed state is kept on the heap: set {backend!r} to 'rocksdb', or leave it out"
        if found.is_incremental:
            refuse(options, why, incremental)
        refuse(options, why, row_of(StateSettings, "directories"))
    elif found.is_incremental and view_of(CheckpointSettings, options).interval_ms is None:
        refuse(options, _NO_CHECKPOINTS, incremental)
    return found


def restart_settings(options: Configuration, *, has_checkpoints: bool) -> RestartSettings:
    """Make the restart settings of a job.

    Raises:
        ConfigError: an option is not of its type, or belongs to another strategy.
        JobGraphError: two options contradict each other.
    """
    kind = view_of(RestartSettings, options).kind
    used = kind
    if kind is RestartKind.DEFAULT:
        used = RestartKind.EXPONENTIAL_DELAY if has_checkpoints else RestartKind.NONE
    name = row_of(RestartSettings, "kind").name
    of_strategies = (*_rows(RestartSettings), FAILURE_RATE_DELAY)
    for strategy in (RestartKind.FIXED_DELAY, RestartKind.FAILURE_RATE, RestartKind.EXPONENTIAL_DELAY):
        if strategy is not used:
            wanted = f"set {name!r} to {strategy.value!r}, or leave it out"
            rows = (row for row in of_strategies if row.name.startswith(f"restart-strategy.{strategy.value}."))
            refuse(options, f"the restart strategy is {used.value!r}: {wanted}", *rows)
    if used is RestartKind.NONE:
        why = f"nothing starts again: set {name!r} too, or leave it out"
        refuse(options, why, row_of(RestartSettings, "is_regional"))
    if kind is RestartKind.FAILURE_RATE:
        return settings_of(RestartSettings, options, delay_ms=FAILURE_RATE_DELAY.get(options))
    return settings_of(RestartSettings, options)


def batch_settings(options: Configuration, runtime_mode: str) -> BatchSettings | None:
    """Make the settings of a job that turns out to be a BATCH job; None: it cannot be one.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    if runtime_mode == "STREAMING":
        refuse(options, "the job runs in STREAMING mode: leave it out", *_rows(BatchSettings))
        return None
    if view_of(BatchSettings, options).sorts_inputs:
        return settings_of(BatchSettings, options)
    sorts_inputs = row_of(BatchSettings, "sorts_inputs").name
    refuse(options, f"{sorts_inputs!r} is false: leave it out", row_of(BatchSettings, "sort_memory_bytes"))
    ends_keys = row_of(BatchSettings, "ends_keys")
    if ends_keys.find(options):
        raise ConfigError(
            f"option {ends_keys.name!r} is true, which needs inputs that are sorted by key: {sorts_inputs!r} is false"
        )
    return settings_of(BatchSettings, options, ends_keys=False)


def refuse(options: Configuration, why: str, *rows: Option[Any]) -> None:
    """Refuse these options; ``why``: they have no effect, for people.  Raises ConfigError: one is set."""
    for row in rows:
        name = row.is_set(options)
        if name is not None:
            raise ConfigError(f"option {name!r} is set and has no effect, because {why}")


def _rows(settings: Any, *, but: Sequence[str] = ()) -> list[Option[Any]]:
    """Return the rows of a settings class, without those of some fields."""
    return [row for field, row in rows_by_field(settings).items() if field not in but]
