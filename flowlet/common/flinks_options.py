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

from flowlet.common.not_yet import reasons_by_name

FORCED_UNALIGNED: Final = "execution.checkpointing.unaligned.forced"
CHANGELOG: Final = "state.changelog.enabled"


def _reasons(table: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reasons of names, and of all names with a prefix, which end in ``*`` in the table."""
    found = reasons_by_name(table)
    prefixes = {name.removesuffix("*"): reason for name, reason in found.items() if name.endswith("*")}
    return {name: reason for name, reason in found.items() if not name.endswith("*")}, prefixes


# Without an effect; of Flink's groups of options the longest prefix counts.
IGNORED, IGNORED_PREFIXES = _reasons("""
functions in a line always pass on the record itself, as PyFlink's do
    pipeline.object-reuse
functions run in the TaskManager itself, chunk by chunk
    python.execution-mode python.fn-execution.arrow.batch.size python.fn-execution.bundle.size
    python.fn-execution.bundle.time python.fn-execution.memory.managed python.fn-execution.memory.slot
    python.fn-execution.streaming.enabled python.operator-chaining.enabled python.state.cache-size
    python.map-state.read-cache-size python.map-state.write-cache-size python.map-state.iterate-response-batch-size
    python.systemenv.enabled python.client.executable python.profile.enabled execution.async-state.*
snapshots are not compressed
    execution.checkpointing.snapshot-compression
no job has iterations, which unaligned checkpoints would have to be forced on
    execution.checkpointing.unaligned.forced
checkpoints hold the state itself; there is no changelog of it
    state.changelog.enabled state.changelog.*
records are serialized by their declared types, or pickled
    pipeline.force-avro pipeline.force-kryo pipeline.force-kryo-avro pipeline.generic-types
    pipeline.serialization-config
functions are pickled as they are, with what they refer to
    pipeline.closure-cleaner-level
a max parallelism never parts a chain
    pipeline.operator-chaining.chain-operators-with-different-max-parallelism
timers of a cancelled task are not waited for
    task.cancellation.timers.timeout
the names of tasks are made in one way
    pipeline.vertex-description-mode pipeline.vertex-name-include-index-prefix
each task writes its part of a checkpoint into files of its own
    execution.checkpointing.data-inline-threshold execution.checkpointing.write-buffer-size
    execution.checkpointing.cleaner.parallel-mode execution.checkpointing.during-recovery.enabled
    execution.checkpointing.file-merging.* execution.checkpointing.unaligned.max-subtasks-*
RocksDB runs with its own settings and as many threads as it needs
    state.backend.rocksdb.checkpoint.transfer.thread.num state.backend.rocksdb.thread.num
    state.backend.rocksdb.predefined-options state.backend.rocksdb.write-batch-size state.backend.rocksdb.files.open
    state.backend.rocksdb.use-bloom-filter state.backend.rocksdb.bloom-filter.bits-per-key
    state.backend.rocksdb.bloom-filter.block-based-mode state.backend.rocksdb.compression.per.level
    state.backend.rocksdb.rescaling.use-delete-files-in-range state.backend.rocksdb.use-ingest-db-restore-mode
    state.backend.rocksdb.restore-overlap-fraction-threshold state.backend.rocksdb.compaction.*
    state.backend.rocksdb.log.* state.backend.rocksdb.manual-compaction.*
    state.backend.rocksdb.incremental-restore-async-compact*
nothing runs in a Java virtual machine
    akka.* classloader.* compiler.* env.* jvm.* pekko.* jobmanager.memory.jvm-* taskmanager.memory.jvm-*
processes are started by 'python -m flowlet.jm' and 'python -m flowlet.tm'
    kubernetes.* mesos.* yarn.* $internal.deployment.* $internal.yarn.*
the processes log by Python's logging: see --help of 'python -m flowlet.jm' and 'python -m flowlet.tm'
    python.logging.*
buffers keep their size; smaller or fewer ones are options of 'python -m flowlet.tm'
    taskmanager.network.memory.buffer-debloat.*
TaskManagers keep no copies of state, they read checkpoints
    execution.checkpointing.local-backup.* state.local-recovery* state.backend.local-recovery*
state has no metrics of its own
    state.latency-track.* state.size-track.* state.backend.latency-track.* state.backend.rocksdb.metrics.*
    python.metric.*
""")
# Refused; the longest prefix counts.
EXACT, PREFIXES = _reasons("""
the files of a job are in a folder of its own
    execution.checkpointing.create-subdir
checkpoints have one interval
    execution.checkpointing.interval-during-backlog
sources begin at once
    pipeline.sources.pause-until-first-checkpoint
use map_batches(), there are no jars
    pipeline.jars pipeline.classpaths
call set_parallelism() of the stream
    pipeline.jobvertex-parallelism-overrides
use add_python_file() or python.files for modules that functions import
    python.pythonpath
a factory of options is a Java class
    state.backend.rocksdb.options-factory
source splits of an alignment group always wait for each other
    pipeline.watermark-alignment.allow-unaligned-source-splits pipeline.watermark-alignment.buffer-size
there are no listeners
    execution.job-listeners execution.job-status-changed-listeners
use 'flowlet.jobmanager' to name a cluster, or leave it out for one on this machine
    execution.target
all tasks of a job are deployed at once
    jobmanager.scheduler scheduler-mode
this detail of state backends cannot be set
    state.backend.* state.ttl.*
RocksDB has its own settings of memory, and each operator 8 MiB of cache; size the TaskManagers for that
    state.backend.rocksdb.memory.* state.backend.rocksdb.block.* state.backend.rocksdb.writebuffer.*
    state.backend.rocksdb.timer-service.*
a job can start from a savepoint or a retained checkpoint: execution.state-recovery.path
    execution.state-recovery.* execution.savepoint.* execution.savepoint-*
this detail of checkpoint files cannot be set
    state.storage.* state.checkpoints.*
this detail of batch jobs cannot be set
    execution.batch.* execution.batch-* execution.sort-* execution.sorted-inputs.*
Python functions run in the TaskManagers themselves, not in processes beside them
    python.*
metrics are read from the JobManager's REST port, there are no reporters
    metrics.* traces.* events.*
it belongs to the cluster, not to a job: see 'python -m flowlet.tm --help' and 'python -m flowlet.jm --help'
    taskmanager.* jobmanager.* rest.* web.* security.* high-availability.* heartbeat.* slot.* slotmanager.*
    resourcemanager.* cluster.* blob.* historyserver.* jobstore.* job-result-store.* job-event.* zookeeper.* io.* fs.*
    s3.* cluster-*
the Table API is not part of flowlet
    table.* sql.*
state cannot be asked for from outside
    queryable-state.*
""")


class IgnoredOptionWarning(UserWarning):
    """An option or a setter has no effect here; the job has equal results without it."""


def reason_to_ignore(name: str) -> str | None:
    """Return why an option of that name has no effect here, and needs none; None: the name is not in this table."""
    return IGNORED.get(name) or reason_of_prefix(name, IGNORED_PREFIXES)


def reason_of_prefix(name: str, reasons: Mapping[str, str]) -> str | None:
    """Return the reason of the longest prefix of a name, of ``PREFIXES`` or ``IGNORED_PREFIXES``; None: it has none."""
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
