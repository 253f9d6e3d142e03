"""Every option that flowlet knows, in one table.

Side:   pure.
Rules:  an option stands here only if something reads it.  Names and defaults are Flink's; those that begin with
        ``flowlet.`` are ours.  An option that has only one value here (``FIXED``) is accepted with this value, because
        it says what happens anyway.
Source: Flink ``CoreOptions``, ``PipelineOptions``, ``ExecutionOptions``, ``TaskManagerOptions``, ``DeploymentOptions``,
        ``ClientOptions``, ``RestOptions``, ``MetricOptions``, ``StateBackendOptions``, ``CheckpointingOptions``,
        ``RestartStrategyOptions``, ``JobManagerOptions``.
"""

from typing import Any, Final

from flowlet.common.config_options import parse_map
from flowlet.common.configuration import Configuration
from flowlet.common.options.batch_options import FOR_BATCH
from flowlet.common.options.option import Option, boolean, choice, duration, duration_ms, number, text, whole_number
from flowlet.common.options.python_options import FOR_PYTHON
from flowlet.common.settings.checkpoint_settings import MIN_INTERVAL_MS
from flowlet.common.settings.gate_settings import Acknowledge, RetryRule
from flowlet.common.settings.job_settings import (
    CANCELLATION_INTERVAL_OPTION,
    CANCELLATION_TIMEOUT_OPTION,
    MAX_RECORD_BYTES_OPTION,
)
from flowlet.common.settings.restart_settings import RestartKind, RestartSettings

UNLIMITED: Final = 2**31 - 1  # Flink's, where a number has no limit
_ENVIRONMENT: Final = "StreamExecutionEnvironment.configure"
_ADDRESS: Final = "job_manager_address"
_HEARTBEAT: Final = "ClientHeartbeat.of_options"
_RETRY: Final = "ClientRetry.of_options"
_CHECKPOINTS: Final = "checkpoint_settings"
_RESTARTS: Final = "restart_settings"
_RECOVERY: Final = "recovery_settings"
_STATE: Final = "state_settings"
_GATES: Final = "gate_settings"
_CHECK: Final = "check_options"

DEFAULT_PARALLELISM: Final = whole_number("parallelism.default", _ENVIRONMENT, lowest=1)
MAX_PARALLELISM: Final = whole_number("pipeline.max-parallelism", _ENVIRONMENT, lowest=1)
JOB_NAME: Final = text("pipeline.name", _ENVIRONMENT)
AUTO_UIDS: Final = boolean("pipeline.auto-generate-uids", _ENVIRONMENT, default=True)
CHAINING: Final = boolean(
    "pipeline.operator-chaining.enabled", _ENVIRONMENT, "pipeline.operator-chaining", default=True
)
WATERMARK_INTERVAL: Final = duration("pipeline.auto-watermark-interval", _ENVIRONMENT, default_ms=200)
LATENCY_INTERVAL: Final = duration("metrics.latency.interval", _ENVIRONMENT, default_ms=0)
RUNTIME_MODE: Final = choice(
    "execution.runtime-mode",
    _ENVIRONMENT,
    {"streaming": "STREAMING", "batch": "BATCH", "automatic": "AUTOMATIC"},
    default="STREAMING",
)
CANCELLATION_INTERVAL: Final = whole_number(CANCELLATION_INTERVAL_OPTION, _ENVIRONMENT, lowest=1)
CANCELLATION_TIMEOUT: Final = whole_number(CANCELLATION_TIMEOUT_OPTION, _ENVIRONMENT, lowest=0)
MAX_RECORD_BYTES: Final = whole_number(MAX_RECORD_BYTES_OPTION, _ENVIRONMENT, lowest=1)


def _buffer_timeout_ms(found: str) -> int:
    return -1 if found == "-1" else duration_ms(found)


BUFFER_TIMEOUT: Final = Option(
    "execution.buffer-timeout.interval",
    _buffer_timeout_ms,
    "a duration such as '100 ms', or -1 (no limit)",
    100,
    _ENVIRONMENT,
    ("execution.buffer-timeout",),
)
IS_BUFFER_TIMEOUT_ENABLED: Final = boolean("execution.buffer-timeout.enabled", _ENVIRONMENT, default=True)

