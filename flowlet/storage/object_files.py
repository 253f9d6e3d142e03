"""``ObjectFiles``: files below a URL of fsspec: an object store, or a file system of the network.

What a user reads when a store behind fsspec refuses a file of a checkpoint.

Side:       shared.  Blocking.
Rules:      the clients of stores have exceptions of their own; they are told apart by the names of their classes, and
            by what fsspec's implementations make of the answers, so that no client needs to be installed.
Invariants: a file appears with its whole content or not at all.  An object store keeps an object when it has all of it,
            so a file is written under its own name; elsewhere it is written under a temporary name and moved.  Nothing
            is read from a cache of listings.
Source:     Flink ``FsCheckpointStreamFactory``, ``S3RecoverableFsDataOutputStream``.
Absent:     fsync: fsspec has none; who needs it uses ``LocalFiles``.  Timeouts: those of the store's client, and that
            of the checkpoint.
"""

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from flowlet.errors import StorageError
from flowlet.storage.storage_files import Folder

_ELSEWHERE: Final = "or set execution.checkpointing.dir to another place"
# By scheme: the package with fsspec's implementation.
_PACKAGES: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
}
_NO_CREDENTIALS: Final = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
)
_NOT_REACHED: Final = (
    *(
        "EndpointConnectionError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ClientConnectorError",
    ),
    *(
        "HTTPClientError",
        "ServiceRequestError",
        "FSTimeoutError",
        "ConnectionError",
        "ConnectionRefusedError",
        "TimeoutError",
    ),
)
_MAX_CAUSE_CHARS: Final = 300


def cannot_open(url: str, scheme: str, error: Exception) -> StorageError:
    """Why the client of a store could not be made."""
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme)
        how = "install it for every process of the cluster"
        why = (
            f"{package} is not installed: {how} (pip install {package})"
            if package
            else f"its package is not installed: {how} ({error})"
        )
    elif isinstance(error, ValueError) and "not known" in str(error):
        why = f"fsspec knows no storage with the scheme {scheme!r}; {_ELSEWHERE.removeprefix('or ')}"
    else:
        why = f"{_described(error)}; mend that, {_ELSEWHERE}"
    return StorageError(f"checkpoints cannot be kept in {url!r}: {why}")


def object_failure(error: Exception, url: str, done: str) -> StorageError:
    """The error for a user.

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
        cause = f"there is no such bucket; make it, {_ELSEWHERE}"
    elif isinstance(error, FileNotFoundError) and done == "read":
        return StorageError(f"checkpoint file {url} is missing: put the original back, or restore another checkpoint")
    elif isinstance(error, PermissionError):
        cause = f"the store gives these credentials no permission ({_described(error)}); give it to them, {_ELSEWHERE}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"the store is full; free space there, {_ELSEWHERE}"
    elif names.intersection(_NOT_REACHED):
        cause = f"the store does not answer ({_described(error)}); is it up, and can this machine reach it?"
    else:
        cause = f"{_described(error)}; mend that, {_ELSEWHERE}"
    return StorageError(f"checkpoint file {url} cannot be {done}: {cause}")


def _described(error: Exception) -> str:
    """The kind of an error and its text."""
    return f"{type(error).__name__}: {error}"[:_MAX_CAUSE_CHARS]


# Their clients put a file as one object, which readers see when the store has all of it; all of them know
# ``use_listings_cache``.
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})


class ObjectFiles:
    """Implements ``StorageFiles``.

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
        """The URL."""
        return "/".join((self._url, *folder, name)).rstrip("/")

    def write(self, folder: Folder, name: str, content: bytes) -> None:
        """Put the object; elsewhere write, then move."""
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
        """Nothing to do: a store that has acknowledged an object keeps it."""

    def read(self, folder: Folder, name: str, max_bytes: int) -> bytes:
        """The whole object."""
        with self._explained(folder, name, "read"):
            size = self._size(folder, name)
            if size is None:
                raise FileNotFoundError(name)
            if size > max_bytes:
                raise StorageError(
                    f"checkpoint file {self.location(folder, name)} has {size} bytes instead of at most {max_bytes}: "
                    "it was changed after "
                    "it was written; put the original back, or restore another checkpoint"
                )
            content = self._fs.cat_file(self._path(folder, name))
            assert isinstance(content, bytes), "fsspec's contract"
            return content

    def size(self, folder: Folder, name: str) -> int | None:
        """The size of an object."""
        with self._explained(folder, name, "looked up"):
            return self._size(folder, name)

    def names(self, folder: Folder) -> list[str]:
        """The names below a prefix."""
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
        """Delete the objects; a store has no folders, elsewhere they are removed."""
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
        """Raise what the client of the store raises as a StorageError."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            raise object_failure(error, self.location(folder, name), done) from error
