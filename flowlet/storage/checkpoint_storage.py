"""``CheckpointStorage``: the files of one job's checkpoints.

``SavepointStorage``: the files of one savepoint, all in one directory, which may be moved or copied.

Side:       shared.  Blocking: called on threads of a pool, never on an event loop or a task thread.
Invariants: those of ``StateFiles``.  A checkpoint or savepoint exists when its manifest does.  No name from a handle or
            a manifest leads out of ``<url>/<job id>``, or out of the directory of a savepoint, of which no file outside
            is part.  ``discard`` of a savepoint is for one that has failed: complete ones stay.
Layout:     ``<url>/<job id>/chk-<n>/<name>``, ``<url>/<job id>/shared/<sha256>`` and ``<url>/<job
            id>/chk-<n>/_metadata``; ``<target>/savepoint-<6 digits of the job id>-<12 digits>/<name>`` and
            ``.../_metadata``.
Source:     Flink ``FsCheckpointStorageAccess``, ``FsCheckpointMetadataOutputStream``.
Absent:     timeouts: that of the checkpoint covers a slow file system.
"""

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from flowlet.common.paths import check_checkpoint_url, is_directory, root_of
from flowlet.errors import StorageError
from flowlet.messages.job_messages import CheckpointPlace, StateHandle
from flowlet.storage.manifest import CheckpointManifest
from flowlet.storage.state_files import INLINE_BYTES, MANIFEST, NAME, StateFiles
from flowlet.storage.storage_files import Folder

__all__ = ["INLINE_BYTES", "CheckpointStorage"]
_PROBE: Final = 0  # the ids of checkpoints count from 1
_PROBE_NAME: Final = "probe"
_JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHARED: Final = "shared"
_SHARED_NAME: Final = re.compile(r"[0-9a-f]{64}")
_FOLDER: Final = re.compile(r"chk-(0|[1-9][0-9]{0,18})")


class CheckpointStorage(StateFiles):
    """The storage of one job.

    Threading: any thread.  The subtasks of a checkpoint may write from different processes.

    Args:
        url: the absolute path of a directory, or its ``file:`` URL; it is made when the first file is written.  Other
            URLs are fsspec's.
        job_id: 32 hex digits.
        key: of the MAC of manifests: ``manifest_key`` of the cluster's secret.

    Raises:
        StorageError: the URL cannot be used; the message names it and what to do.
    """

    def __init__(self, url: str, job_id: str, key: bytes = b"") -> None:
        if _JOB_ID.fullmatch(job_id) is None:
            raise StorageError(f"{job_id!r} is no id of a job: it must have 32 hex digits")
        super().__init__(url, key)
        self._job_id = job_id

    def __repr__(self) -> str:
        return f"<CheckpointStorage {self._files.location((self._job_id,))}>"

    def check_writable(self) -> None:
        """Write a file below the URL and remove it.  Raises StorageError: a checkpoint could not be written."""
        folder = self._folder(_PROBE)
        self._files.write(folder, _PROBE_NAME, b"probe")
        self._files.remove_folder(folder)

    def write_shared(self, handle: StateHandle, content: bytes) -> None:
        """Keep a file that several checkpoints use, at the place in its handle.  Raises StorageError."""
        assert handle.path is not None, "a shared file is never in its handle"
        self._files.write(*self._place(handle.path), content)

    def discard_shared(self, paths: Iterable[str]) -> None:
        """Remove shared files; files that are gone are passed over.  Raises StorageError."""
        for path in paths:
            self._files.remove(*self._place(path))

    def discard_all_shared(self) -> None:
        """Remove all shared files.  Raises StorageError."""
        self._files.remove_folder((self._job_id, _SHARED))

    def read_manifest(self, checkpoint_id: int) -> CheckpointManifest:
        """Read the manifest that ``write_manifest`` wrote.

        Raises:
            StorageError: it is missing, changed, or of another cluster, job or checkpoint; or a file of the checkpoint
                is missing or has another size; the message names the file.
        """
        return self._read_manifest(self._folder(checkpoint_id))

    def _check_identity(self, manifest: CheckpointManifest, folder: Folder) -> None:
        if manifest.job_id != self._job_id or manifest.is_savepoint or self._folder(manifest.checkpoint_id) != folder:
            what = "savepoint" if manifest.is_savepoint else "checkpoint"
            raise StorageError(
                f"checkpoint file {self._files.location(folder, MANIFEST)} is that of {what} {manifest.checkpoint_id} "
                f"of job {manifest.job_id}: put the original back, or restore another checkpoint"
            )

    def complete_checkpoints(self) -> list[int]:
        """List the ids of all checkpoints with a manifest, the oldest first.  Raises StorageError."""
        return [each for each in self._checkpoints() if self._is_complete(each)]

    def discard(self, checkpoint_id: int) -> None:
        """Remove a checkpoint, the manifest first; does nothing if there is none.  Raises StorageError."""
        folder = self._folder(checkpoint_id)
        # First: with its manifest a checkpoint looks complete, whatever files are gone.
        self._files.remove(folder, MANIFEST)
        self._files.remove_folder(folder)

    def discard_incomplete(self, before: int) -> None:
        """Remove the files of checkpoints with ids below ``before`` that never got a manifest.  Raises StorageError.

        A subtask may write after its checkpoint was aborted and discarded; when a later one is complete, all such
        writes have ended.
        """
        for each in self._checkpoints():
            if each < before and not self._is_complete(each):
                self.discard(each)

    def _checkpoints(self) -> list[int]:
        matches = map(_FOLDER.fullmatch, self._files.names((self._job_id,)))
        return sorted(int(match[1]) for match in matches if match is not None)

    def _is_complete(self, checkpoint_id: int) -> bool:
        return self._files.size(self._folder(checkpoint_id), MANIFEST) is not None

    def _folder(self, checkpoint_id: int) -> Folder:
        name = f"chk-{checkpoint_id}"
        if _FOLDER.fullmatch(name) is None:
            raise StorageError(f"{checkpoint_id!r} is no id of a checkpoint: ids count from 0")
        return (self._job_id, name)

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return folder and name of a handle's path.  Raises StorageError: it would lead out of the storage."""
        chk, _, name = path.partition("/")
        if chk == _SHARED and _SHARED_NAME.fullmatch(name) is not None:
            return (self._job_id, chk), name
        if _FOLDER.fullmatch(chk) is None or NAME.fullmatch(name) is None:
            raise StorageError(
                f"{path!r} is no file of a checkpoint of job {self._job_id}: the handle was changed; restore another "
                "checkpoint"
            )
        return (self._job_id, chk), name