JOB_MANAGER: Final = text("flowlet.jobmanager", _ADDRESS, allowed="host:port")
REST_ADDRESS: Final = text("rest.address", _ADDRESS, "jobmanager.rpc.address", allowed="a host")
REST_PORT: Final = whole_number("rest.port", _ADDRESS, lowest=1, default=8081)

IS_ATTACHED: Final = boolean("execution.attached", _HEARTBEAT)
ENDS_WITH_CLIENT: Final = boolean("execution.shutdown-on-attached-exit", _HEARTBEAT, default=False)
CLIENT_INTERVAL: Final = whole_number("client.heartbeat.interval", _HEARTBEAT, lowest=1)
CLIENT_TIMEOUT: Final = whole_number("client.heartbeat.timeout", _HEARTBEAT, lowest=1)

RETRY_ATTEMPTS: Final = whole_number("rest.retry.max-attempts", _RETRY, lowest=0, default=20)
RETRY_DELAY: Final = duration("rest.retry.delay", _RETRY, lowest_ms=1, default_ms=3000)

CHECKPOINT_INTERVAL: Final = duration("execution.checkpointing.interval", _CHECKPOINTS, lowest_ms=MIN_INTERVAL_MS)
CHECKPOINT_MODE: Final = choice(
    "execution.checkpointing.mode",
    _CHECKPOINTS,
    {"exactly_once": "EXACTLY_ONCE", "at_least_once": "AT_LEAST_ONCE"},
    default="EXACTLY_ONCE",
)
CHECKPOINT_TIMEOUT: Final = duration(
    "execution.checkpointing.timeout", _CHECKPOINTS, lowest_ms=MIN_INTERVAL_MS, default_ms=600_000
)
MIN_PAUSE: Final = duration("execution.checkpointing.min-pause", _CHECKPOINTS, default_ms=0)
MAX_CONCURRENT: Final = whole_number(
    "execution.checkpointing.max-concurrent-checkpoints", _CHECKPOINTS, lowest=1, default=1
)
UNALIGNED: Final = boolean(
    "execution.checkpointing.unaligned.enabled", _CHECKPOINTS, "execution.checkpointing.unaligned", default=False
)
ALIGNED_TIMEOUT: Final = duration(
    "execution.checkpointing.aligned-checkpoint-timeout",
    _CHECKPOINTS,
    "execution.checkpointing.alignment-timeout",
    default_ms=0,
)
TOLERABLE_FAILURES: Final = whole_number(
    "execution.checkpointing.tolerable-failed-checkpoints", _CHECKPOINTS, lowest=0, default=0
)
CHECKPOINT_DIRECTORY: Final = text(
    "execution.checkpointing.dir", _CHECKPOINTS, "state.checkpoints.dir", allowed="the path or URL of a directory"
)
NUM_RETAINED: Final = whole_number(
    "execution.checkpointing.num-retained", _CHECKPOINTS, "state.checkpoints.num-retained", lowest=1, default=1
)
RETENTION: Final = choice(
    "execution.checkpointing.externalized-checkpoint-retention",
    _CHECKPOINTS,
    {
        "delete_on_cancellation": "DELETE_ON_CANCELLATION",
        "retain_on_cancellation": "RETAIN_ON_CANCELLATION",
        "no_externalized_checkpoints": "NO_EXTERNALIZED_CHECKPOINTS",
    },
    default="NO_EXTERNALIZED_CHECKPOINTS",
)
AFTER_TASKS_FINISH: Final = boolean(
    "execution.checkpointing.checkpoints-after-tasks-finish",
    _CHECKPOINTS,
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
    default=True,
)
RESTORE_FALLBACK: Final = boolean("flowlet.checkpointing.restore-fallback", _CHECKPOINTS, default=False)

GATE_ACKNOWLEDGE: Final = choice(
    "flowlet.gate.acknowledge", _GATES, {each.value: each for each in Acknowledge}, default=Acknowledge.CHECKPOINTED
)
GATE_RETRIES: Final = choice(
    "flowlet.gate.retries", _GATES, {each.value: each for each in RetryRule}, default=RetryRule.SAME_ROWS
)

