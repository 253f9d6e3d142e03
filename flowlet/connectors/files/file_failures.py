"""What a user reads when the operating system refuses a part file.

Side: shared.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flowlet.errors import FlowletError

_ELSEWHERE: Final = "or let the sink write to another folder"
# By errno: what happened, and what to do.
_SENTENCES: Final = {
    errno.ENOSPC: ("the disk is full", f"free space there, {_ELSEWHERE}"),
    errno.EDQUOT: ("the disk quota of this user is used up", f"free space there, ask for a larger quota, {_ELSEWHERE}"),
    errno.EROFS: ("the file system is read-only", f"mount it for writing, {_ELSEWHERE}"),
    errno.EIO: ("the disk reports an I/O error", f"check the disk and the log of the kernel, {_ELSEWHERE}"),
    errno.ENOENT: ("the file or its folder does not exist", "was it removed, or is a mount missing? Put it back"),
    errno.ENOTDIR: ("a part of its path is a file instead of a folder", f"remove that, {_ELSEWHERE}"),
    errno.EEXIST: ("there is a file in the place of the folder", f"remove that, {_ELSEWHERE}"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n), or use fewer buckets"),
    errno.ESTALE: ("the file server does not know it any more", "mount the file system again"),
    errno.ENAMETOOLONG: ("its path is too long", "use a shorter prefix, suffix or bucket"),
}


@contextmanager
def explained(path: str, done: str) -> Iterator[None]:
    """Raise what the block gets from the operating system as a FlowletError that names the file and says what to do.

    ``done``: what could not be done with the file, such as "written".
    """
    try:
        yield
    except OSError as error:
        raise file_failure(error, path, done) from error


def file_failure(error: OSError, path: str, done: str) -> FlowletError:
    """The error for a user."""
    if error.errno in (errno.EACCES, errno.EPERM):
        cause, advice = f"user {os.geteuid()} has no permission", f"give it the permission (chown, chmod), {_ELSEWHERE}"
    else:
        cause, advice = _SENTENCES.get(error.errno or 0, (error.strerror or str(error), f"mend that, {_ELSEWHERE}"))
    return FlowletError(f"part file {path} cannot be {done}: {cause}; {advice}")
