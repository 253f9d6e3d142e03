"""What ``execution.checkpointing.dir`` may say: a directory, or a folder of an object store.

Side:   pure.
Rules:  everything but ``file:`` is fsspec's.  A scheme is refused if its files are in one process or on one machine only, or cannot be
        written.  Which packages are installed is not known here: the JobManager tries it at submission.
Source: Flink ``FileSystem.getUnguardedFileSystem``.
"""

import re
from pathlib import Path
from typing import Final

from flowlet.errors import StorageError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_OPTION: Final = "execution.checkpointing.dir"
_SHARED: Final = f"set {_OPTION} to the URL of an object store such as s3://bucket/checkpoints, or to a path that all processes reach"
# By scheme: why checkpoints cannot be there.
_REFUSED: Final = {
    "memory": "it is the memory of one process, and the others do not see it",
    "local": "directories are named by their path, or by a URL that begins with file:",
    **dict.fromkeys(("http", "https", "data", "git", "github", "zip", "tar", "libarchive", "reference"), "nothing can be written there"),
    **dict.fromkeys(("cached", "filecache", "simplecache", "blockcache", "asynclocal"), "other processes do not see what is in a cache"),
}


def check_checkpoint_url(url: str) -> None:
    """Raises StorageError: checkpoints cannot be kept there; the message says why and what to do."""
    if is_directory(url):
        directory_of(url)
        return
    scheme, _, rest = url.partition(":")
    why = _REFUSED.get(scheme.lower())
    if why is None and "::" in url:
        why = "it is a chain of URLs"
    elif why is None and (not rest.startswith("//") or not rest.strip("/")):
        why = f"a URL has the form {scheme}://bucket/folder"
    elif why is None and ("?" in url or "#" in url or any(not each.isprintable() for each in url)):
        why = "it has a query, a fragment or characters that cannot be printed"
    elif why is None and ".." in rest.split("/"):
        why = "'..' leads out of a folder"
    elif why is None and ":" in rest[2:].partition("/")[0].rpartition("@")[0]:
        url = f"{scheme}://...@{rest.rpartition('@')[2]}"
        why = "it holds a password, which logs would show; put it into the environment or the configuration of the store's client"
    if why is not None:
        raise StorageError(f"checkpoints cannot be kept in {url!r}: {why}; {_SHARED}")


def is_directory(url: str) -> bool:
    """Whether it names a directory: a path or a ``file:`` URL."""
    match = _SCHEME.match(url)
    return match is None or match[1].lower() == "file"


def directory_of(url: str) -> Path:
    """The directory that a ``file:`` URL or a path names.  Raises StorageError: it is relative; the message says what to do."""
    match = _SCHEME.match(url)
    rest = url if match is None else url[match.end() :]
    path = rest[2:] if match is not None and rest.startswith("//") else rest
    if not path.startswith("/") or "\0" in path:
        raise StorageError(
            f"checkpoints cannot be kept in {url!r}: it is not an absolute path, and the processes of the cluster have different working "
            f"directories; set {_OPTION} to a path that begins with /, on a disk that all of them reach"
        )
    return Path(path)


def root_of(url: str) -> str:
    """The directory's path, or the folder's URL, without a slash at its end.  Raises StorageError: checkpoints cannot be there."""
    check_checkpoint_url(url)
    return (str(directory_of(url)) if is_directory(url) else url).rstrip("/")