SAVEPOINT_DIRECTORY: Final = text(
    "execution.checkpointing.savepoint-dir",
    _CHECKPOINTS,
    "state.savepoints.dir",
    allowed="the path or URL of a directory",
)
RECOVERY_PATH: Final = text(
    "execution.state-recovery.path",
    _RECOVERY,
    "execution.savepoint.path",
    allowed="the path or URL of a checkpoint or savepoint",
)
IGNORES_UNCLAIMED_STATE: Final = boolean(
    "execution.state-recovery.ignore-unclaimed-state",
    _RECOVERY,
    "execution.savepoint.ignore-unclaimed-state",
    default=False,
)

_DEFAULTS: Final = RestartSettings()
RESTART_STRATEGY: Final = choice(
    "restart-strategy.type",
    _RESTARTS,
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
    default=RestartKind.DEFAULT,
)
FAILOVER_STRATEGY: Final = choice(
    "jobmanager.execution.failover-strategy", _RESTARTS, {"region": "region", "full": "full"}, default="region"
)
ATTEMPTS: Final = whole_number("restart-strategy.fixed-delay.attempts", _RESTARTS, lowest=0, default=_DEFAULTS.attempts)
FIXED_DELAY: Final = duration("restart-strategy.fixed-delay.delay", _RESTARTS, default_ms=_DEFAULTS.delay_ms)
MAX_FAILURES: Final = whole_number(
    "restart-strategy.failure-rate.max-failures-per-interval", _RESTARTS, lowest=1, default=_DEFAULTS.max_failures
)
FAILURE_INTERVAL: Final = duration(
    "restart-strategy.failure-rate.failure-rate-interval", _RESTARTS, lowest_ms=1, default_ms=_DEFAULTS.interval_ms
)
FAILURE_RATE_DELAY: Final = duration("restart-strategy.failure-rate.delay", _RESTARTS, default_ms=_DEFAULTS.delay_ms)
INITIAL_BACKOFF: Final = duration(
    "restart-strategy.exponential-delay.initial-backoff",
    _RESTARTS,
    lowest_ms=1,
    default_ms=_DEFAULTS.initial_backoff_ms,
)
MAX_BACKOFF: Final = duration(
    "restart-strategy.exponential-delay.max-backoff", _RESTARTS, lowest_ms=1, default_ms=_DEFAULTS.max_backoff_ms
)
MULTIPLIER: Final = number(
    "restart-strategy.exponential-delay.backoff-multiplier",
    _RESTARTS,
    lowest=1.001,
    highest=1000.0,
    default=_DEFAULTS.multiplier,
)
RESET_THRESHOLD: Final = duration(
    "restart-strategy.exponential-delay.reset-backoff-threshold", _RESTARTS, lowest_ms=1, default_ms=_DEFAULTS.reset_ms
)
JITTER: Final = number(
    "restart-strategy.exponential-delay.jitter-factor", _RESTARTS, lowest=0.0, highest=1.0, default=_DEFAULTS.jitter
)
MAX_ATTEMPTS: Final = whole_number(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff", _RESTARTS, lowest=1, default=UNLIMITED
)


STATE_BACKEND: Final = choice(
    "state.backend.type", _STATE, {"hashmap": "hashmap", "rocksdb": "rocksdb"}, "state.backend", default="hashmap"
)
INCREMENTAL: Final = boolean("execution.checkpointing.incremental", _STATE, "state.backend.incremental", default=False)


def _directories(found: str) -> tuple[str, ...]:
    """Flink parts them by commas, or by the colons of Unix."""
    items = Configuration.parse_list_value(found) if found.startswith("[") else found.replace(":", ",").split(",")
    directories = tuple(each.strip() for each in items)
    if not all(each.startswith("/") for each in directories):
        raise ValueError(found)
    return directories


ROCKSDB_DIRECTORIES: Final = Option(
    "state.backend.rocksdb.localdir", _directories, "an absolute path, or several parted by commas", None, _STATE
)


def _parameters(found: str) -> tuple[tuple[str, str], ...]:
    return tuple(parse_map(found).items())


JOB_PARAMETERS: Final = Option(
    "pipeline.global-job-parameters", _parameters, "of the form name:value,name:value", None, _ENVIRONMENT
)


def _fixed(name: str, accepted: str, missing: str, *other_names: str) -> Option[str]:
    """An option with one value; ``missing``: what another one would need."""

    def parse(found: str) -> str:
        if found.lower() != accepted.lower():
            raise ValueError(found)
        return accepted

    return Option(
        name, parse, f"possible here: {missing}; use {accepted!r} or leave it out", accepted, _CHECK, other_names
    )


