"""``StateFiles``: states and manifests in files, wherever a checkpoint or savepoint has them.

``WorkingDirectory``: a directory of temporary files, which does not outlive its process for long.

Side:       shared.
Invariants: the owner holds the lock of the file beside the directory, from before the directory is made until after it
            is removed.  So a directory whose file can be locked was left by a process that was killed; the process that
            makes the next directory removes it.  A state whose handle was returned is on disk: written, fsynced,
            renamed, its directory fsynced.  A manifest is written last.  Bytes that do not have the length and the
            SHA-256 of their handle are never returned.
Source:     Flink ``RocksDBKeyedStateBackendBuilder.prepareDirectories``; Flink leaves what a killed process had.  Flink
            ``FsCheckpointStorageAccess``, ``FsCheckpointMetadataOutputStream``.
Absent:     timeouts: that of the checkpoint covers a slow file system.
"""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from flowlet.common.paths import check_checkpoint_url, directory_of, is_directory
from flowlet.errors import FlowletError, StorageError
from flowlet.messages.job_messages import StateHandle
from flowlet.storage.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    SourceEntry,
    StoredManifest,
    StoredSource,
    manifest_decoder,
)
from flowlet.storage.storage_files import Folder, LocalFiles, ObjectFiles, StorageFiles

_LOCK = ".lock"


class WorkingDirectory:
    """A directory of this process, made when it is first needed, and not after ``close``: nobody would remove it.

    Threading: any thread.  Life cycle: ``close`` removes it with all files.

    Args:
        parent: an absolute path; empty: the directory for temporary files (``TMPDIR``).
        purpose: part of its name; those of one purpose remove each other's leftovers.
        advice: what to do when it cannot be made.
    """

    def __init__(self, parent: str = "", *, purpose: str, advice: str) -> None:
        self._parent = parent
        self._purpose = purpose
        self._advice = advice
        self._lock = threading.Lock()  # A leaf.
        self._held: tuple[Path, int] | None = None  # its locked file.  Guarded by _lock.
        self._is_closed = False  # Guarded by _lock.

    def __repr__(self) -> str:
        made = "not made" if self._held is None else self._held[0].with_suffix("")
        return f"<WorkingDirectory for {self._purpose}: {'closed' if self._is_closed else made}>"

    def path(self) -> Path:
        """Return the directory, which is made if need be.

        Raises:
            FlowletError: it cannot be made, or was removed by ``close``; the message says where, and what to do.
        """
        with self._lock:
            if self._is_closed:
                raise FlowletError(
                    f"the directory for {self._purpose} was removed: its process, or its cluster, is ending"
                )
            if self._held is None:
                self._held = self._made()
            return self._held[0].with_suffix("")

    def _made(self) -> tuple[Path, int]:
        base = Path(self._parent or tempfile.gettempdir()) / f"flowlet-{self._purpose}-{os.geteuid()}"
        try:
            _make_base(base)
            remove_leftovers(base)
            lock_path, lock = _new_lock(base)
            lock_path.with_suffix("").mkdir(0o700)
        except OSError as error:
            raise FlowletError(
                f"no temporary files can be kept in {base}: {error.strerror or error}; make it writable, or "
                f"{self._advice}"
            ) from error
        return lock_path, lock

    def close(self) -> None:
        """Remove the directory if there is one; idempotent."""
        with self._lock:
            self._is_closed = True
            held = self._held
            self._held = None
        if held is None:
            return
        lock_path, lock = held
        shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
        # Else a thread still writes there, and the process that makes the next directory removes this one.
        if not lock_path.with_suffix("").exists():
            with suppress(OSError):
                lock_path.unlink()
        # Last: while it is locked, no other process takes the directory for a leftover.
        os.close(lock)


def remove_leftovers(base: Path) -> None:
    """Remove the directories of processes that have ended."""
    for lock_path in base.glob(f"*{_LOCK}"):
        with suppress(OSError):  # another process was first
            lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its owner would hold the lock: it has ended.
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink()
            finally:
                os.close(lock)


