"""The meaning of a user's path or URL: one rule for sources, sinks, checkpoints, savepoints and files that a program
ships.

Side:   pure.  It asks the operating system for the working directory and for homes, and opens nothing.
Rules:  a path and ``file:`` name a file of the machine; ``file:/x``, ``file:///x`` and ``file://localhost/x`` are
        ``/x``.  A program's paths become absolute in the program, by its working directory, and ``~`` is the home of
        its user: the processes of a cluster have others.  As in Flink's ``Path``, nothing is unescaped (``%20`` stays),
        repeated slashes are one, ``..`` is taken out by the text alone, a slash at the end is no part of the path, and
        text before a colon is a scheme unless a slash comes first.  For checkpoints and savepoints, everything but
        ``file:`` is fsspec's.  A scheme is refused if its files are in one process or on one machine only, or cannot be
        written.  Which packages are installed is not known here: the JobManager tries it at submission.
Source: Flink ``Path``, ``FileSystem.getUnguardedFileSystem``; ``~`` is not in Flink.
"""

import os.path
import re
from pathlib import Path
from typing import Final

from flowlet.errors import StorageError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_OPTION: Final = "execution.checkpointing.dir"
_SHARED: Final = (
    f"set {_OPTION} to the URL of an object store such as s3://bucket/checkpoints, or to a path that all "
    "processes reach"
)
# By scheme: why checkpoints cannot be there.
_REFUSED: Final = {
    "memory": "it is the memory of one process, and the others do not see it",
    "local": "directories are named by their path, or by a URL that begins with file:",
    **dict.fromkeys(
        ("http", "https", "data", "git", "github", "zip", "tar", "libarchive", "reference"),
        "nothing can be written there",
    ),
    **dict.fromkeys(
        ("cached", "filecache", "simplecache", "blockcache", "asynclocal"),
        "other processes do not see what is in a cache",
    ),
}


def local_path(text: str) -> str:
    """Return the absolute path that a path or a ``file:`` URL names in this process; see the rules above.

    Raises:
        ValueError: it names no file of a machine; the message says why and what to do.
    """
    path = _path_in(text)
    if path.startswith("~"):
        expanded = os.path.expanduser(path)  # a Path would take the meaning of "//" and ".." into its own hands
        if expanded == path:
            raise ValueError(
                f"{text!r} names the home of a user that this machine does not know; a folder of that name is "
                f"'./{path}'"
            )
        path = expanded
    return "/" + os.path.abspath(path).lstrip("/")  # likewise


def absolute_url(text: str) -> str:
    """Return the absolute path that a path or a ``file:`` URL names in this process; any other URL unchanged.

    Raises:
        StorageError: it names no file of a machine; the message says why and what to do.
    """
    if not is_directory(text):
        return text
    try:
        return local_path(text)
    except ValueError as error:
        raise StorageError(str(error)) from None


def _path_in(text: str) -> str:
    """Return the path of a path or ``file:`` URL.  Raises ValueError, as ``local_path``."""
    match = _SCHEME.match(text)
    path = text if match is None else text[match.end() :]
    if match is not None and match[1].lower() != "file":
        advice = "mount that store, or copy the files"
        if not path.startswith("//"):
            advice += f"; if the colon is a part of the name, write {'./' + text!r}"
        raise ValueError(
            f"{text!r} has the scheme {match[1]!r}, and only files that the machines reach by a path can be used here: "
            f"{advice}"
        )
    if match is not None and path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(
                f"{text!r} names the host {host!r}, not a folder; if you forgot a slash, write "
                f"{'file:///' + path[2:]!r}"
            )
        path = slash + rest
    if not path or "\0" in path:
        raise ValueError(f"{text!r} names no file: a path is not empty, and has no character NUL")
    return path


def check_checkpoint_url(url: str) -> None:
    """Check that checkpoints can be kept at a URL.  Raises StorageError: they cannot; the message says why and what to
    do.
    """
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
        why = (
            "it holds a password, which logs would show; put it into the environment or the configuration of the "
            "store's client"
        )
    if why is not None:
        raise StorageError(f"checkpoints cannot be kept in {url!r}: {why}; {_SHARED}")


def is_directory(url: str) -> bool:
    """Whether ``url`` names a directory: it is a path or a ``file:`` URL."""
    match = _SCHEME.match(url)
    return match is None or match[1].lower() == "file"


def directory_of(url: str) -> Path:
    """Return the directory that a ``file:`` URL or a path names.

    Raises StorageError: it is relative; the message says what to do.
    """
    try:
        path = _path_in(url)
    except ValueError as error:
        raise StorageError(
            f"checkpoints cannot be kept in {url!r}: it is not an absolute path: {error}; {_SHARED}"
        ) from None
    if not path.startswith("/"):
        raise StorageError(
            f"checkpoints cannot be kept in {url!r}: it is not an absolute path, and the processes of the cluster have "
            "different working "
            f"directories; set {_OPTION} to a path that begins with /, on a disk that all of them reach"
        )
    return Path(path)


def root_of(url: str) -> str:
    """Return the directory's path, or the folder's URL, without a slash at its end.

    Raises StorageError: checkpoints cannot be there.
    """
    check_checkpoint_url(url)
    return (str(directory_of(url)) if is_directory(url) else url).rstrip("/")
