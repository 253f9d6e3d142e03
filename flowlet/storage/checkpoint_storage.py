"""``CheckpointStorage``: the files of one job's checkpoints.

Side:       shared.  Blocking: called on threads of a pool, never on an event loop or a task thread.
Invariants: a state that was returned is on disk: written, fsynced, renamed, its directory fsynced.  A checkpoint exists when its manifest
            does, which is written last.  Nothing is returned that does not have the length and the SHA-256 of its handle.
Layout:     ``<url>/<job id>/chk-<n>/<name>`` and ``<url>/<job id>/chk-<n>/_metadata``.
Source:     Flink ``FsCheckpointStorageAccess``, ``FsCheckpointMetadataOutputStream``.
"""

from flowlet.rpc.control_messages import StateHandle
from flowlet.storage.manifest import CheckpointManifest

INLINE_BYTES = 20 * 1024
"""A state up to this size stays in its handle."""


class CheckpointStorage:
    """The storage of one job.

    Threading: any thread.

    Args:
        url: a URL of fsspec, or the path of a local directory.
        job_id: 32 hex digits.
        key: of the MAC of manifests: derived from the cluster's secret.

    Raises:
        StorageError: the URL cannot be used; the message names it and what to do.
    """

    def __init__(self, url: str, job_id: str, key: bytes = b"") -> None:
        self._url = url
        self._job_id = job_id
        self._key = key

    def write_state(self, checkpoint_id: int, name: str, content: bytes) -> StateHandle:
        """Keep a subtask's state; ``name`` is unique within the checkpoint.  Raises StorageError."""
        raise NotImplementedError

    def read_state(self, handle: StateHandle) -> bytes:
        """The content of a state.  Raises StorageError: it is missing or changed; the message names the file."""
        raise NotImplementedError

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint.  Raises StorageError."""
        raise NotImplementedError

    def read_manifest(self, checkpoint_id: int) -> CheckpointManifest:
        """What ``write_manifest`` wrote.  Raises StorageError: it is missing, changed, or of another cluster."""
        raise NotImplementedError

    def complete_checkpoints(self) -> list[int]:
        """The ids of all checkpoints with a manifest, the oldest first.  Raises StorageError."""
        raise NotImplementedError

    def discard(self, checkpoint_id: int) -> None:
        """Remove a checkpoint, the manifest first; none: does nothing.  Raises StorageError."""
        raise NotImplementedError
