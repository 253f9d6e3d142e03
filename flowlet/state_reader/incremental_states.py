"""Reads keyed state that RocksDB has written incrementally.

Side:       shared.  Blocking: it makes a database in the directory for temporary files, and removes it.
"""

from flowlet.errors import StateRestoreError
from flowlet.state.incremental_snapshot import IncrementalSnapshot
from flowlet.state.keyed_state_snapshot import KeyedStateSnapshot
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.shared_files import JobSharedFiles
from flowlet.storage.state_files import StateFiles


class _NoKey:
    """A key context that nobody asks."""

    current_key = None


def full_snapshot_of(snapshot: IncrementalSnapshot, storage: StateFiles) -> KeyedStateSnapshot:
    """The same state in the form that every back end reads.

    Raises:
        StateRestoreError: RocksDB is not installed, or the state cannot be read.
        StorageError: a file is missing or was changed.
    """
    try:
        from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
    except ImportError as error:
        raise StateRestoreError(
            "this state was written by RocksDB, incrementally: pip install 'flowlet[rocksdb]' to read it"
        ) from error
    assert isinstance(storage, CheckpointStorage), "savepoints are never incremental"
    groups = range(snapshot.first_key_group, snapshot.end_key_group)
    place = RocksDBPlace(shared_files=JobSharedFiles(storage))
    backend = RocksDBKeyedStateBackend(_NoKey(), lambda: 0, groups, snapshot.max_parallelism, place)  # type: ignore[arg-type]  # see _NoKey
    try:
        backend.restore(snapshot)
        finish = backend.snapshot(is_full=True)
        if finish is None:
            return KeyedStateSnapshot(snapshot.descriptions, snapshot.max_parallelism)
        found = finish()
        assert isinstance(found, KeyedStateSnapshot), "it is full"
        return found
    finally:
        backend.close()
