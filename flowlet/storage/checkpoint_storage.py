"""``CheckpointStorage``: the files of one job's checkpoints.

Side:       shared.  Blocking: called on threads of a pool, never on an event loop or a task thread.
Invariants: a state that was returned is on disk: written, fsynced, renamed, its directory fsynced.  A checkpoint exists when its manifest
            does, which is written last.  Nothing is returned that does not have the length and the SHA-256 of its handle.
            No name from a handle or a manifest leads out of ``<url>/<job id>``.
Layout:     ``<url>/<job id>/chk-<n>/<name>``, ``<url>/<job id>/shared/<sha256>`` and ``<url>/<job id>/chk-<n>/_metadata``.
Source:     Flink ``FsCheckpointStorageAccess``, ``FsCheckpointMetadataOutputStream``.
Absent:     timeouts: that of the checkpoint covers a slow file system.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from flowlet.common.checkpoint_url import check_checkpoint_url, directory_of, is_directory
from flowlet.errors import StorageError
from flowlet.rpc.control_messages import StateHandle
from flowlet.storage.local_files import LocalFiles
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from flowlet.storage.manifest_codec import MAX_MANIFEST_BYTES, StoredManifest, StoredSource, decode_manifest, encode_manifest
from flowlet.storage.object_files import ObjectFiles
from flowlet.storage.storage_files import Folder, StorageFiles

INLINE_BYTES = 20 * 1024
"""A state up to this size stays in its handle."""
_MANIFEST: Final = "_metadata"
_PROBE: Final = 0  # the ids of checkpoints count from 1
_PROBE_NAME: Final = "probe"
_JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHARED: Final = "shared"
_SHARED_NAME: Final = re.compile(r"[0-9a-f]{64}")
_FOLDER: Final = re.compile(r"chk-(0|[1-9][0-9]{0,18})")


class CheckpointStorage:
    """The storage of one job.

    Threading: any thread.  The subtasks of a checkpoint may write from different processes.

    Args:
        url: the absolute path of a directory, or its ``file:`` URL; it is made when the first file is written.  Other URLs are fsspec's.
        job_id: 32 hex digits.
        key: of the MAC of manifests: ``manifest_key`` of the cluster's secret.

    Raises:
        StorageError: the URL cannot be used; the message names it and what to do.
    """

    def __init__(self, url: str, job_id: str, key: bytes = b"") -> None:
        if _JOB_ID.fullmatch(job_id) is None:
            raise StorageError(f"{job_id!r} is no id of a job: it must have 32 hex digits")
        check_checkpoint_url(url)
        self._files: StorageFiles = LocalFiles(directory_of(url)) if is_directory(url) else ObjectFiles(url)
        self._job_id = job_id
        self._key = key

    def __repr__(self) -> str:
        return f"<CheckpointStorage {self._files.location((self._job_id,))}>"

    def check_writable(self) -> None:
        """Write a file below the URL and remove it.  Raises StorageError: a checkpoint could not be written."""
        folder = self._folder(_PROBE)
        self._files.write(folder, _PROBE_NAME, b"probe")
        self._files.remove_folder(folder)

    def write_state(self, checkpoint_id: int, name: str, content: bytes) -> StateHandle:
        """Keep a subtask's state; ``name`` is unique within the checkpoint.  Raises StorageError."""
        digest = hashlib.sha256(content).digest()
        if len(content) <= INLINE_BYTES:
            return StateHandle(len(content), digest, inline=content)
        folder = self._folder(checkpoint_id)
        if _NAME.fullmatch(name) is None:
            raise StorageError(f"{name!r} cannot be the name of a checkpoint's file: use letters, digits and . _ -, at most 200")
        self._files.write(folder, name, content)
        return StateHandle(len(content), digest, path=f"{folder[-1]}/{name}")

    def read_state(self, handle: StateHandle) -> bytes:
        """The content of a state.  Raises StorageError: it is missing or changed; the message names the file."""
        if handle.path is None:
            what, content = "a state inside a manifest", handle.inline
        else:
            folder, name = self._place(handle.path)
            what = f"checkpoint file {self._files.location(folder, name)}"
            content = self._files.read(folder, name, handle.num_bytes)
        if len(content) != handle.num_bytes or not hmac.compare_digest(hashlib.sha256(content).digest(), handle.sha256):
            how = f"is cut off: it has {len(content)} of {handle.num_bytes} bytes"
            how = how if len(content) < handle.num_bytes else "was changed after it was written: its SHA-256 is wrong"
            raise StorageError(f"{what} {how}; put the original back, or restore another checkpoint")
        return content

    def write_shared(self, handle: StateHandle, content: bytes) -> None:
        """Keep a file that several checkpoints use, where its handle says.  Raises StorageError."""
        assert handle.path is not None, "a shared file is never in its handle"
        self._files.write(*self._place(handle.path), content)

    def discard_shared(self, paths: Iterable[str]) -> None:
        """Remove shared files; those that are gone are passed over.  Raises StorageError."""
        for path in paths:
            self._files.remove(*self._place(path))

    def discard_all_shared(self) -> None:
        """Remove all shared files.  Raises StorageError."""
        self._files.remove_folder((self._job_id, _SHARED))

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint.  Raises StorageError: it cannot be written, or a file of it is gone."""
        sources = [
            StoredSource(each.vertex_id, self.write_state(manifest.checkpoint_id, f"source-{index}", each.state))
            for index, each in enumerate(manifest.sources)
        ]
        stored = StoredManifest(msgspec.structs.replace(manifest, sources=[]), sources)
        self._check_files(stored)
        content = encode_manifest(stored, self._key)
        folder = self._folder(manifest.checkpoint_id)
        if len(content) > MAX_MANIFEST_BYTES:
            place = self._files.location(folder, _MANIFEST)
            raise StorageError(
                f"checkpoint file {place} would have {len(content)} bytes, the most is {MAX_MANIFEST_BYTES}; use fewer subtasks"
            )
        if any(each.path is not None for each in _handles(stored)):
            self._files.settle(folder)
        if any(each.shared for each in stored.manifest.subtasks):
            self._files.settle((self._job_id, _SHARED))
        self._files.write(folder, _MANIFEST, content)

    def read_manifest(self, checkpoint_id: int) -> CheckpointManifest:
        """What ``write_manifest`` wrote.

        Raises:
            StorageError: it is missing, changed, or of another cluster, job or checkpoint; or a file of the checkpoint is missing or has
                another size; the message names the file.
        """
        folder = self._folder(checkpoint_id)
        place = self._files.location(folder, _MANIFEST)
        if not self._key:
            raise StorageError(f"checkpoint file {place} cannot be verified without the cluster's secret: give the key of manifests")
        stored = decode_manifest(self._files.read(folder, _MANIFEST, MAX_MANIFEST_BYTES), self._key, place)
        manifest = stored.manifest
        if (manifest.job_id, manifest.checkpoint_id) != (self._job_id, checkpoint_id):
            raise StorageError(
                f"checkpoint file {place} is that of checkpoint {manifest.checkpoint_id} of job {manifest.job_id}: put the original back, "
                "or restore another checkpoint"
            )
        self._check_files(stored)
        sources = [SourceEntry(each.vertex_id, self.read_state(each.state)) for each in stored.sources]
        return msgspec.structs.replace(manifest, sources=sources)

    def complete_checkpoints(self) -> list[int]:
        """The ids of all checkpoints with a manifest, the oldest first.  Raises StorageError."""
        return [each for each in self._checkpoints() if self._is_complete(each)]

    def discard(self, checkpoint_id: int) -> None:
        """Remove a checkpoint, the manifest first; none: does nothing.  Raises StorageError."""
        folder = self._folder(checkpoint_id)
        self._files.remove(folder, _MANIFEST)
        self._files.remove_folder(folder)

    def discard_incomplete(self, before: int) -> None:
        """Remove what checkpoints with ids below ``before`` have left that never got a manifest.  Raises StorageError.

        A subtask may write after its checkpoint was aborted and discarded; when a later one is complete, all such writes have ended.
        """
        for each in self._checkpoints():
            if each < before and not self._is_complete(each):
                self.discard(each)

    def _checkpoints(self) -> list[int]:
        matches = map(_FOLDER.fullmatch, self._files.names((self._job_id,)))
        return sorted(int(match[1]) for match in matches if match is not None)

    def _is_complete(self, checkpoint_id: int) -> bool:
        return self._files.size(self._folder(checkpoint_id), _MANIFEST) is not None

    def _folder(self, checkpoint_id: int) -> Folder:
        name = f"chk-{checkpoint_id}"
        if _FOLDER.fullmatch(name) is None:
            raise StorageError(f"{checkpoint_id!r} is no id of a checkpoint: ids count from 0")
        return (self._job_id, name)

    def _place(self, path: str) -> tuple[Folder, str]:
        """Folder and name of a handle's path.  Raises StorageError: it would lead out of the storage."""
        chk, _, name = path.partition("/")
        if chk == _SHARED and _SHARED_NAME.fullmatch(name) is not None:
            return (self._job_id, chk), name
        if _FOLDER.fullmatch(chk) is None or _NAME.fullmatch(name) is None:
            raise StorageError(
                f"{path!r} is no file of a checkpoint of job {self._job_id}: the handle was changed; restore another checkpoint"
            )
        return (self._job_id, chk), name

    def _check_files(self, stored: StoredManifest) -> None:
        """Raises StorageError: a file is missing or has another size."""
        for handle in _handles(stored):
            if handle.path is not None:
                folder, name = self._place(handle.path)
                found = self._files.size(folder, name)
                if found != handle.num_bytes:
                    how = "is missing" if found is None else f"has {found} bytes instead of {handle.num_bytes}"
                    place = self._files.location(folder, name)
                    raise StorageError(f"checkpoint file {place} {how}: put the original back, or restore another checkpoint")


def _handles(stored: StoredManifest) -> Iterator[StateHandle]:
    for subtask in stored.manifest.subtasks:
        for each in (subtask.state, subtask.channels, *subtask.shared):
            if each is not None:
                yield each
    for source in stored.sources:
        yield source.state
