"""``StorageFiles``: files in folders, whole or absent, of checkpoints, of the job store, and parts of shipped files.

``LocalFiles``: files below a directory of this machine, or of a mounted file system.  ``ObjectFiles``: files below a
URL of fsspec: an object store, or a file system of the network.  And what a user reads when either refuses a file.

Side:       shared.
Invariants: a file appears with its whole content or not at all.  ``LocalFiles`` writes it under a temporary name,
            fsyncs and renames it, then fsyncs its directory.  No symbolic link below the root is followed: each folder
            is opened relative to the one above it.  Directories are made with mode 0700, files with 0600.  An object
            store keeps an object when it has all of it, so a file is written under its own name; elsewhere behind
            fsspec it is written under a temporary name and moved.  Listings are never read from a cache.
Rules:      the clients of stores have exceptions of their own; they are told apart by the names of their classes, and
            by what fsspec's implementations make of the answers, so that no client needs to be installed.
Source:     Flink ``FileSystem``, as far as checkpoints need it; ``LocalRecoverableFsDataOutputStream``,
            ``FsCheckpointStreamFactory``, ``S3RecoverableFsDataOutputStream``.
Absent:     fsync of object stores: fsspec has none; ``LocalFiles`` syncs local files.  Timeouts: those of the store's
            client, and that of the checkpoint.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final, TypeAlias

from flowlet.errors import StorageError
from netstack.late import by_name, dataclass

Folder: TypeAlias = tuple[str, ...]
"""The names of a folder and of those above it, below the root; each was checked."""


@dataclass(frozen=True, slots=True)
class FileWords:
    """The words in which an error tells a user of a file that cannot be used.

    Args:
        kind: what it is.
        elsewhere: how to keep such files elsewhere.
        again: what to do without it.
    """

    kind: str = "checkpoint file"
    elsewhere: str = "set execution.checkpointing.dir to another directory"
    again: str = "restore another checkpoint"


_OF_CHECKPOINTS: Final = FileWords()
# By errno: what happened, and what to do.
_SENTENCES: Final = {
    errno.ENOSPC: ("the disk is full", "free space there, or {elsewhere}"),
    errno.EDQUOT: (
        "the disk quota of this user is used up",
        "free space there, ask for a larger quota, or {elsewhere}",
    ),
    errno.EFBIG: (
        "the file is larger than this process or the file system allows",
        "raise the limit (ulimit -f), or {elsewhere}",
    ),
    errno.EROFS: ("the file system is read-only", "mount it for writing, or {elsewhere}"),
    errno.EIO: ("the disk reports an I/O error", "check the disk and the log of the kernel, or {elsewhere}"),
    errno.ENOENT: ("the file or its directory does not exist", "was it removed, or is a mount missing? Put it back"),
    errno.ENOTDIR: (
        "a part of its path is a file or a symbolic link instead of a directory",
        "remove that, or {elsewhere}",
    ),
    errno.ELOOP: ("it is a symbolic link, which is not followed", "put the file itself in its place"),
    errno.EISDIR: ("it is a directory, which flowlet has not made", "remove it by hand"),
    errno.ENOTEMPTY: ("other processes still write into it", "try again when they have ended"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("this machine has too many open files", "raise the limit (sysctl fs.file-max)"),
    errno.ESTALE: ("the file server does not know it any more", "mount the file system again"),
    errno.ENAMETOOLONG: ("its path is too long", "{elsewhere} with a shorter path"),
}


def explanation(error: OSError, elsewhere: str, own: Mapping[int, tuple[str, str]]) -> tuple[str, str]:
    """Explain an error: return what happened, and what to do.

    Args:
        error: from the operating system.
        elsewhere: how to keep such files elsewhere.
        own: sentences that fit such files better, by errno.
    """
    if error.errno in (errno.EACCES, errno.EPERM):
        cause = f"user {os.geteuid()} has no permission"
        advice = "give it the permission (chown, chmod), or {elsewhere}"
    else:
        unknown = (error.strerror or str(error), "mend that, or {elsewhere}")
        cause, advice = {**_SENTENCES, **own}.get(error.errno or 0, unknown)
    return cause, advice.format(elsewhere=elsewhere)


def failure_of(
    error: OSError, path: str, done: str, details: str = "", words: FileWords = _OF_CHECKPOINTS
) -> StorageError:
    """Make the error for a user.

    Args:
        error: from the operating system.
        path: of the file or directory.
        done: what could not be done with it: "written".
        details: more about what happened.
        words: of the file.
    """
    cause, advice = explanation(error, words.elsewhere, {})
    return StorageError(f"{words.kind} {path} cannot be {done}: {cause}{details}; {advice}")


_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a named pipe in the place of a file would block the reader for ever.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_ATTEMPTS: Final = 5  # at a folder that others remove, or fill, meanwhile
# Some network file systems keep no order of a directory that fsync could settle.
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)


class LocalFiles:
    """Files in folders below a directory.  Every method raises StorageError, which names the file.

    Threading: any thread, any number of processes; nothing stays open between calls, so a forked process may go on
    with it.
    """

    def __init__(self, root: Path, words: FileWords = _OF_CHECKPOINTS) -> None:
        self._root = root
        self._words = words
        self._has_root = False  # Any thread; once true, the root is not made again: it may be a mount that is gone.

    def __repr__(self) -> str:
        return f"<LocalFiles {self._root}>"

    def location(self, folder: Folder, name: str = "") -> str:
        """Return the path."""
        return str(self._root.joinpath(*folder, name))

    def write(self, folder: Folder, name: str, content: bytes) -> None:
        """Keep a file: write, fsync, rename, fsync the directory.  When this returns, the whole file survives a loss of
        power; until then no file has its name.
        """
        with self._explained(folder, name, "written", lambda: self._space(len(content))):
            if not self._has_root:
                _make_folder(self._root)
                self._has_root = True
            with self._opened(folder, is_made=True) as parent:
                _write_file(parent, name, content)

    def settle(self, folder: Folder) -> None:
        """Let the folder survive a loss of power: fsync all folders above it, because the process that made one may
        have ended before its own fsync.
        """
        with self._explained(folder, "", "synced"):
            for depth in range(len(folder)):
                with self._opened(folder[:depth]) as parent:
                    _sync_folder(parent)

    def read(self, folder: Folder, name: str, max_bytes: int) -> bytes:
        """Read the whole file; only a regular one is read.  Raises StorageError: there is none, or it has more than
        ``max_bytes`` bytes.
        """
        with (
            self._explained(folder, name, "read"),
            self._opened(folder) as parent,
            # With an opener, FileIO closes the descriptor of a directory, which it refuses.
            FileIO(name, "rb", opener=lambda path, _: os.open(path, _READ_FLAGS, dir_fd=parent)) as file,
        ):
            status = os.fstat(file.fileno())
            what = f"{self._words.kind} {self.location(folder, name)}"
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{what} cannot be read: it is not a regular file; put the file itself in its place")
            # Before it is read: a file that was changed may have any size.
            _check_size(what, status.st_size, max_bytes, self._words)
            return file.readall()

    def size(self, folder: Folder, name: str) -> int | None:
        """Return the size of a file in bytes; None: there is no file."""
        with self._explained(folder, name, "looked up"), suppress(FileNotFoundError), self._opened(folder) as parent:
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
        return None

    def names(self, folder: Folder) -> list[str]:
        """List the names in a folder; none: the folder does not exist."""
        with self._explained(folder, "", "listed"), suppress(FileNotFoundError), self._opened(folder) as parent:
            return os.listdir(parent)
        return []

    def remove(self, folder: Folder, name: str) -> None:
        """Remove a file for good, if there is one: unlink, fsync the directory."""
        with self._explained(folder, name, "removed"), suppress(FileNotFoundError), self._opened(folder) as parent:
            os.unlink(name, dir_fd=parent)
            _sync_folder(parent)

    def remove_folder(self, folder: Folder) -> None:
        """Remove a folder with its files, if there is one, and the folder above if nothing else is in it; a file that
        appears meanwhile is unlinked, too.
        """
        for _ in range(_MAX_ATTEMPTS):
            for name in self.names(folder):
                with (
                    self._explained(folder, name, "removed"),
                    suppress(FileNotFoundError),
                    self._opened(folder) as parent,
                ):
                    os.unlink(name, dir_fd=parent)
            if self._try_remove_empty(folder):
                break
        else:
            with self._explained(folder, "", "removed"):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        if len(folder) > 1:
            with suppress(StorageError):  # it may belong to another user, and takes no room
                self._try_remove_empty(folder[:-1])

    def _try_remove_empty(self, folder: Folder) -> bool:
        """Remove the folder for good if it is empty; False: it has files."""
        with self._explained(folder, "", "removed"), suppress(FileNotFoundError), self._opened(folder[:-1]) as above:
            try:
                os.rmdir(folder[-1], dir_fd=above)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
            _sync_folder(above)
        return True

    @contextmanager
    def _explained(self, folder: Folder, name: str, done: str, details: Callable[[], str] = str) -> Iterator[None]:
        """Raise errors of the operating system in the block as a StorageError; ``details`` is called
        after the failure.
        """
        try:
            yield
        except OSError as error:
            more = details() if error.errno == errno.ENOSPC else ""
            raise failure_of(error, self.location(folder, name), done, more, self._words) from error

    def _space(self, wanted: int) -> str:
        """Write how much space is free, for the message of a full disk."""
        try:
            free = shutil.disk_usage(self._root).free
        except OSError:
            return ""
        if free > wanted:
            return " (it takes no more files: df -i shows it)"
        return f" ({wanted} bytes are to be written, {free} are free)"

    @contextmanager
    def _opened(self, folder: Folder, *, is_made: bool = False) -> Iterator[int]:
        """Open a folder and give its file descriptor; ``is_made``: it is made if need be.  Raises OSError."""
        fd = self._make(folder) if is_made else self._open(folder, is_made=False)
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


def _check_size(what: str, size: int, max_bytes: int, words: FileWords) -> None:
    if size > max_bytes:
        raise StorageError(
            f"{what} has {size} bytes instead of at most {max_bytes}: it was changed after it was written; put the "
            f"original back, or {words.again}"
        )


def _make_folder(path: Path) -> None:
    """Make a folder and those above it for good."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)
        sync_folder_at(path.parent)


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
        # Behind the fsync: a loss of power must not keep the name without the content.
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