_HERE: Final[Folder] = ()
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
        super().__init__(location, key)
        self.location = root_of(location)
        """Its directory, without a slash at the end."""

    def __repr__(self) -> str:
        return f"<SavepointStorage {self.location}>"

    @classmethod
    def create(cls, target: str, job_id: str, key: bytes = b"") -> "SavepointStorage":
        """Make a new savepoint below the directory ``target``.  Raises StorageError: nothing can be written there."""
        name = f"savepoint-{job_id[:_JOB_DIGITS]}-{secrets.token_hex(_RANDOM_BYTES)}"
        storage = cls(f"{target_root(target)}/{name}", key)
        storage._files.write(_HERE, _PROBE_NAME, b"probe")
        storage._files.remove(_HERE, _PROBE_NAME)
        return storage

    def read_manifest(self) -> CheckpointManifest:
        """Read the manifest that ``write_manifest`` wrote.

        Raises:
            StorageError: it is missing, changed, or of another cluster; or a file of the savepoint is missing or has
                another size; the message names the file.
        """
        if self._files.size(_HERE, MANIFEST) is None:
            raise StorageError(
                f"{self.location} names no checkpoint or savepoint: there is no file {MANIFEST} in it; name the "
                "directory <execution.checkpointing.dir>/<job id>/chk-<n> or <savepoint directory>/savepoint-...; if "
                "you did, is a mount missing?"
            )
        return self._read_manifest(_HERE)

    def discard(self) -> None:
        """Remove the files of a savepoint that has failed, the manifest first.  Raises StorageError."""
        # First, as in ``CheckpointStorage.discard``.
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

    def _check_identity(self, manifest: CheckpointManifest, folder: Folder) -> None:
        if not manifest.is_savepoint:
            raise StorageError(
                f"{self.location} is a checkpoint, which was moved: a checkpoint is restored only where it was "
                "written, as <directory>/<job id>/chk-<n>; put it back there, or restore a savepoint"
            )


def target_root(target: str) -> str:
    """Return the directory of ``target``, without a slash at the end.  Raises StorageError: no
    savepoint can be there.
    """
    try:
        check_checkpoint_url(target)
    except StorageError as error:
        raise StorageError(
            f"a savepoint cannot be written to {target!r}: name an absolute path, its file: URL, or a URL such as "
            f"s3://bucket/folder that the JobManager and all TaskManagers reach ({str(error).split(';')[0]})"
        ) from error
    return root_of(target)


_PLACE: Final = re.compile(r"(?P<root>.*)/(?P<job>[0-9a-f]{32})/chk-(?P<id>0|[1-9][0-9]{0,18})(/_metadata)?")


def place_of(path: str) -> CheckpointPlace | str:
    """Find out what a path names: the place of a checkpoint, or the directory of a savepoint.

    Raises StorageError: it can be neither.
    """
    try:
        root = root_of(path)
    except StorageError as error:
        raise StorageError(
            f"{path!r} names no checkpoint or savepoint; name it by the absolute path, or the URL, of its directory, "
            "which is <execution.checkpointing.dir>/<job id>/chk-<n> or <savepoint directory>/savepoint-..., or of the "
            "file _metadata in it"
        ) from error
    found = _PLACE.fullmatch(root)
    if found is None:
        return root.removesuffix("/_metadata") or "/"
    return CheckpointPlace(found["root"] or "/", found["job"], int(found["id"]))


def open_checkpoint(path: str, key: bytes) -> tuple[CheckpointPlace, StateFiles, CheckpointManifest]:
    """Open the checkpoint or savepoint at a path; return its place, its files, and its manifest, verified with ``key``.

    Raises StorageError: it names none; or a file of it is missing, changed, or of a cluster with another secret.
    """
    place = place_of(path)
    if isinstance(place, CheckpointPlace):
        storage = CheckpointStorage(place.directory, place.job_id, key)
        return place, storage, storage.read_manifest(place.checkpoint_id)
    savepoint = SavepointStorage(place, key)
    manifest = savepoint.read_manifest()
    return CheckpointPlace("", manifest.job_id, manifest.checkpoint_id, place), savepoint, manifest
