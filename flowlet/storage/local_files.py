"""``LocalFiles``: files below a directory of this machine, or of a mounted file system.

What a user reads when the operating system refuses a file of a checkpoint.

Side:       shared.  Blocking.
Invariants: a file appears with its whole content or not at all: it is written under a temporary name, fsynced and
            renamed, then its directory is fsynced.  No symbolic link below the root is followed: each folder is opened
            relative to the one above it.  Directories are made with mode 0700, files with 0600.
Source:     Flink ``LocalRecoverableFsDataOutputStream``, ``FsCheckpointStreamFactory``.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from flowlet.errors import StorageError
from flowlet.storage.storage_files import Folder

_ELSEWHERE: Final = "or set execution.checkpointing.dir to another directory"
# By errno: what happened, and what to do.
_SENTENCES: Final = {
    errno.ENOSPC: ("the disk is full", f"free space there, {_ELSEWHERE}"),
    errno.EDQUOT: ("the disk quota of this user is used up", f"free space there, ask for a larger quota, {_ELSEWHERE}"),
    errno.EFBIG: (
        "the file is larger than this process or the file system allows",
        f"raise the limit (ulimit -f), {_ELSEWHERE}",
    ),
    errno.EROFS: ("the file system is read-only", f"mount it for writing, {_ELSEWHERE}"),
    errno.EIO: ("the disk reports an I/O error", f"check the disk and the log of the kernel, {_ELSEWHERE}"),
    errno.ENOENT: ("the file or its directory does not exist", "was it removed, or is a mount missing? Put it back"),
    errno.ENOTDIR: (
        "a part of its path is a file or a symbolic link instead of a directory",
        f"remove that, {_ELSEWHERE}",
    ),
    errno.ELOOP: ("it is a symbolic link, which is not followed", "put the file itself in its place"),
    errno.EISDIR: ("it is a directory, which flowlet has not made", "remove it by hand"),
    errno.ENOTEMPTY: ("other processes still write into it", "try again when they have ended"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("this machine has too many open files", "raise the limit (sysctl fs.file-max)"),
    errno.ESTALE: ("the file server does not know it any more", "mount the file system again"),
    errno.ENAMETOOLONG: ("its path is too long", "set execution.checkpointing.dir to a shorter path"),
}


def failure_of(error: OSError, path: str, done: str, details: str = "") -> StorageError:
    """The error for a user.

    Args:
        error: from the operating system.
        path: of the file or directory.
        done: what could not be done with it: "written".
        details: more about what happened.
    """
    if error.errno in (errno.EACCES, errno.EPERM):
        cause, advice = f"user {os.geteuid()} has no permission", f"give it the permission (chown, chmod), {_ELSEWHERE}"
    else:
        cause, advice = _SENTENCES.get(error.errno or 0, (error.strerror or str(error), f"mend that, {_ELSEWHERE}"))
    return StorageError(f"checkpoint file {path} cannot be {done}: {cause}{details}; {advice}")


@contextmanager
def explained(path: str, done: str, details: Callable[[], str] = str) -> Iterator[None]:
    """Raise what the block gets from the operating system as a StorageError; ``details`` is called
    after the failure.
    """
    try:
        yield
    except OSError as error:
        raise failure_of(error, path, done, details() if error.errno == errno.ENOSPC else "") from error


_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a named pipe in the place of a file would block the reader for ever.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_ATTEMPTS: Final = 5  # at a folder that others remove, or fill, at the same time
# Some network file systems keep no order of a directory that fsync could settle.
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)


class LocalFiles:
    """Implements ``StorageFiles``.

    Threading: any thread; nothing stays open between calls, so a forked process may go on with it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._has_root = False  # Any thread; once true, the root is not made again: it may be a mount that is gone.

    def __repr__(self) -> str:
        return f"<LocalFiles {self._root}>"

    def location(self, folder: Folder, name: str = "") -> str:
        """The path."""
        return str(self._root.joinpath(*folder, name))

    def write(self, folder: Folder, name: str, content: bytes) -> None:
        """Write, fsync, rename, fsync the directory."""
        with explained(self.location(folder, name), "written", lambda: self._space(len(content))):
            if not self._has_root:
                _make_folder(self._root)
                self._has_root = True
            with self._made(folder) as parent:
                _write_file(parent, name, content)

    def settle(self, folder: Folder) -> None:
        """Fsync all folders above it: who made one may have ended before its own fsync."""
        with explained(self.location(folder), "synced"):
            for depth in range(len(folder)):
                with self._opened(folder[:depth]) as parent:
                    _sync_folder(parent)

    def read(self, folder: Folder, name: str, max_bytes: int) -> bytes:
        """The whole file; only a regular one is read."""
        path = self.location(folder, name)
        with explained(path, "read"), self._opened(folder) as parent, _open_to_read(parent, name) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(
                    f"checkpoint file {path} cannot be read: it is not a regular file; put the file itself in its place"
                )
            if status.st_size > max_bytes:
                raise StorageError(
                    f"checkpoint file {path} has {status.st_size} bytes instead of at most {max_bytes}: it was changed "
                    "after it was "
                    "written; put the original back, or restore another checkpoint"
                )
            return file.readall()

    def size(self, folder: Folder, name: str) -> int | None:
        """The size of a file."""
        with explained(self.location(folder, name), "looked up"):
            try:
                with self._opened(folder) as parent:
                    return os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
            except FileNotFoundError:
                return None

    def names(self, folder: Folder) -> list[str]:
        """The names in a folder."""
        with explained(self.location(folder), "listed"):
            try:
                with self._opened(folder) as parent:
                    return os.listdir(parent)
            except FileNotFoundError:
                return []

    def remove(self, folder: Folder, name: str) -> None:
        """Unlink, fsync the directory."""
        with (
            explained(self.location(folder, name), "removed"),
            suppress(FileNotFoundError),
            self._opened(folder) as parent,
        ):
            os.unlink(name, dir_fd=parent)
            _sync_folder(parent)

    def remove_folder(self, folder: Folder) -> None:
        """Unlink the files, then the folder; a file that appears meanwhile is unlinked, too."""
        for _ in range(_MAX_ATTEMPTS):
            for name in self.names(folder):
                with (
                    explained(self.location(folder, name), "removed"),
                    suppress(FileNotFoundError),
                    self._opened(folder) as parent,
                ):
                    os.unlink(name, dir_fd=parent)
            if self._try_remove_empty(folder):
                break
        else:
            raise failure_of(OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY)), self.location(folder), "removed")
        if len(folder) > 1:
            with suppress(StorageError):  # it may belong to another user, and takes no room
                self._try_remove_empty(folder[:-1])

    def _try_remove_empty(self, folder: Folder) -> bool:
        """Whether the folder is gone for good; no: it has files."""
        with (
            explained(self.location(folder), "removed"),
            suppress(FileNotFoundError),
            self._opened(folder[:-1]) as above,
        ):
            try:
                os.rmdir(folder[-1], dir_fd=above)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
            _sync_folder(above)
        return True

    def _space(self, wanted: int) -> str:
        """How much is free, for the message of a full disk."""
        try:
            free = shutil.disk_usage(self._root).free
        except OSError:
            return ""
        return (
            " (it takes no more files: df -i shows it)"
            if free > wanted
            else f" ({wanted} bytes are to be written, {free} are free)"
        )

    @contextmanager
    def _opened(self, folder: Folder) -> Iterator[int]:
        """The file descriptor of a folder.  Raises OSError."""
        fd = self._open(folder, is_made=False)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _made(self, folder: Folder) -> Iterator[int]:
        """The file descriptor of a folder, which is made if need be.  Raises OSError."""
        fd = self._make(folder)
        try:
            yield fd
        finally:
            os.close(fd)

    def _make(self, folder: Folder) -> int:
        for _ in range(_MAX_ATTEMPTS - 1):
            with suppress(FileNotFoundError):  # another process has removed an empty folder on the way
                return self._open(folder, is_made=True)
        return self._open(folder, is_made=True)

    def _open(self, folder: Folder, *, is_made: bool) -> int:
        fd = os.open(self._root, _FOLDER_FLAGS)  # the root itself may be a link: the user has chosen it
        try:
            for name in folder:
                if is_made:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=fd)
                        _sync_folder(fd)
                above, fd = fd, os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                os.close(above)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open_to_read(parent: int, name: str) -> FileIO:
    # With an opener, FileIO closes the descriptor of a directory, which it refuses.
    return FileIO(name, "rb", opener=lambda path, _: os.open(path, _READ_FLAGS, dir_fd=parent))


def _make_folder(path: Path) -> None:
    """Make a folder and those above it for good."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)
        parent = os.open(path.parent, _FOLDER_FLAGS)
        try:
            _sync_folder(parent)
        finally:
            os.close(parent)


def _write_file(parent: int, name: str, content: bytes) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}"
    fd = os.open(temporary, _WRITE_FLAGS, 0o600, dir_fd=parent)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)  # a network file system may report a failed write only here
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    _sync_folder(parent)


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