def sync_folder_at(path: str | Path) -> None:
    """Let the names in a folder survive a loss of power.  Raises OSError."""
    fd = os.open(path, _FOLDER_FLAGS)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


_ANOTHER_PLACE: Final = "or set execution.checkpointing.dir to another place"
# By scheme: the package with fsspec's implementation.
_PACKAGES: Final = by_name(
    {
        "s3fs": "s3 s3a",
        "gcsfs": "gs gcs",
        "adlfs": "abfs abfss az",
        "ossfs": "oss",
        "pyarrow": "hdfs",
        "paramiko": "sftp ssh",
        "smbprotocol": "smb",
    }
)
# Errors of clients of stores, by their names: none of the clients is imported here.
_NO_CREDENTIALS: Final = by_name(
    {"": "NoCredentialsError PartialCredentialsError DefaultCredentialsError ClientAuthenticationError"}
)
_NOT_REACHED: Final = by_name(
    {
        "": "EndpointConnectionError ConnectionClosedError ConnectTimeoutError ReadTimeoutError ClientConnectorError "
        "HTTPClientError ServiceRequestError FSTimeoutError ConnectionError ConnectionRefusedError TimeoutError"
    }
)
_MAX_CAUSE_CHARS: Final = 300


def cannot_open(url: str, scheme: str, error: Exception) -> StorageError:
    """Make the error that the client of a store could not be made."""
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme)
        advice = f"pip install {package}" if package else error
        why = f"{package or 'its package'} is not installed: install it for every process of the cluster ({advice})"
    elif isinstance(error, ValueError) and "not known" in str(error):
        why = f"fsspec knows no storage with the scheme {scheme!r}; {_ANOTHER_PLACE.removeprefix('or ')}"
    else:
        why = f"{_described(error)}; mend that, {_ANOTHER_PLACE}"
    return StorageError(f"checkpoints cannot be kept in {url!r}: {why}")


