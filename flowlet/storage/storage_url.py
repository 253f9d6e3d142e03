"""What ``execution.checkpointing.dir`` may say.

Side:   pure.
Absent: URLs of object stores.
"""

import re
from pathlib import Path
from typing import Final

from flowlet.errors import StorageError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def directory_of(url: str) -> Path:
    """The directory that a ``file:`` URL or a path names.  Raises StorageError: it is none, or relative; the message says what to do."""
    match = _SCHEME.match(url)
    path = url
    if match is not None:
        if match[1].lower() != "file":
            raise StorageError(
                f"checkpoints cannot be kept in {url!r}: this version of flowlet writes to directories only; mount the storage, and set "
                "execution.checkpointing.dir to the path"
            )
        rest = url[match.end() :]
        path = rest[2:] if rest.startswith("//") else rest
    if not path.startswith("/") or "\0" in path:
        raise StorageError(
            f"checkpoints cannot be kept in {url!r}: it is not an absolute path, and the processes of the cluster have different working "
            "directories; set execution.checkpointing.dir to a path that begins with /, on a disk that all of them reach"
        )
    return Path(path)
