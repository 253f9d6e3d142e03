"""``JobSettings``: what a job decides for all of its tasks, and the rows of its options.

Side:   pure.
Units:  milliseconds, bytes.
Rules:  a field that is a row has its value from the option; ``known_options`` makes these settings of a program's
        options.  They travel with the job, so a number is checked again where they arrive.
Source: Flink ``CheckpointingOptions``, ``CheckpointCoordinatorConfiguration``, ``ExecutionOptions``,
        ``JobManagerOptions``, ``PipelineOptions``, ``RestartStrategyOptions`` (the limits are those of the
        ``...RestartBackoffTimeStrategy`` classes), ``RocksDBOptions``, ``StateBackendOptions``, ``TaskManagerOptions``.
"""

import dataclasses
import importlib.util
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
    """The moment at which a write returns; by the values of ``flowlet.gate.acknowledge``."""

    CHECKPOINTED = "checkpointed"
    """A complete checkpoint holds the rows of the write: no failure loses them."""
    PROCESSED = "processed"
    """All tasks have processed the rows of the write: a failure before the next checkpoint loses them."""


class RetryRule(Enum):
    """The rows that several attempts of a partition share; by the values of ``flowlet.gate.retries``."""

    SAME_ROWS = "same-rows"
    """All attempts have equal rows in equal order: rows that are in are skipped, so each row is in once."""
    ANY_ROWS = "any-rows"
    """Attempts may differ; only the continued calls of one attempt do not.  Another attempt is taken from its
    beginning, and some rows are in twice.
    """


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a job in BATCH mode exchanges and sorts its records.

    Args:
        is_blocking: in [BATCH mode](batch.md): results between tasks are files, and stages run one after the other; or
            all tasks run at once.
        sorts_inputs: in BATCH mode: keyed inputs are sorted by key, in bounded memory.
        ends_keys: in BATCH mode with sorted inputs: timers fire and state is dropped at the end of each key; else at
            the end of the input.
        sort_memory_bytes: memory of a task for that.  For all its inputs.
    """

    is_blocking: bool = choice(
        "execution.batch-shuffle-mode",
        {"all_exchanges_blocking": True, "all_exchanges_pipelined": False},
        default="ALL_EXCHANGES_BLOCKING",
    ).field()
    sorts_inputs: bool = boolean("execution.sorted-inputs.enabled", default=True).field()
    ends_keys: bool = boolean("execution.batch-state-backend.enabled", default=True).field()
    sort_memory_bytes: int = Option(
        "execution.sorted-inputs.memory",
        at_least(parse_bytes, _LEAST_SORT_MEMORY_BYTES),
        "a size such as '128 mb', of 64 kb or more",
        128 << 20,  # Flink's
    ).field()


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How often a job takes checkpoints, how, and where they are kept.

    Args:
        interval_ms: from one checkpoint to the next; not set: none are taken.  None: only savepoints, on request.
        directory: where they are kept; on a remote cluster needed, else a directory of the user's below the temporary
            one.  An absolute path, its ``file:`` URL, or a URL of fsspec, that all TaskManagers and the JobManager
            reach; empty if only savepoints are taken.
        is_exactly_once: how often a record counts after a restart.  Barriers are aligned; otherwise they are only
            counted (at least once).
        timeout_ms: a checkpoint that takes longer fails.
        min_pause_ms: from the end of a checkpoint to the next one, at least.
        max_concurrent: under way at a time.
        tolerable_failures: failed ones in a row that do not fail the job.  -1: any number.
        num_retained: complete ones that are kept while the job runs.
        after_tasks_finish: go on when some tasks have ended; each task waits at its end for one.
        is_unaligned: barriers overtake records, which become part of the checkpoint.  Only exactly once, and one at a
            time.
        aligned_timeout_ms: they do so only if alignment takes longer.
        is_retained_on_cancellation: whether the newest checkpoints stay when the job fails (the first two) or is
            cancelled (the second).  True: when it is cancelled, too.
        is_retained_on_failure: they stay when the job fails.
        restore_fallback: a checkpoint that cannot be restored is passed over for the one before it.  As far as they are
            kept.
        savepoint_directory: where savepoints are written if nobody names a directory; with it a job without an interval
            takes savepoints, too: [savepoints](savepoints.md).  Empty: whoever wants a savepoint must say where.

    Raises:
        JobGraphError: a number is out of range, the directory is missing, or unaligned checkpoints do not go with the
            rest.
    """

    interval_ms: int | None = duration(CHECKPOINT_INTERVAL, least=_MIN_INTERVAL_MS).field()
    directory: str = text(
        "execution.checkpointing.dir", "state.checkpoints.dir", allowed="the path or URL of a directory"
    ).field(default="")
    is_exactly_once: bool = choice(
        "execution.checkpointing.mode", {"exactly_once": True, "at_least_once": False}, default="EXACTLY_ONCE"
    ).field()
    timeout_ms: int = duration("execution.checkpointing.timeout", least=_MIN_INTERVAL_MS, default=600_000).field()
    min_pause_ms: int = duration("execution.checkpointing.min-pause", default=0).field()
    max_concurrent: int = whole_number("execution.checkpointing.max-concurrent-checkpoints", least=1, default=1).field()
    tolerable_failures: int = Option(
        "execution.checkpointing.tolerable-failed-checkpoints", at_least(int, 0), "a whole number of 0 or more", 0
    ).field()
    num_retained: int = whole_number(
        "execution.checkpointing.num-retained", "state.checkpoints.num-retained", least=1, default=1
    ).field()
    after_tasks_finish: bool = boolean(
        AFTER_TASKS_FINISH, "execution.checkpointing.checkpoints-after-tasks-finish.enabled", default=True
    ).field()
    is_unaligned: bool = boolean(
        "execution.checkpointing.unaligned.enabled", "execution.checkpointing.unaligned", default=False
    ).field()
    aligned_timeout_ms: int = duration(
        "execution.checkpointing.aligned-checkpoint-timeout", "execution.checkpointing.alignment-timeout", default=0
    ).field()
    is_retained_on_cancellation: bool = choice(
        RETENTION,
        {"delete_on_cancellation": False, "retain_on_cancellation": True, "no_externalized_checkpoints": False},
        default="NO_EXTERNALIZED_CHECKPOINTS",
    ).field()
    is_retained_on_failure: bool = choice(  # the field above reads this option, too
        RETENTION,
        {"delete_on_cancellation": True, "retain_on_cancellation": True, "no_externalized_checkpoints": False},
        default="NO_EXTERNALIZED_CHECKPOINTS",
    ).field()
    restore_fallback: bool = boolean("flowlet.checkpointing.restore-fallback", default=False).field()
    savepoint_directory: str = text(
        "execution.checkpointing.savepoint-dir", "state.savepoints.dir", allowed="the path or URL of a directory"
    ).field(default="")

    def __post_init__(self) -> None:
        _check_least(self, "checkpoints")
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
    """The promises to writes into a job's remote gates.

    Args:
        acknowledge: when a write into a remote gate returns: when a checkpoint holds it, or when it is processed
            ([remote gates](remote-gates.md#in-jobs-with-checkpoints)).  Without checkpoints always when it is
            processed.
        retries: whether all attempts of a partition bring equal rows, so that rows that are in are skipped.
    """

    acknowledge: Acknowledge = choice(
        "flowlet.gate.acknowledge", {each.value: each for each in Acknowledge}, default="checkpointed"
    ).field()
    retries: RetryRule = choice(
        "flowlet.gate.retries", {each.value: each for each in RetryRule}, default="same-rows"
    ).field()


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Whether a job that failed starts again, after how long, and how often: the options of all strategies, of which
    each uses its own.

    Args:
        kind: else `exponential-delay` with checkpoints, `none` without.
        attempts: restarts before the job fails.
        delay_ms: before each restart.  Of FIXED_DELAY and FAILURE_RATE.
        max_failures: failures in the interval that do not fail the job.  Of FAILURE_RATE, as is ``interval_ms``.
        interval_ms: in which failures are counted.
        initial_backoff_ms: before the first restart.  Of EXPONENTIAL_DELAY, as what follows up to ``max_attempts``.
        max_backoff_ms: before any restart, at most.
        multiplier: from one backoff to the next.
        jitter: by which share of itself each backoff is changed at random.
        reset_ms: without a failure for so long, the backoff begins anew.
        max_attempts: restarts without such a pause before the job fails.  -1: any number.
        is_regional: what starts again: the regions that failed ([checkpoints](checkpoints.md#what-starts-again)), or
            all tasks.

    Raises:
        JobGraphError: a number is out of range, or two contradict each other.
    """

    kind: RestartKind = choice(
        "restart-strategy.type",
        {
            "none": RestartKind.NONE,
            "off": RestartKind.NONE,
            "disable": RestartKind.NONE,
            "fixed-delay": RestartKind.FIXED_DELAY,
            "fixeddelay": RestartKind.FIXED_DELAY,
            "failure-rate": RestartKind.FAILURE_RATE,
            "failurerate": RestartKind.FAILURE_RATE,
            "exponential-delay": RestartKind.EXPONENTIAL_DELAY,
            "exponentialdelay": RestartKind.EXPONENTIAL_DELAY,
        },
        "restart-strategy",
        default="default",
    ).field(default=RestartKind.DEFAULT)
    attempts: int = whole_number("restart-strategy.fixed-delay.attempts", least=0, default=1).field()
    delay_ms: int = duration("restart-strategy.fixed-delay.delay", default=1000).field()
    max_failures: int = whole_number(
        "restart-strategy.failure-rate.max-failures-per-interval", least=1, default=1
    ).field()
    interval_ms: int = duration("restart-strategy.failure-rate.failure-rate-interval", least=1, default=60_000).field()
    initial_backoff_ms: int = duration(
        "restart-strategy.exponential-delay.initial-backoff", least=1, default=1000
    ).field()
    max_backoff_ms: int = duration("restart-strategy.exponential-delay.max-backoff", least=1, default=60_000).field()
    multiplier: float = number(
        "restart-strategy.exponential-delay.backoff-multiplier", least=1.001, most=1000, default=1.5
    ).field()
    jitter: float = number("restart-strategy.exponential-delay.jitter-factor", least=0, most=1, default=0.1).field()
    reset_ms: int = duration(
        "restart-strategy.exponential-delay.reset-backoff-threshold", least=1, default=3_600_000
    ).field()
    max_attempts: int = Option(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        lambda text: ANY_NUMBER if int(text) == UNLIMITED else at_least(int, 1)(text),
        "a whole number of 1 or more",
        ANY_NUMBER,
        least=ANY_NUMBER,
        shown=str(UNLIMITED),
    ).field()
    is_regional: bool = choice(
        "jobmanager.execution.failover-strategy", {"region": True, "full": False}, default="region"
    ).field()

    def __post_init__(self) -> None:
        _check_least(self, "restart strategy")
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
FAILURE_RATE_DELAY: Final = duration("restart-strategy.failure-rate.delay", default=1000)
"""Before each restart."""


def _directories(found: str) -> tuple[str, ...]:
    """Parse directories, which Flink parts by commas, or by the colons of Unix."""
    items = Configuration.parse_list_value(found) if found.startswith("[") else found.replace(":", ",").split(",")
    directories = tuple(each.strip() for each in items)
    if not all(each.startswith("/") for each in directories):
        raise ValueError(found)
    return directories


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The place of a job's keyed state while the job runs.

    Args:
        is_rocksdb: where keyed state is: on the heap, or in RocksDB on local disks (extra `rocksdb`).
        is_incremental: with `rocksdb`: a checkpoint writes only files that the last complete one has not.
        directories: where the databases are, one operator after the other; else below the temporary directory
            (`TMPDIR`) of each TaskManager.
    """

    is_rocksdb: bool = choice(
        "state.backend.type", {"hashmap": False, "rocksdb": True}, "state.backend", default="hashmap"
    ).field()
    is_incremental: bool = boolean(
        "execution.checkpointing.incremental", "state.backend.incremental", default=False
    ).field()
    directories: tuple[str, ...] = Option(
        "state.backend.rocksdb.localdir", _directories, "an absolute path, or several parted by commas"
    ).field(default=())


def check_rocksdb() -> None:
    """Check that rocksdict is installed.  Raises JobGraphError: it is not."""
    if importlib.util.find_spec("rocksdict") is None:
        raise JobGraphError(
            "the state back end 'rocksdb' needs the package rocksdict: pip install 'flowlet[rocksdb]', here and where "
            "the TaskManagers run; or use the state back end 'hashmap'"
        )


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of a job for all of its tasks; None leaves a setting to the TaskManager.

    Args:
        cancellation_interval_ms: milliseconds between reports of a cancelled task that does not end; else the
            TaskManager's.
        cancellation_timeout_ms: milliseconds after which such a task ends its TaskManager; 0: never.
        max_record_bytes: the largest stream element between tasks, in the files of sorted inputs and in flight in a
            checkpoint; else 64 MiB.
        recovery_path: the job starts from this [savepoint](savepoints.md), or
            [checkpoint](checkpoints.md#a-job-that-starts-from-the-checkpoint-of-another) of another job.  Empty: none.
        ignores_unclaimed_state: leave out the state of operators that the program does not have.
        parameters: what functions read by `RuntimeContext.get_job_parameter()`.

    Raises:
        JobGraphError: a number is out of range.
    """

    cancellation_interval_ms: int | None = whole_number("task.cancellation.interval", least=1).field()
    cancellation_timeout_ms: int | None = whole_number(CANCELLATION_TIMEOUT_OPTION, least=0).field()
    max_record_bytes: int | None = whole_number(MAX_RECORD_BYTES_OPTION, least=1).field()
    checkpoints: CheckpointSettings | None = None  # None: the job takes none
    restart: RestartSettings = dataclasses.field(default_factory=RestartSettings)
    recovery_path: str = text(
        RECOVERY_PATH, "execution.savepoint.path", allowed="the path or URL of a checkpoint or savepoint"
    ).field(default="")
    ignores_unclaimed_state: bool = boolean(
        IGNORES_UNCLAIMED_STATE, "execution.savepoint.ignore-unclaimed-state", default=False
    ).field()
    state: StateSettings = dataclasses.field(default_factory=StateSettings)
    gates: GateSettings = dataclasses.field(default_factory=GateSettings)
    batch: BatchSettings | None = None  # None: the job is no BATCH job
    parameters: tuple[tuple[str, str], ...] = Option(
        "pipeline.global-job-parameters",
        lambda text: tuple(parse_map(text).items()),
        "of the form name:value,name:value",
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


def _check_least(settings: object, what: str) -> None:
    """Check all numbers of the settings.  Raises JobGraphError: a field is below the least of its row."""
    for field, row in rows_by_field(type(settings)).items():
        value = getattr(settings, field)
        if row.least is not None and value is not None and value < row.least:
            raise JobGraphError(f"{field} of the {what} is {value}, the least is {row.least}")
