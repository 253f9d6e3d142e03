"""The files that several checkpoints of a job use: each is named by its SHA-256.

Side:       shared.  Blocking: called on threads of a pool, and on the task thread before the operators open.
Invariants: a file under its name is whole and on disk.  What is read has the length and the SHA-256 of its handle.
Source:     Flink ``FsCheckpointStorageAccess`` (``shared``), ``RocksDBStateUploader``, ``RocksDBStateDownloader``.
"""

import hashlib
from pathlib import Path

from flowlet.messages.control_messages import StateHandle
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.state.incremental_snapshot import SharedFile
from flowlet.storage.checkpoint_storage import CheckpointStorage


class JobSharedFiles:
    """Implements ``SharedFiles`` for one job.  Threading: any thread.

    Args:
        storage: of the job.
        former: where the checkpoint lies that the job starts from; None: in ``storage``, too.
        former_classes: if another program wrote that checkpoint.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        former: CheckpointStorage | None = None,
        former_classes: RunningClasses | None = None,
    ) -> None:
        self._storage = storage
        self._former = former or storage
        self.are_restored_ones_own = self._former is storage
        self.former_classes = former_classes

    def __repr__(self) -> str:
        return f"<JobSharedFiles of {self._storage!r}>"

    def write_shared(self, path: Path) -> SharedFile:
        """Keep a copy of a file.  Raises StorageError."""
        content = path.read_bytes()
        file = SharedFile(hashlib.sha256(content).digest(), len(content))
        self._storage.write_shared(handle_of(file), content)
        return file

    def read_shared(self, file: SharedFile, path: Path) -> None:
        """Copy what was kept into a new file.  Raises StorageError: it is missing or changed."""
        path.write_bytes(self._former.read_state(handle_of(file)))


def handle_of(file: SharedFile) -> StateHandle:
    """Where a shared file lies."""
    return StateHandle(file.num_bytes, file.sha256, path=f"shared/{file.sha256.hex()}")
