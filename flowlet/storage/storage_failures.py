"""What a user reads when the operating system refuses a file of a checkpoint.

Side: shared.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from flowlet.errors import StorageError

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
