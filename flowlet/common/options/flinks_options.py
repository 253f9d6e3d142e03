"""Options of Flink that nothing here reads, with the reason and what to do instead.

Side:   pure.
Source: Flink 2 ``*Options``; PyFlink ``PythonOptions``.
"""

from typing import Final

_SAVEPOINTS: Final = "a job can start from a savepoint or a retained checkpoint: execution.state-recovery.path"
_STATE: Final = "this detail of state backends cannot be set"
_STORAGE: Final = "this detail of checkpoint files cannot be set"
_UNALIGNED: Final = "this detail of unaligned checkpoints cannot be set"
_LOCAL: Final = "TaskManagers keep no copies of state"
_BATCH: Final = "this detail of batch jobs cannot be set"
_JVM: Final = "nothing runs in a Java virtual machine"
_TYPES: Final = "records are serialized by their declared types, or pickled"
_CLUSTER: Final = "it belongs to the cluster, not to a job: see 'python -m flowlet.tm --help' and 'python -m flowlet.jm --help'"
_SHIPPING: Final = "Python functions run in the TaskManagers themselves, not in processes beside them"
_METRICS: Final = "metrics are read from the JobManager's REST port, there are no reporters"
_LISTENERS: Final = "there are no listeners"
_ALIGNMENT: Final = "source splits of an alignment group always wait for each other"

EXACT: Final = {
    name: reason
    for reason, names in {
        _STORAGE: "execution.checkpointing.create-subdir execution.checkpointing.data-inline-threshold"
        " execution.checkpointing.write-buffer-size execution.checkpointing.snapshot-compression"
        " execution.checkpointing.cleaner.parallel-mode",
        _UNALIGNED: "execution.checkpointing.during-recovery.enabled",
        "checkpoints have one interval": "execution.checkpointing.interval-during-backlog",
        "sources begin at once": "pipeline.sources.pause-until-first-checkpoint",
        "use map_batches(), there are no jars": "pipeline.jars pipeline.classpaths",
        _TYPES: "pipeline.force-avro pipeline.force-kryo pipeline.force-kryo-avro pipeline.generic-types pipeline.serialization-config",
        "give values to the constructors of functions": "pipeline.global-job-parameters",
        "functions are pickled as they are": "pipeline.closure-cleaner-level",
        "set_parallelism() of a stream": "pipeline.jobvertex-parallelism-overrides",
        "the names of tasks cannot be changed": "pipeline.vertex-description-mode pipeline.vertex-name-include-index-prefix",
        "operators with different max parallelism are chained": (
            "pipeline.operator-chaining.chain-operators-with-different-max-parallelism"
        ),
        _ALIGNMENT: "pipeline.watermark-alignment.allow-unaligned-source-splits pipeline.watermark-alignment.buffer-size",
        _LISTENERS: "execution.job-listeners execution.job-status-changed-listeners",
        "use 'flowlet.jobmanager' to name a cluster, or leave it out for one on this machine": "execution.target",
        "timers of a cancelled task are not waited for": "task.cancellation.timers.timeout",
        "all tasks of a job are deployed at once": "jobmanager.scheduler scheduler-mode",
    }.items()
    for name in names.split()
}

# The longest prefix counts.
PREFIXES: Final = {
    prefix: reason
    for reason, prefixes in {
        _STATE: "state.backend. state.changelog. state.latency-track. state.size-track. state.ttl.",
        _SAVEPOINTS: "execution.state-recovery. execution.savepoint. execution.savepoint-",
        _STORAGE: "execution.checkpointing.file-merging. state.storage. state.checkpoints.",
        _LOCAL: "execution.checkpointing.local-backup. state.local-recovery.",
        _UNALIGNED: "execution.checkpointing.unaligned.",
        _BATCH: "execution.batch. execution.batch- execution.sort- execution.sorted-inputs. execution.async-state.",
        _JVM: "classloader. env. compiler. akka. pekko.",
        _SHIPPING: "python.",
        _METRICS: "metrics. traces. events.",
        _CLUSTER: "taskmanager. jobmanager. rest. web. security. high-availability. heartbeat. slot. slotmanager. resourcemanager."
        " cluster. blob. historyserver. jobstore. job-result-store. job-event. zookeeper. kubernetes. yarn. io. fs. s3. cluster-",
        "the Table API is not part of flowlet": "table. sql.",
        "state cannot be asked for from outside": "queryable-state.",
    }.items()
    for prefix in prefixes.split()
}


def reason_of_prefix(name: str) -> str | None:
    """Why nothing here reads options of Flink that begin like this one; None: Flink has none, as far as this module knows."""
    prefix = max((each for each in PREFIXES if name.startswith(each)), key=len, default=None)
    return None if prefix is None else PREFIXES[prefix]
