"""Options of Flink and PyFlink that only change how fast a job is there, or its Java processes, and change nothing
here.

Side:   pure.
Rules:  each is told of by an ``IgnoredOptionWarning`` and keeps its value, so that a program that sets and reads it
        runs.  An option that could change results, durability or the memory of a job is never in this list: it is
        mapped or refused.
Source: PyFlink ``PythonOptions``; Flink ``PipelineOptions``, ``CheckpointingOptions``, ``StateBackendOptions``,
        ``RocksDBOptions``, ``CoreOptions``.
"""

import sys
import warnings
from typing import Final

__all__ = [
    "CHANGELOG",
    "FORCED_UNALIGNED",
    "IGNORED",
    "IGNORED_PREFIXES",
    "OBJECT_REUSE",
    "SNAPSHOT_COMPRESSION",
    "IgnoredOptionWarning",
    "reason_to_ignore",
    "warn_of_option",
    "warn_of_setter",
]

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

IGNORED: Final = {
    name: reason
    for reason, names in {
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
        "state.backend.rocksdb.files.open"
        " state.backend.rocksdb.use-bloom-filter state.backend.rocksdb.bloom-filter.bits-per-key"
        " state.backend.rocksdb.bloom-filter.block-based-mode state.backend.rocksdb.compression.per.level"
        " state.backend.rocksdb.rescaling.use-delete-files-in-range state.backend.rocksdb.use-ingest-db-restore-mode"
        " state.backend.rocksdb.restore-overlap-fraction-threshold",
    }.items()
    for name in names.split()
}

# Flink's groups of options whose members are all of this kind; the longest prefix counts.
IGNORED_PREFIXES: Final = {
    prefix: reason
    for reason, prefixes in {
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
    }.items()
    for prefix in prefixes.split()
}


class IgnoredOptionWarning(UserWarning):
    """An option or a setter has no effect here; the job's results are the same without it."""


def reason_to_ignore(name: str) -> str | None:
    """Why an option of that name has no effect here, and needs none; None: it is none of these."""
    if name in IGNORED:
        return IGNORED[name]
    prefix = max((each for each in IGNORED_PREFIXES if name.startswith(each)), key=len, default=None)
    return None if prefix is None else IGNORED_PREFIXES[prefix]


def warn_of_option(name: str, reason: str) -> None:
    """Warn that an option has no effect, at the line of the program that set it."""
    _warn(f"option {name!r} has no effect here: {reason}")


def warn_of_setter(setter: str, reason: str) -> None:
    """Warn that a setter of a configuration has no effect, at the line of the program that called it."""
    _warn(f"{setter} has no effect here: {reason}; it can be left out")


def _warn(text: str) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "flowlet":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, IgnoredOptionWarning, stacklevel=level)
