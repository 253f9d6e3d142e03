"""``JobSettings``: what a job decides for all of its tasks, and the rows of its options.

Side:   pure.
Units:  milliseconds, bytes.
Rules:  a field that is a row has its value from the option; ``job_options`` makes these settings of a program's
        options.  They travel with the job, so a number is checked again where they arrive.
Source: Flink ``CheckpointingOptions``, ``CheckpointCoordinatorConfiguration``, ``ExecutionOptions``,
        ``JobManagerOptions``, ``PipelineOptions``, ``RestartStrategyOptions`` (the limits are those of the
        ``...RestartBackoffTimeStrategy`` classes), ``RocksDBOptions``, ``StateBackendOptions``, ``TaskManagerOptions``.
"""

import dataclasses
import importlib.util
from collections.abc import Iterator
from enum import Enum
from typing import Final

from flowlet.common.config_options import parse_map
from flowlet.common.configuration import Configuration
from flowlet.common.option import Option, at_least, boolean, choice, duration, number, rows_by_field, text, whole_number
from flowlet.common.written_values import parse_bytes
from flowlet.errors import JobGraphError
from netstack.late import dataclass

UNLIMITED: Final = 2**31 - 1  # Flink's, where a number has no limit
ANY_NUMBER: Final = -1  # of attempts or failures
DEFAULT_CANCELLATION_INTERVAL_MS: Final = 30_000  # Flink's
DEFAULT_CANCELLATION_TIMEOUT_MS: Final = 180_000  # Flink's
DEFAULT_MAX_RECORD_BYTES: Final = 64 << 20
LARGEST_MAX_RECORD_BYTES: Final = 2**31 - 1  # the length of an element is an i32
_MIN_INTERVAL_MS: Final = 10  # Flink's
_LEAST_SORT_MEMORY_BYTES: Final = 64 * 1024

# Names of options that errors and other modules name.
CHECKPOINT_INTERVAL: Final = "execution.checkpointing.interval"
AFTER_TASKS_FINISH: Final = "execution.checkpointing.checkpoints-after-tasks-finish"
CANCELLATION_TIMEOUT_OPTION: Final = "task.cancellation.timeout"
MAX_RECORD_BYTES_OPTION: Final = "flowlet.max-record-bytes"
RECOVERY_PATH: Final = "execution.state-recovery.path"
IGNORES_UNCLAIMED_STATE: Final = "execution.state-recovery.ignore-unclaimed-state"
RETENTION: Final = "execution.checkpointing.externalized-checkpoint-retention"


class Needs(Enum):
    """What some options need to have an effect; those of a restart strategy need a ``RestartKind``."""

    BATCH_MODE = "the job may run in BATCH mode"
    CHECKPOINTS = "checkpoints or savepoints are taken"
    PERIODIC_CHECKPOINTS = "checkpoints are taken"
    RECOVERY = "the job starts from a checkpoint or savepoint"
    RESTARTS = "the job starts again after a failure"
    GATE = "the job has a remote gate, and checkpoints are taken"
    ROCKSDB = "keyed state is in RocksDB"


class RestartKind(Enum):
    """Flink's strategies, by the value of ``restart-strategy.type``; DEFAULT: EXPONENTIAL_DELAY with checkpoints, else
    NONE.
    """

    DEFAULT = "default"
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class Acknowledge(Enum):
    """When a write returns; by the values of ``flowlet.gate.acknowledge``."""

    CHECKPOINTED = "checkpointed"
    """A complete checkpoint holds its rows: no failure loses them."""
    PROCESSED = "processed"
    """All tasks have processed its rows: a failure before the next checkpoint loses them."""


