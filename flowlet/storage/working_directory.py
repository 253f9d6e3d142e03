"""``WorkingDirectory``: a directory of temporary files, which does not outlive its process for long.

Side:       shared.
Invariants: the owner holds the lock of the file beside the directory, from before the directory is made until after it
            is removed.  So a directory whose file can be locked was left by a process that was killed; whoever makes
            the next directory removes it.
Source:     Flink ``RocksDBKeyedStateBackendBuilder.prepareDirectories``; Flink leaves what a killed process had.
"""

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from flowlet.errors import FlowletError

_LOCK = ".lock"


class WorkingDirectory:
    """A directory of this process.

    Threading: any one thread.  Life cycle: made at once; ``close`` removes it with all files.

    Args:
        parent: an absolute path; empty: the directory for temporary files (``TMPDIR``).
        purpose: part of its name; those of one purpose remove each other's leftovers.
        advice: what to do when it cannot be made.

    Raises:
        FlowletError: it cannot be made; the message says where, and what to do.
    """

    def __init__(self, parent: str = "", *, purpose: str, advice: str) -> None:
        base = Path(parent or tempfile.gettempdir()) / f"flowlet-{purpose}-{os.geteuid()}"
        try:
            _make_base(base)
            remove_leftovers(base)
            self._lock_path, self._lock = _new_lock(base)
            self.path = self._lock_path.with_suffix("")
            self.path.mkdir(0o700)
        except OSError as error:
            raise FlowletError(
                f"no temporary files can be kept in {base}: {error.strerror or error}; make it writable, or {advice}"
            ) from error

    def __repr__(self) -> str:
        return f"<WorkingDirectory {self.path}>"

    def close(self) -> None:
        """Remove the directory; idempotent."""
        if self._lock == -1:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        # Else a thread still writes there, and whoever makes the next directory removes this one.
        if not self.path.exists():
            with suppress(OSError):
                self._lock_path.unlink()
        os.close(self._lock)
        self._lock = -1


class LazyWorkingDirectory:
    """Makes a ``WorkingDirectory`` when one is first needed, and none after ``close``, because nothing would remove it.

    Threading: any thread.

    Args:
        purpose: as of ``WorkingDirectory``, like ``advice``.
        advice: what to do when it cannot be made.
    """

    def __init__(self, *, purpose: str, advice: str) -> None:
        self._purpose = purpose
        self._advice = advice
        self._lock = threading.Lock()  # A leaf.
        self._directory: WorkingDirectory | None = None  # Guarded by _lock.
        self._is_closed = False  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<LazyWorkingDirectory {'closed' if self._is_closed else self._directory!r}>"

    def path(self) -> Path:
        """The directory.  Raises FlowletError: it cannot be made, or was removed by ``close``."""
        with self._lock:
            if self._is_closed:
                raise FlowletError(
                    f"the directory for {self._purpose} was removed: its process, or its cluster, is ending"
                )
            if self._directory is None:
                self._directory = WorkingDirectory(purpose=self._purpose, advice=self._advice)
            return self._directory.path

    def close(self) -> None:
        """Remove the directory if there is one; idempotent."""
        with self._lock:
            self._is_closed = True
            directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()


def remove_leftovers(base: Path) -> None:
    """Remove the directories of processes that have ended."""
    for lock_path in base.glob(f"*{_LOCK}"):
        with suppress(OSError):  # another process was first
            lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """A file that this process has made and locked; another process may be quicker to lock it, and removes it then."""
    while True:
        path = base / f"{os.getpid()}-{secrets.token_hex(8)}{_LOCK}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if path.exists():
            return path, lock
        os.close(lock)