def _make_base(base: Path) -> None:
    with suppress(FileExistsError):
        base.mkdir(0o700, parents=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(0, "it is no directory that belongs to this user alone")


def _new_lock(base: Path) -> tuple[Path, int]:
    """Make and lock a file; another process may be quicker to lock it, and removes it then."""
    while True:
        path = base / f"{os.getpid()}-{secrets.token_hex(8)}{_LOCK}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        # Else another process was quicker: it has locked and removed the file, and a lock on that keeps nobody out.
        if path.exists():
            return path, lock
        os.close(lock)


INLINE_BYTES = 20 * 1024
"""A state up to this size stays in its handle."""
MANIFEST: Final = "_metadata"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""What a file of a checkpoint may be called."""


class StateFiles(ABC):
    """The files of checkpoints or of one savepoint.

    Threading: any thread.  The subtasks of a checkpoint may write from different processes.

    Args:
        url: where they lie: a directory or a URL.
        key: of the MAC of manifests: ``manifest_key`` of the cluster's secret.

    Raises:
        StorageError: the URL cannot be used; the message says why and what to do.
    """

    def __init__(self, url: str, key: bytes) -> None:
        check_checkpoint_url(url)
        self._files: StorageFiles = LocalFiles(directory_of(url)) if is_directory(url) else ObjectFiles(url)
        self._key = key

    @abstractmethod
    def _folder(self, checkpoint_id: int) -> Folder:
        """Return the folder of a checkpoint's files."""

    @abstractmethod
    def _place(self, path: str) -> tuple[Folder, str]:
        """Return folder and name of a handle's path.  Raises StorageError: it would lead out of the storage."""

    @abstractmethod
    def _check_identity(self, manifest: CheckpointManifest, folder: Folder) -> None:
        """Check the manifest of a folder.  Raises StorageError: it does not belong into this folder."""

    def write_state(self, checkpoint_id: int, name: str, content: bytes) -> StateHandle:
        """Keep a subtask's state; ``name`` is unique within the checkpoint.  Raises StorageError."""
        digest = hashlib.sha256(content).digest()
        if len(content) <= INLINE_BYTES:
            return StateHandle(len(content), digest, inline=content)
        folder = self._folder(checkpoint_id)
        if NAME.fullmatch(name) is None:
            raise StorageError(
                f"{name!r} cannot be the name of a checkpoint's file: use letters, digits and . _ -, at most 200"
            )
        self._files.write(folder, name, content)
        return StateHandle(len(content), digest, path="/".join((*folder[1:], name)))

    def read_state(self, handle: StateHandle) -> bytes:
        """Read the content of a state.  Raises StorageError: it is missing or changed; the message names the file."""
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

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint.  Raises StorageError: it cannot be written, or a file of it is gone."""
        sources = [
            StoredSource(each.vertex_id, self.write_state(manifest.checkpoint_id, f"source-{index}", each.state))
            for index, each in enumerate(manifest.sources)
        ]
        stored = StoredManifest(msgspec.structs.replace(manifest, sources=[]), sources)
        # No manifest must name a file that is gone: the job would count on a checkpoint that it cannot restore.
        self._check_files(stored)
        content = MANIFEST_FILE.encode(stored, self._key)
        folder = self._folder(manifest.checkpoint_id)
        if len(content) > MAX_MANIFEST_BYTES:
            place = self._files.location(folder, MANIFEST)
            raise StorageError(
                f"checkpoint file {place} would have {len(content)} bytes, the most is {MAX_MANIFEST_BYTES}; use fewer "
                "subtasks"
            )
        # The folders of its files must outlast a loss of power before the manifest names them.
        for each in {self._place(handle.path)[0] for handle in _handles(stored) if handle.path is not None}:
            self._files.settle(each)
        self._files.write(folder, MANIFEST, content)

    def _read_manifest(self, folder: Folder) -> CheckpointManifest:
        place = self._files.location(folder, MANIFEST)
        if not self._key:
            raise StorageError(
                f"checkpoint file {place} cannot be verified without the cluster's secret: give the key of manifests"
            )
        data = self._files.read(folder, MANIFEST, MAX_MANIFEST_BYTES)
        stored = MANIFEST_FILE.decode(data, manifest_decoder, self._key, place)
        self._check_identity(stored.manifest, folder)
        self._check_files(stored)
        sources = [SourceEntry(each.vertex_id, self.read_state(each.state)) for each in stored.sources]
        return msgspec.structs.replace(stored.manifest, sources=sources)

    def _check_files(self, stored: StoredManifest) -> None:
        """Check that all files of a manifest are there.  Raises StorageError: a file is missing or has another size."""
        for handle in _handles(stored):
            if handle.path is not None:
                folder, name = self._place(handle.path)
                found = self._files.size(folder, name)
                if found != handle.num_bytes:
                    how = "is missing" if found is None else f"has {found} bytes instead of {handle.num_bytes}"
                    place = self._files.location(folder, name)
                    raise StorageError(
                        f"checkpoint file {place} {how}: put the original back, or restore another checkpoint"
                    )


def _handles(stored: StoredManifest) -> Iterator[StateHandle]:
    for subtask in stored.manifest.subtasks:
        for each in (subtask.state, subtask.channels, *subtask.shared):
            if each is not None:
                yield each
    for source in stored.sources:
        yield source.state