CHECKPOINT_STORAGE: Final = _fixed(
    "execution.checkpointing.storage",
    "filesystem",
    "checkpoints are files in the directory 'execution.checkpointing.dir'",
    "state.checkpoint-storage",
)
CLAIM_MODE: Final = _fixed(
    "execution.state-recovery.claim-mode",
    "NO_CLAIM",
    "a job never changes the checkpoint that it starts from",
    "execution.savepoint-restore-mode",
)

FIXED: Final[tuple[Option[str], ...]] = (
    CHECKPOINT_STORAGE,
    CLAIM_MODE,
)
FOR_ROCKSDB: Final[tuple[Option[Any], ...]] = (INCREMENTAL, ROCKSDB_DIRECTORIES)
"""Options without effect unless ``STATE_BACKEND`` is RocksDB; ``INCREMENTAL`` may be false anyway."""
FOR_PERIODIC_CHECKPOINTS: Final[tuple[Option[Any], ...]] = (
    MIN_PAUSE,
    MAX_CONCURRENT,
    TOLERABLE_FAILURES,
    CHECKPOINT_DIRECTORY,
    NUM_RETAINED,
    UNALIGNED,
    ALIGNED_TIMEOUT,
    RETENTION,
    RESTORE_FALLBACK,
)
"""Options without effect unless ``CHECKPOINT_INTERVAL`` is set."""
FOR_GATES: Final[tuple[Option[Any], ...]] = (GATE_ACKNOWLEDGE, GATE_RETRIES)
"""Options without effect unless the job has a remote gate and checkpoints."""
FOR_CHECKPOINTS: Final[tuple[Option[Any], ...]] = (
    CHECKPOINT_MODE,
    CHECKPOINT_TIMEOUT,
    AFTER_TASKS_FINISH,
    *FOR_PERIODIC_CHECKPOINTS,
)
"""Options without effect unless checkpoints are taken; the first three also count for savepoints alone."""
FOR_RECOVERY: Final[tuple[Option[Any], ...]] = (RECOVERY_PATH, IGNORES_UNCLAIMED_STATE)
FOR_STRATEGIES: Final[dict[RestartKind, tuple[Option[Any], ...]]] = {
    RestartKind.FIXED_DELAY: (ATTEMPTS, FIXED_DELAY),
    RestartKind.FAILURE_RATE: (MAX_FAILURES, FAILURE_INTERVAL, FAILURE_RATE_DELAY),
    RestartKind.EXPONENTIAL_DELAY: (INITIAL_BACKOFF, MAX_BACKOFF, MULTIPLIER, RESET_THRESHOLD, JITTER, MAX_ATTEMPTS),
}
"""Options without effect unless their strategy is used."""

KNOWN: Final[tuple[Option[Any], ...]] = (
    DEFAULT_PARALLELISM,
    MAX_PARALLELISM,
    JOB_NAME,
    JOB_PARAMETERS,
    CHAINING,
    AUTO_UIDS,
    WATERMARK_INTERVAL,
    LATENCY_INTERVAL,
    RUNTIME_MODE,
    *FOR_BATCH,
    CANCELLATION_INTERVAL,
    CANCELLATION_TIMEOUT,
    MAX_RECORD_BYTES,
    BUFFER_TIMEOUT,
    IS_BUFFER_TIMEOUT_ENABLED,
    JOB_MANAGER,
    REST_ADDRESS,
    REST_PORT,
    IS_ATTACHED,
    ENDS_WITH_CLIENT,
    CLIENT_INTERVAL,
    CLIENT_TIMEOUT,
    RETRY_ATTEMPTS,
    RETRY_DELAY,
    CHECKPOINT_INTERVAL,
    *FOR_CHECKPOINTS,
    *FOR_GATES,
    SAVEPOINT_DIRECTORY,
    *FOR_RECOVERY,
    RESTART_STRATEGY,
    FAILOVER_STRATEGY,
    *(option for options in FOR_STRATEGIES.values() for option in options),
    STATE_BACKEND,
    *FOR_ROCKSDB,
    *FOR_PYTHON,
    *FIXED,
)
BY_NAME: Final[dict[str, Option[Any]]] = {name: option for option in KNOWN for name in option.names}
