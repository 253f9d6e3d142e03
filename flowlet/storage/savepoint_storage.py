"""``SavepointStorage``: the files of one savepoint, all in one directory, which may be moved or copied.

Side:       shared.  Blocking: called on threads of a pool, never on an event loop or a task thread.
Invariants: those of ``StateFiles``.  A savepoint exists when its manifest does.  No name from a handle leads out of its
            directory, and no file outside of it is part of it.  ``discard`` is for one that has failed: complete ones
            stay.
Layout:     ``<target>/savepoint-<6 digits of the job id>-<12 digits>/<name>`` and ``.../_metadata``.
Source:     Flink ``FsCheckpointStorageAccess.initializeLocationForSavepoint``.
"""

import os
import secrets
from contextlib import suppress
from typing import Final

from flowlet.common.paths import check_checkpoint_url, is_directory, root_of
from flowlet.errors import StorageError
from flowlet.storage.manifest import CheckpointManifest, StoredManifest
from flowlet.storage.state_files import MANIFEST, NAME, StateFiles, files_at, has_files
from flowlet.storage.storage_files import Folder

_HERE: Final[Folder] = ()
_PROBE_NAME: Final = "probe"
_JOB_DIGITS: Final = 6  # Flink's
_RANDOM_BYTES: Final = 6  # Flink's


class SavepointStorage(StateFiles):
    """The storage of one savepoint.

    Threading: any thread.  The subtasks write from different processes.

    Args:
        location: the absolute path of its own directory, or its URL.
        key: of the MAC of manifests: ``manifest_key`` of the cluster's secret.

    Raises:
        StorageError: the location cannot be used; the message names it and what to do.
    """

    def __init__(self, location: str, key: bytes = b"") -> None:
        super().__init__(files_at(location), key)
        self.location = root_of(location)
        """Its directory, without a slash at the end."""

    def __repr__(self) -> str:
        return f"<SavepointStorage {self.location}>"

    @classmethod
    def create(cls, target: str, job_id: str, key: bytes = b"") -> "SavepointStorage":
        """A new savepoint below the directory ``target``.  Raises StorageError: nothing can be written there."""
        name = f"savepoint-{job_id[:_JOB_DIGITS]}-{secrets.token_hex(_RANDOM_BYTES)}"
        storage = cls(f"{target_root(target)}/{name}", key)
        storage._files.write(_HERE, _PROBE_NAME, b"probe")
        storage._files.remove(_HERE, _PROBE_NAME)
        return storage

    def read_manifest(self) -> CheckpointManifest:
        """What ``write_manifest`` wrote.

        Raises:
            StorageError: it is missing, changed, or of another cluster; or a file of the savepoint is missing or has
                another size; the message names the file.
        """
        if self._files.size(_HERE, MANIFEST) is None:
            raise StorageError(
                f"{self.location} names no checkpoint or savepoint: there is no file {MANIFEST} in it; name the "
                "directory "
                "<execution.checkpointing.dir>/<job id>/chk-<n> or <savepoint directory>/savepoint-...; if you did, is "
                "a mount missing?"
            )
        return self._read_manifest(_HERE)

    def discard(self) -> None:
        """Remove what a savepoint that has failed has left, the manifest first.  Raises StorageError."""
        self._files.remove(_HERE, MANIFEST)
        for name in self._files.names(_HERE):
            self._files.remove(_HERE, name)
        if is_directory(self.location):
            with suppress(OSError):  # another process wrote into it late
                os.rmdir(self.location)

    def _folder(self, checkpoint_id: int) -> Folder:
        return _HERE

    def _place(self, path: str) -> tuple[Folder, str]:
        if NAME.fullmatch(path) is None:
            raise StorageError(
                f"{path!r} is no file of savepoint {self.location}: the handle was changed; restore another savepoint"
            )
        return _HERE, path

    def _path_of(self, folder: Folder, name: str) -> str:
        return name

    def _settle(self, stored: StoredManifest, folder: Folder) -> None:
        if has_files(stored):
            self._files.settle(folder)

    def _check_identity(self, manifest: CheckpointManifest, folder: Folder) -> None:
        if not manifest.is_savepoint:
            raise StorageError(
                f"{self.location} is a checkpoint, which was moved: a checkpoint is restored only where it was "
                "written, as "
                "<directory>/<job id>/chk-<n>; put it back there, or restore a savepoint"
            )


def target_root(target: str) -> str:
    """The directory of ``target``, without a slash at the end.  Raises StorageError: no savepoint can be there."""
    try:
        check_checkpoint_url(target)
    except StorageError as error:
        raise StorageError(
            f"a savepoint cannot be written to {target!r}: name an absolute path, its file: URL, or a URL such as "
            "s3://bucket/folder that "
            f"the JobManager and all TaskManagers reach ({str(error).split(';')[0]})"
        ) from error
    return root_of(target)
