"""Reads the checkpoint or savepoint of another job that a job starts from.

Side:   shared.  Blocking: called on a thread of its own.
"""

from flowlet.jm.checkpoints.former_checkpoint import CheckpointPlace, FormerCheckpoint, place_of
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage


def read_former_checkpoint(path: str, job: JobGraphMessage, key: bytes) -> FormerCheckpoint:
    """The checkpoint at a path, if ``job`` can start from it; ``key``: of the MAC of manifests.

    Raises:
        StorageError: the path names none; or a file of it is missing, changed, or of a cluster with another secret.
        StateRestoreError: the job's program does not fit.
    """
    place = place_of(path)
    if isinstance(place, CheckpointPlace):
        manifest = CheckpointStorage(place.directory, place.job_id, key).read_manifest(place.checkpoint_id)
    else:
        manifest = SavepointStorage(place, key).read_manifest()
        place = CheckpointPlace("", manifest.job_id, manifest.checkpoint_id, savepoint=place)
    return FormerCheckpoint(place, manifest, job)