class RetryRule(Enum):
    """What several attempts of a partition have in common; by the values of ``flowlet.gate.retries``."""

    SAME_ROWS = "same-rows"
    """The same rows in the same order: those that are in are skipped, so each is in once."""
    ANY_ROWS = "any-rows"
    """Nothing, but for the continued calls of one attempt: another attempt is taken from its beginning, and some rows
    are in twice.
    """


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a job in BATCH mode exchanges and sorts its records.

    Args:
        is_blocking: results between tasks are written completely before they are read, and stages run one after the
            other.
        ends_keys: timers fire and state is dropped at the end of each key; else at the end of the input.
        sort_memory_bytes: of one task, for all its inputs.
    """

    is_blocking: bool = choice(
        "execution.batch-shuffle-mode",
        {"all_exchanges_blocking": True, "all_exchanges_pipelined": False},
        default="ALL_EXCHANGES_BLOCKING",
        says="in [BATCH mode](batch.md): results between tasks are files, and stages run one after the other; or all "
        "tasks run at once",
    ).field(Needs.BATCH_MODE)
    sorts_inputs: bool = boolean(
        "execution.sorted-inputs.enabled",
        default=True,
        says="in BATCH mode: keyed inputs are sorted by key, in bounded memory",
    ).field(Needs.BATCH_MODE)
    ends_keys: bool = boolean(
        "execution.batch-state-backend.enabled",
        default=True,
        says="in BATCH mode with sorted inputs: timers fire and state is dropped at the end of each key; else at the "
        "end of the input",
    ).field(Needs.BATCH_MODE)
    sort_memory_bytes: int = Option(
        "execution.sorted-inputs.memory",
        at_least(parse_bytes, _LEAST_SORT_MEMORY_BYTES),
        "a size such as '128 mb', of 64 kb or more",
        "memory of a task for that",
        128 << 20,  # Flink's
    ).field(Needs.BATCH_MODE)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How often a job takes checkpoints, how, and where they are kept.

    Args:
        interval_ms: None: only savepoints are taken, on request.
        directory: an absolute path, its ``file:`` URL, or a URL of fsspec, that all TaskManagers and the JobManager
            reach; empty if only savepoints are taken.
        is_exactly_once: barriers are aligned; otherwise they are only counted (at least once).
        tolerable_failures: -1: any number.
        is_unaligned: only exactly once, and one at a time.
        is_retained_on_cancellation: the newest ones stay when the job is cancelled.
        is_retained_on_failure: they stay when the job fails.
        restore_fallback: if the newest one cannot be restored, the job begins with the one before it, as far as they
            are kept.
        savepoint_directory: empty: whoever wants a savepoint must say where.

    Raises:
        JobGraphError: a number is out of range, the directory is missing, or unaligned checkpoints do not go with the
            rest.
    """

    interval_ms: int | None = duration(
        CHECKPOINT_INTERVAL, least=_MIN_INTERVAL_MS, says="from one checkpoint to the next; not set: none are taken"
    ).field()
    directory: str = text(
        "execution.checkpointing.dir",
        "state.checkpoints.dir",
        allowed="the path or URL of a directory",
        says="where they are kept; on a remote cluster needed, else a directory of the user's below the temporary one",
    ).field(Needs.PERIODIC_CHECKPOINTS, default="")
    is_exactly_once: bool = choice(
        "execution.checkpointing.mode",
        {"exactly_once": True, "at_least_once": False},
        default="EXACTLY_ONCE",
        says="how often a record counts after a restart",
    ).field(Needs.CHECKPOINTS)
    timeout_ms: int = duration(
        "execution.checkpointing.timeout",
        least=_MIN_INTERVAL_MS,
        default=600_000,
        says="a checkpoint that takes longer fails",
    ).field(Needs.CHECKPOINTS)
    min_pause_ms: int = duration(
        "execution.checkpointing.min-pause", default=0, says="from the end of a checkpoint to the next one, at least"
    ).field(Needs.PERIODIC_CHECKPOINTS)
    max_concurrent: int = whole_number(
        "execution.checkpointing.max-concurrent-checkpoints", least=1, default=1, says="under way at a time"
    ).field(Needs.PERIODIC_CHECKPOINTS)
    tolerable_failures: int = Option(
        "execution.checkpointing.tolerable-failed-checkpoints",
        at_least(int, 0),
        "a whole number of 0 or more",
        "failed ones in a row that do not fail the job",
        0,
    ).field(Needs.PERIODIC_CHECKPOINTS)
    num_retained: int = whole_number(
        "execution.checkpointing.num-retained",
        "state.checkpoints.num-retained",
        least=1,
        default=1,
        says="complete ones that are kept while the job runs",
    ).field(Needs.PERIODIC_CHECKPOINTS)
    after_tasks_finish: bool = boolean(
        AFTER_TASKS_FINISH,
        "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
        default=True,
        says="go on when some tasks have ended; each task waits at its end for one",
    ).field(Needs.CHECKPOINTS)
    is_unaligned: bool = boolean(
        "execution.checkpointing.unaligned.enabled",
        "execution.checkpointing.unaligned",
        default=False,
        says="barriers overtake records, which become part of the checkpoint",
    ).field(Needs.PERIODIC_CHECKPOINTS)
    aligned_timeout_ms: int = duration(
        "execution.checkpointing.aligned-checkpoint-timeout",
        "execution.checkpointing.alignment-timeout",
        default=0,
        says="they do so only if alignment takes longer",
    ).field(Needs.PERIODIC_CHECKPOINTS)
    is_retained_on_cancellation: bool = choice(
        RETENTION,
        {"delete_on_cancellation": False, "retain_on_cancellation": True, "no_externalized_checkpoints": False},
        default="NO_EXTERNALIZED_CHECKPOINTS",
        says="whether the newest checkpoints stay when the job fails (the first two) or is cancelled (the second)",
    ).field(Needs.PERIODIC_CHECKPOINTS)
    is_retained_on_failure: bool = choice(  # the same option
        RETENTION,
        {"delete_on_cancellation": True, "retain_on_cancellation": True, "no_externalized_checkpoints": False},
        default="NO_EXTERNALIZED_CHECKPOINTS",
        says="",
    ).field()
    restore_fallback: bool = boolean(
        "flowlet.checkpointing.restore-fallback",
        default=False,
        says="a checkpoint that cannot be restored is passed over for the one before it",
    ).field(Needs.PERIODIC_CHECKPOINTS)
    savepoint_directory: str = text(
        "execution.checkpointing.savepoint-dir",
        "state.savepoints.dir",
        allowed="the path or URL of a directory",
        says="where savepoints are written if nobody names a directory; with it a job without an interval takes "
        "savepoints, too: [savepoints](savepoints.md)",
    ).field(default="")

    def __post_init__(self) -> None:
        for name, value, least in _below_least(self):
            raise JobGraphError(f"{name} of the checkpoints is {value}, the least is {least}")
        if self.tolerable_failures < ANY_NUMBER:
            raise JobGraphError(
                f"tolerable_failures of the checkpoints is {self.tolerable_failures}, the least is -1 (any number)"
            )
        if self.is_periodic and not self.directory:
            raise JobGraphError("checkpoints need a directory: set execution.checkpointing.dir")
        if self.is_unaligned and not self.is_exactly_once:
            raise JobGraphError(
                "unaligned checkpoints are taken exactly once only: set execution.checkpointing.mode to EXACTLY_ONCE, "
                "or leave out execution.checkpointing.unaligned.enabled"
            )
        if self.is_unaligned and self.max_concurrent > 1:
            raise JobGraphError(
                f"of unaligned checkpoints one is under way at a time, not {self.max_concurrent}: set "
                "execution.checkpointing.max-concurrent-checkpoints to 1, or leave out "
                "execution.checkpointing.unaligned.enabled"
            )

    @property
    def is_periodic(self) -> bool:
        """Whether checkpoints are taken by themselves; no: only savepoints."""
        return self.interval_ms is not None


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What the writes into a job's remote gates can rely on.

    Args:
        acknowledge: when a write returns; without checkpoints always as soon as its rows are processed.
        retries: which attempts of a partition have the same rows.
    """

    acknowledge: Acknowledge = choice(
        "flowlet.gate.acknowledge",
        {each.value: each for each in Acknowledge},
        default="checkpointed",
        says="when a write into a remote gate returns: when a checkpoint holds it, or when it is processed "
        "([remote gates](remote-gates.md#in-jobs-with-checkpoints))",
    ).field(Needs.GATE)
    retries: RetryRule = choice(
        "flowlet.gate.retries",
        {each.value: each for each in RetryRule},
        default="same-rows",
        says="whether attempts of a partition have the same rows, so that those that are in are skipped",
    ).field(Needs.GATE)


_FIXED_DELAY: Final = RestartKind.FIXED_DELAY
_FAILURE_RATE: Final = RestartKind.FAILURE_RATE
_EXPONENTIAL: Final = RestartKind.EXPONENTIAL_DELAY


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Whether a job that failed starts again, after how long, and how often: the options of all strategies, of which
    each uses its own.

    Args:
        delay_ms: FIXED_DELAY, FAILURE_RATE: before each restart.
        max_failures: FAILURE_RATE: more within ``interval_ms`` fail the job.
        initial_backoff_ms: EXPONENTIAL_DELAY: before the first restart; then times ``multiplier`` up to
            ``max_backoff_ms``, each changed at random by up to ``jitter`` of itself.
        reset_ms: EXPONENTIAL_DELAY: after so long without a failure the backoff begins anew.
        max_attempts: EXPONENTIAL_DELAY: so many restarts without that; -1: any number.
        is_regional: only the regions that failed start again; False: all tasks.

    Raises:
        JobGraphError: a number is out of range, or two contradict each other.
    """

    kind: RestartKind = choice(
        "restart-strategy.type",
        {
            "none": RestartKind.NONE,
            "off": RestartKind.NONE,
            "disable": RestartKind.NONE,
            "fixed-delay": _FIXED_DELAY,
            "fixeddelay": _FIXED_DELAY,
            "failure-rate": _FAILURE_RATE,
            "failurerate": _FAILURE_RATE,
            "exponential-delay": _EXPONENTIAL,
            "exponentialdelay": _EXPONENTIAL,
        },
        "restart-strategy",
        default="default",
        says="else `exponential-delay` with checkpoints, `none` without",
    ).field(default=RestartKind.DEFAULT)
    attempts: int = whole_number(
        "restart-strategy.fixed-delay.attempts", least=0, default=1, says="restarts before the job fails"
    ).field(_FIXED_DELAY)
    delay_ms: int = duration("restart-strategy.fixed-delay.delay", default=1000, says="before each restart").field(
        _FIXED_DELAY
    )
    max_failures: int = whole_number(
        "restart-strategy.failure-rate.max-failures-per-interval",
        least=1,
        default=1,
        says="failures in the interval that do not fail the job",
    ).field(_FAILURE_RATE)
    interval_ms: int = duration(
        "restart-strategy.failure-rate.failure-rate-interval",
        least=1,
        default=60_000,
        says="in which failures are counted",
    ).field(_FAILURE_RATE)
    initial_backoff_ms: int = duration(
        "restart-strategy.exponential-delay.initial-backoff", least=1, default=1000, says="before the first restart"
    ).field(_EXPONENTIAL)
    max_backoff_ms: int = duration(
        "restart-strategy.exponential-delay.max-backoff", least=1, default=60_000, says="before any restart, at most"
    ).field(_EXPONENTIAL)
    multiplier: float = number(
        "restart-strategy.exponential-delay.backoff-multiplier",
        least=1.001,
        most=1000,
        default=1.5,
        says="from one backoff to the next",
    ).field(_EXPONENTIAL)
    jitter: float = number(
        "restart-strategy.exponential-delay.jitter-factor",
        least=0,
        most=1,
        default=0.1,
        says="by which share of itself each backoff is changed at random",
    ).field(_EXPONENTIAL)
    reset_ms: int = duration(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        least=1,
        default=3_600_000,
        says="without a failure for so long, the backoff begins anew",
    ).field(_EXPONENTIAL)
    max_attempts: int = Option(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        lambda text: ANY_NUMBER if int(text) == UNLIMITED else at_least(int, 1)(text),
        "a whole number of 1 or more",
        "restarts without such a pause before the job fails",
        ANY_NUMBER,
        least=ANY_NUMBER,
        shown=str(UNLIMITED),
    ).field(_EXPONENTIAL)
    is_regional: bool = choice(
        "jobmanager.execution.failover-strategy",
        {"region": True, "full": False},
        default="region",
        says="what starts again: the regions that failed ([checkpoints](checkpoints.md#what-starts-again)), or all "
        "tasks",
    ).field(Needs.RESTARTS)

    def __post_init__(self) -> None:
        for name, value, least in _below_least(self):
            raise JobGraphError(f"{name} of the restart strategy is {value}, the least is {least}")
        if self.multiplier <= 1:
            raise JobGraphError(f"multiplier of the restart strategy is {self.multiplier:g}, it must be more than 1")
        if self.jitter < 0:
            raise JobGraphError(f"jitter of the restart strategy is {self.jitter}, the least is 0")
        if self.jitter > 1:
            raise JobGraphError(f"jitter of the restart strategy is {self.jitter:g}, the most is 1")
        if self.initial_backoff_ms > self.max_backoff_ms:
            raise JobGraphError(
                f"the restart strategy begins with a backoff of {self.initial_backoff_ms} ms, which is more than its "
                f"greatest of {self.max_backoff_ms} ms: change restart-strategy.exponential-delay.initial-backoff or "
                ".max-backoff"
            )