def object_failure(error: Exception, url: str, done: str) -> StorageError:
    """Make the error for a user.

    Args:
        error: from fsspec, or from the client below it.
        url: of the file.
        done: what could not be done with it: "written".
    """
    names = {kind.__name__ for each in (error, error.__cause__) if each is not None for kind in type(each).__mro__}
    if names.intersection(_NO_CREDENTIALS):
        cause = (
            "this process has no credentials for the store; put them into its environment or the configuration of "
            "the store's client"
        )
    elif "bucket does not exist" in str(error) or "NoSuchBucket" in str(error):
        cause = f"there is no such bucket; make it, {_ANOTHER_PLACE}"
    elif isinstance(error, FileNotFoundError) and done == "read":
        return StorageError(f"checkpoint file {url} is missing: put the original back, or restore another checkpoint")
    elif isinstance(error, PermissionError):
        cause = (
            f"the store gives these credentials no permission ({_described(error)}); give it to them, {_ANOTHER_PLACE}"
        )
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"the store is full; free space there, {_ANOTHER_PLACE}"
    elif names.intersection(_NOT_REACHED):
        cause = f"the store does not answer ({_described(error)}); is it up, and can this machine reach it?"
    else:
        cause = f"{_described(error)}; mend that, {_ANOTHER_PLACE}"
    return StorageError(f"checkpoint file {url} cannot be {done}: {cause}")


