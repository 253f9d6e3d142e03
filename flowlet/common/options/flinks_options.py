"""Options of Flink that nothing here reads, with the reason and what to do instead.

Side:   pure.
Rules:  they would change results, durability, memory or the cluster; those that only tune Java are in
        ``tuning_options``.
Source: Flink 2 ``*Options``; PyFlink ``PythonOptions``.
"""

from typing import Final

_SAVEPOINTS: Final = "a job can start from a savepoint or a retained checkpoint: execution.state-recovery.path"
_STATE: Final = "this detail of state backends cannot be set"
_STORAGE: Final = "this detail of checkpoint files cannot be set"
_ROCKSDB_MEMORY: Final = (
    "RocksDB has its own settings of memory, and each operator 8 MiB of cache; size the TaskManagers for that"
)
_BATCH: Final = "this detail of batch jobs cannot be set"
_CLUSTER: Final = (
    "it belongs to the cluster, not to a job: see 'python -m flowlet.tm --help' and 'python -m flowlet.jm --help'"
)
_SHIPPING: Final = "Python functions run in the TaskManagers themselves, not in processes beside them"
_METRICS: Final = "metrics are read from the JobManager's REST port, there are no reporters"
_LISTENERS: Final = "there are no listeners"
_ALIGNMENT: Final = "source splits of an alignment group always wait for each other"

EXACT: Final = {
    name: reason
    for reason, names in {
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
    }.items()
    for name in names.split()
}

# The longest prefix counts.
PREFIXES: Final = {
    prefix: reason
    for reason, prefixes in {
        _STATE: "state.backend. state.ttl.",
        _ROCKSDB_MEMORY: "state.backend.rocksdb.memory. state.backend.rocksdb.block. state.backend.rocksdb.writebuffer."
        " state.backend.rocksdb.timer-service.",
        _SAVEPOINTS: "execution.state-recovery. execution.savepoint. execution.savepoint-",
        _STORAGE: "state.storage. state.checkpoints.",
        _BATCH: "execution.batch. execution.batch- execution.sort- execution.sorted-inputs.",
        _SHIPPING: "python.",
        _METRICS: "metrics. traces. events.",
        _CLUSTER: "taskmanager. jobmanager. rest. web. security. high-availability. heartbeat. slot. slotmanager. "
        "resourcemanager."
        " cluster. blob. historyserver. jobstore. job-result-store. job-event. zookeeper. io. fs. s3. cluster-",
        "the Table API is not part of flowlet": "table. sql.",
        "state cannot be asked for from outside": "queryable-state.",
    }.items()
    for prefix in prefixes.split()
}


def reason_of_prefix(name: str) -> str | None:
    """Why nothing here reads options of Flink that begin like this one; None: Flink has none, as far as this module
    knows.
    """
    prefix = max((each for each in PREFIXES if name.startswith(each)), key=len, default=None)
    return None if prefix is None else PREFIXES[prefix]
