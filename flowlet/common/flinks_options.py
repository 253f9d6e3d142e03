"""Options of Flink that nothing here reads: those without an effect, and those that are refused, each with the reason.

Side:   pure.
Rules:  an option that only makes a job faster in Flink, or tunes its Java processes, changes nothing here: it gives an
        ``IgnoredOptionWarning`` and keeps its value, so that a program that sets and reads it runs.  An option that
        could change results, durability, the memory of a job or the cluster is never one of these: something reads it,
        or it is refused, and the reason says what to do instead.
Source: Flink 2 ``*Options``; PyFlink ``PythonOptions``.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Final

from netstack.late import by_name

OBJECT_REUSE: Final = "pipeline.object-reuse"
SNAPSHOT_COMPRESSION: Final = "execution.checkpointing.snapshot-compression"
FORCED_UNALIGNED: Final = "execution.checkpointing.unaligned.forced"
CHANGELOG: Final = "state.changelog.enabled"

_IN_PROCESS: Final = "functions run in the TaskManager itself, chunk by chunk"
SHARED: Final = "functions in a line always pass on the record itself, as PyFlink's do"
SERIALIZERS: Final = "records are serialized by their declared types, or pickled"
CLEANER: Final = "functions are pickled as they are, with what they refer to"
COMPRESSION: Final = "snapshots are not compressed"
ITERATIONS: Final = "no job has iterations, which unaligned checkpoints would have to be forced on"
ROCKSDB: Final = "RocksDB runs with its own settings and as many threads as it needs"
_CHANGELOG: Final = "checkpoints hold the state itself; there is no changelog of it"
_FILES: Final = "each task writes its part of a checkpoint into files of its own"
_METRICS: Final = "state has no metrics of its own"
_NAMES: Final = "the names of tasks are made in one way"
_JVM: Final = "nothing runs in a Java virtual machine"
_DEPLOYED: Final = "processes are started by 'python -m flowlet.jm' and 'python -m flowlet.tm'"
_LOGS: Final = "the processes log by Python's logging: see --help of 'python -m flowlet.jm' and 'python -m flowlet.tm'"
_CHAINS: Final = "a max parallelism never parts a chain"
_TIMERS: Final = "timers of a cancelled task are not waited for"
_BUFFERS: Final = "buffers keep their size; smaller or fewer ones are options of 'python -m flowlet.tm'"
_LOCAL: Final = "TaskManagers keep no copies of state, they read checkpoints"

IGNORED: Final = by_name(
    {
        SHARED: OBJECT_REUSE,
        _IN_PROCESS: "python.execution-mode python.fn-execution.arrow.batch.size python.fn-execution.bundle.size"
        " python.fn-execution.bundle.time python.fn-execution.memory.managed python.fn-execution.memory.slot"
        " python.fn-execution.streaming.enabled python.operator-chaining.enabled python.state.cache-size"
        " python.map-state.read-cache-size python.map-state.write-cache-size "
        "python.map-state.iterate-response-batch-size"
        " python.systemenv.enabled python.client.executable python.profile.enabled",
        COMPRESSION: SNAPSHOT_COMPRESSION,
        ITERATIONS: FORCED_UNALIGNED,
        _CHANGELOG: CHANGELOG,
        SERIALIZERS: "pipeline.force-avro pipeline.force-kryo pipeline.force-kryo-avro pipeline.generic-types"
        " pipeline.serialization-config",
        CLEANER: "pipeline.closure-cleaner-level",
        _CHAINS: "pipeline.operator-chaining.chain-operators-with-different-max-parallelism",
        _TIMERS: "task.cancellation.timers.timeout",
        _NAMES: "pipeline.vertex-description-mode pipeline.vertex-name-include-index-prefix",
        _FILES: "execution.checkpointing.data-inline-threshold execution.checkpointing.write-buffer-size"
        " execution.checkpointing.cleaner.parallel-mode execution.checkpointing.during-recovery.enabled",
        ROCKSDB: "state.backend.rocksdb.checkpoint.transfer.thread.num state.backend.rocksdb.thread.num"
        " state.backend.rocksdb.predefined-options state.backend.rocksdb.write-batch-size "
        "state.backend.rocksdb.files.open state.backend.rocksdb.use-bloom-filter "
        "state.backend.rocksdb.bloom-filter.bits-per-key state.backend.rocksdb.bloom-filter.block-based-mode "
        "state.backend.rocksdb.compression.per.level state.backend.rocksdb.rescaling.use-delete-files-in-range "
        "state.backend.rocksdb.use-ingest-db-restore-mode state.backend.rocksdb.restore-overlap-fraction-threshold",
    }
)

# Flink's groups of options whose members are all of this kind; the longest prefix counts.
IGNORED_PREFIXES: Final = by_name(
    {
        _JVM: "akka. classloader. compiler. env. jvm. pekko. jobmanager.memory.jvm- taskmanager.memory.jvm-",
        _DEPLOYED: "kubernetes. mesos. yarn. $internal.deployment. $internal.yarn.",
        _LOGS: "python.logging.",
        _BUFFERS: "taskmanager.network.memory.buffer-debloat.",
        _CHANGELOG: "state.changelog.",
        _FILES: "execution.checkpointing.file-merging. execution.checkpointing.unaligned.max-subtasks-",
        _LOCAL: "execution.checkpointing.local-backup. state.local-recovery state.backend.local-recovery",
        _IN_PROCESS: "execution.async-state.",
        _METRICS: "state.latency-track. state.size-track. state.backend.latency-track. state.backend.rocksdb.metrics. "
        "python.metric.",
        ROCKSDB: "state.backend.rocksdb.compaction. state.backend.rocksdb.log. state.backend.rocksdb.manual-compaction."
        " state.backend.rocksdb.incremental-restore-async-compact",
    }
)

_SAVEPOINTS: Final = "a job can start from a savepoint or a retained checkpoint: execution.state-recovery.path"
_STATE: Final = "this detail of state backends cannot be set"
_CHECKPOINT_FILES: Final = "this detail of checkpoint files cannot be set"
_ROCKSDB_MEMORY: Final = (
    "RocksDB has its own settings of memory, and each operator 8 MiB of cache; size the TaskManagers for that"
)
_BATCH: Final = "this detail of batch jobs cannot be set"
_CLUSTER: Final = (
    "it belongs to the cluster, not to a job: see 'python -m flowlet.tm --help' and 'python -m flowlet.jm --help'"
)
_SHIPPING: Final = "Python functions run in the TaskManagers themselves, not in processes beside them"
_REPORTERS: Final = "metrics are read from the JobManager's REST port, there are no reporters"
_LISTENERS: Final = "there are no listeners"
_ALIGNMENT: Final = "source splits of an alignment group always wait for each other"

EXACT: Final = by_name(
    {
        "the files of a job are in a folder of its own": "execution.checkpointing.create-subdir",
        "checkpoints have one interval": "execution.checkpointing.interval-during-backlog",
        "sources begin at once": "pipeline.sources.pause-until-first-checkpoint",
        "use map_batches(), there are no jars": "pipeline.jars pipeline.classpaths",
        "call set_parallelism() of the stream": "pipeline.jobvertex-parallelism-overrides",
        "use add_python_file() or python.files for modules that functions import": "python.pythonpath",
        "a factory of options is a Java class": "state.backend.rocksdb.options-factory",
        _ALIGNMENT: "pipeline.watermark-alignment.allow-unaligned-source-splits "
        "pipeline.watermark-alignment.buffer-size",
        _LISTENERS: "execution.job-listeners execution.job-status-changed-listeners",
        "use 'flowlet.jobmanager' to name a cluster, or leave it out for one on this machine": "execution.target",
        "all tasks of a job are deployed at once": "jobmanager.scheduler scheduler-mode",
    }
)

# The longest prefix counts.
PREFIXES: Final = by_name(
    {
        _STATE: "state.backend. state.ttl.",
        _ROCKSDB_MEMORY: "state.backend.rocksdb.memory. state.backend.rocksdb.block. state.backend.rocksdb.writebuffer."
        " state.backend.rocksdb.timer-service.",
        _SAVEPOINTS: "execution.state-recovery. execution.savepoint. execution.savepoint-",
        _CHECKPOINT_FILES: "state.storage. state.checkpoints.",
        _BATCH: "execution.batch. execution.batch- execution.sort- execution.sorted-inputs.",
        _SHIPPING: "python.",
        _REPORTERS: "metrics. traces. events.",
        _CLUSTER: "taskmanager. jobmanager. rest. web. security. high-availability. heartbeat. slot. slotmanager. "
        "resourcemanager."
        " cluster. blob. historyserver. jobstore. job-result-store. job-event. zookeeper. io. fs. s3. cluster-",
        "the Table API is not part of flowlet": "table. sql.",
        "state cannot be asked for from outside": "queryable-state.",
    }
)


class IgnoredOptionWarning(UserWarning):
    """An option or a setter has no effect here; the job's results are the same without it."""


def reason_to_ignore(name: str) -> str | None:
    """Why an option of that name has no effect here, and needs none; None: it is none of these."""
    return IGNORED.get(name) or _of_longest_prefix(name, IGNORED_PREFIXES)


def reason_of_prefix(name: str) -> str | None:
    """Why nothing here reads options of Flink that begin like this one; None: Flink has none, as far as this module
    knows.
    """
    return _of_longest_prefix(name, PREFIXES)


def _of_longest_prefix(name: str, reasons: Mapping[str, str]) -> str | None:
    prefix = max((each for each in reasons if name.startswith(each)), key=len, default=None)
    return None if prefix is None else reasons[prefix]


def warn_of_option(name: str, reason: str) -> None:
    """Warn that an option has no effect, at the line of the program that set it."""
    _warn(f"option {name!r} has no effect here: {reason}")


def warn_of_setter(setter: str, reason: str) -> None:
    """Warn that a setter of a configuration has no effect, at the line of the program that called it."""
    _warn(f"{setter} has no effect here: {reason}; it can be left out")


def _warn(text: str) -> None:
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "flowlet":
        level += 1
        frame = frame.f_back
    warnings.warn(text, IgnoredOptionWarning, stacklevel=level)