def _described(error: Exception) -> str:
    """Write the kind of an error and its text."""
    return f"{type(error).__name__}: {error}"[:_MAX_CAUSE_CHARS]


# Their clients put a file as one object, which readers see when the store has all of it; all of them know
# ``use_listings_cache``.
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})


class ObjectFiles:
    """Files below a URL of fsspec; the counterpart of ``LocalFiles``.

    Threading: any thread; fsspec runs the requests of all threads on one loop of its own.  Not after a fork.

    Raises:
        StorageError: the package for this kind of URL is not installed, or refuses the URL; the message names both.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        scheme = url.partition(":")[0].lower()
        self._is_object_store = scheme in _OBJECT_STORES
        try:
            # 0.1 s, and the client of a store takes longer: a job with a local directory does not pay for it.
            import fsspec

            options = {"use_listings_cache": False} if self._is_object_store else {}
            # Kept per process by fsspec: one client and its connections for all tasks.
            self._fs, self._root = fsspec.url_to_fs(self._url, **options)
        except Exception as error:
            raise cannot_open(url, scheme, error) from error

    def __repr__(self) -> str:
        return f"<ObjectFiles {self._url}>"

    def location(self, folder: Folder, name: str = "") -> str:
        """Return the URL."""
        return "/".join((self._url, *folder, name)).rstrip("/")

    def write(self, folder: Folder, name: str, content: bytes) -> None:
        """Write the object; where the URL is of no object store, write under a temporary name, then move."""
        with self._explained(folder, name, "written"):
            if self._is_object_store:
                self._fs.pipe_file(self._path(folder, name), content)
                return
            self._fs.makedirs(self._path(folder), exist_ok=True)
            temporary = self._path(folder, f".{name}.{secrets.token_hex(8)}")
            try:
                self._fs.pipe_file(temporary, content)
                self._fs.mv(temporary, self._path(folder, name))
            except BaseException:
                with suppress(Exception):  # the first failure is the one to report
                    self._fs.rm_file(temporary)
                raise

    def settle(self, folder: Folder) -> None:
        """Do nothing: a store that has acknowledged an object keeps it."""

    def read(self, folder: Folder, name: str, max_bytes: int) -> bytes:
        """Read the whole object."""
        with self._explained(folder, name, "read"):
            size = self._size(folder, name)
            if size is None:
                raise FileNotFoundError(name)
            _check_size(f"checkpoint file {self.location(folder, name)}", size, max_bytes, _OF_CHECKPOINTS)
            content = self._fs.cat_file(self._path(folder, name))
            assert isinstance(content, bytes), "fsspec's contract"
            return content

    def size(self, folder: Folder, name: str) -> int | None:
        """Return the size of an object."""
        with self._explained(folder, name, "looked up"):
            return self._size(folder, name)

    def names(self, folder: Folder) -> list[str]:
        """List the names below a prefix."""
        with self._explained(folder, "", "listed"):
            self._fs.invalidate_cache()
            try:
                found: list[str] = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return [name for name in (each.rstrip("/").rpartition("/")[2] for each in found) if name]

    def remove(self, folder: Folder, name: str) -> None:
        """Delete the object."""
        with self._explained(folder, name, "removed"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))

    def remove_folder(self, folder: Folder) -> None:
        """Delete the objects; a store has no folders, other file systems lose them, too."""
        for name in self.names(folder):
            self.remove(folder, name)
        if not self._is_object_store:
            with suppress(OSError):  # others write into it, or into the one above
                self._fs.rmdir(self._path(folder))
                if len(folder) > 1:
                    self._fs.rmdir(self._path(folder[:-1]))

    def _path(self, folder: Folder, name: str = "") -> str:
        return "/".join((self._root.rstrip("/"), *folder, name)).rstrip("/")

    def _size(self, folder: Folder, name: str) -> int | None:
        self._fs.invalidate_cache()
        try:
            found: dict[str, Any] = self._fs.info(self._path(folder, name))
        except FileNotFoundError:
            return None
        return None if found["type"] == "directory" else int(found["size"])

    @contextmanager
    def _explained(self, folder: Folder, name: str, done: str) -> Iterator[None]:
        """Raise errors of the store's client in the block as a StorageError."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            raise object_failure(error, self.location(folder, name), done) from error


StorageFiles: TypeAlias = LocalFiles | ObjectFiles