# Read by restart_settings: the delay_ms of another strategy.
FAILURE_RATE_DELAY: Final = duration(
    "restart-strategy.failure-rate.delay", default=1000, says="before each restart"
).needing(_FAILURE_RATE)


def _directories(found: str) -> tuple[str, ...]:
    """Flink parts them by commas, or by the colons of Unix."""
    items = Configuration.parse_list_value(found) if found.startswith("[") else found.replace(":", ",").split(",")
    directories = tuple(each.strip() for each in items)
    if not all(each.startswith("/") for each in directories):
        raise ValueError(found)
    return directories


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Where a job's keyed state is kept while it runs.

    Args:
        is_rocksdb: in RocksDB on the local disks; else on the heap.
        is_incremental: a checkpoint keeps only the files of RocksDB that the last complete one has not.
        directories: of RocksDB on each TaskManager, which its operators use one after the other; empty: where its
            temporary files are.
    """

    is_rocksdb: bool = choice(
        "state.backend.type",
        {"hashmap": False, "rocksdb": True},
        "state.backend",
        default="hashmap",
        says="where keyed state is: on the heap, or in RocksDB on local disks (extra `rocksdb`)",
    ).field()
    is_incremental: bool = boolean(
        "execution.checkpointing.incremental",
        "state.backend.incremental",
        default=False,
        says="with `rocksdb`: a checkpoint writes only files that the last complete one has not",
    ).field()
    directories: tuple[str, ...] = Option(
        "state.backend.rocksdb.localdir",
        _directories,
        "an absolute path, or several parted by commas",
        "where the databases are, one operator after the other; else below the temporary directory (`TMPDIR`) of each "
        "TaskManager",
    ).field(Needs.ROCKSDB, default=())


def check_rocksdb() -> None:
    """Raises JobGraphError: rocksdict is not installed."""
    if importlib.util.find_spec("rocksdict") is None:
        raise JobGraphError(
            "the state back end 'rocksdb' needs the package rocksdict: pip install 'flowlet[rocksdb]', here and where "
            "the TaskManagers run; or use the state back end 'hashmap'"
        )


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What a job decides for all of its tasks; None leaves a setting to the TaskManager.

    Args:
        recovery_path: empty: none.

    Raises:
        JobGraphError: a number is out of range.
    """

    cancellation_interval_ms: int | None = whole_number(
        "task.cancellation.interval",
        least=1,
        says="milliseconds between reports of a cancelled task that does not end; else the TaskManager's",
    ).field()
    cancellation_timeout_ms: int | None = whole_number(
        CANCELLATION_TIMEOUT_OPTION, least=0, says="milliseconds after which such a task ends its TaskManager; 0: never"
    ).field()
    max_record_bytes: int | None = whole_number(
        MAX_RECORD_BYTES_OPTION,
        least=1,
        says="the largest stream element between tasks, in the files of sorted inputs and in flight in a checkpoint; "
        "else 64 MiB",
    ).field()
    checkpoints: CheckpointSettings | None = None  # None: the job takes none
    restart: RestartSettings = dataclasses.field(default_factory=RestartSettings)
    recovery_path: str = text(
        RECOVERY_PATH,
        "execution.savepoint.path",
        allowed="the path or URL of a checkpoint or savepoint",
        says="the job starts from this [savepoint](savepoints.md), or "
        "[checkpoint](checkpoints.md#a-job-that-starts-from-the-checkpoint-of-another) of another job",
    ).field(default="")
    ignores_unclaimed_state: bool = boolean(
        IGNORES_UNCLAIMED_STATE,
        "execution.savepoint.ignore-unclaimed-state",
        default=False,
        says="leave out the state of operators that the program does not have",
    ).field(Needs.RECOVERY)
    state: StateSettings = dataclasses.field(default_factory=StateSettings)
    gates: GateSettings = dataclasses.field(default_factory=GateSettings)
    batch: BatchSettings | None = None  # None: the job is no BATCH job
    parameters: tuple[tuple[str, str], ...] = Option(
        "pipeline.global-job-parameters",
        lambda text: tuple(parse_map(text).items()),
        "of the form name:value,name:value",
        "what functions read by `RuntimeContext.get_job_parameter()`",
    ).field(default=())

    @property
    def takes_checkpoints(self) -> bool:
        """Whether checkpoints are taken by themselves; no: at most savepoints, on request."""
        return self.checkpoints is not None and self.checkpoints.is_periodic

    @property
    def acknowledges_checkpointed(self) -> bool:
        """Whether a write into a remote gate returns when a checkpoint holds its rows, not when they are processed."""
        return self.takes_checkpoints and self.gates.acknowledge is Acknowledge.CHECKPOINTED

    def __post_init__(self) -> None:
        for name, row in rows_by_field(JobSettings).items():
            value = getattr(self, name)
            if row.least is not None and value is not None and not row.least <= value <= LARGEST_MAX_RECORD_BYTES:
                raise JobGraphError(f"{name} is {value}, allowed are {row.least} to {LARGEST_MAX_RECORD_BYTES}")


def _below_least(settings: object) -> Iterator[tuple[str, float, float]]:
    """The fields that are less than their rows allow: name, value and the least one."""
    for field, row in rows_by_field(type(settings)).items():
        value = getattr(settings, field)
        if row.least is not None and value is not None and value < row.least:
            yield field, value, row.least
