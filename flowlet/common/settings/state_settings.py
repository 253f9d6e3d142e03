"""``StateSettings``: where a job's keyed state is kept while it runs.

Side:   pure.
Source: Flink ``StateBackendOptions``, ``CheckpointingOptions.INCREMENTAL_CHECKPOINTS``,
        ``RocksDBOptions.LOCAL_DIRECTORIES``.
"""

import importlib.util

from flowlet.errors import JobGraphError
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What ``state.backend.*`` and ``execution.checkpointing.incremental`` decide.

    Args:
        is_rocksdb: in RocksDB on the local disks; else on the heap.
        is_incremental: a checkpoint keeps only the files of RocksDB that the last complete one has not.
        directories: of RocksDB on each TaskManager, which its operators use one after the other; empty: where its
            temporary files are.
    """

    is_rocksdb: bool = False
    is_incremental: bool = False
    directories: tuple[str, ...] = ()


def check_rocksdb() -> None:
    """Raises JobGraphError: rocksdict is not installed."""
    if importlib.util.find_spec("rocksdict") is None:
        raise JobGraphError(
            "the state back end 'rocksdb' needs the package rocksdict: pip install 'flowlet[rocksdb]', here and where "
            "the "
            "TaskManagers run; or use the state back end 'hashmap'"
        )
