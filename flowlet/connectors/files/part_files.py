"""The names of part files on disk, and each step of their life: draft, durable, published, or removed.

What a user reads when the operating system refuses a part file.

Side:       task.
Invariants: a draft has a name that no other attempt gives to a file, and only the attempt that made it writes into it;
            what a checkpoint names of a draft was fsynced before, and so was its folder.  A published file is never
            written again.
Source:     Flink ``LocalRecoverableWriter``, ``RecoverableFsDataOutputStream``.
"""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Self

from flowlet.errors import FlowletError
from netstack.late import dataclass

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
        cause = f"user {os.geteuid()} has no permission"
        advice = f"give it the permission (chown, chmod), {_ELSEWHERE}"
    else:
        cause, advice = _SENTENCES.get(error.errno or 0, (error.strerror or str(error), f"mend that, {_ELSEWHERE}"))
    return FlowletError(f"part file {path} cannot be {done}: {cause}; {advice}")


# Some network file systems keep no order of a folder that fsync could settle.
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)
_DRAFT: Final = re.compile(
    r"\..+\.inprogress\.(?P<owner>[0-9a-f]{12})(?P<subtask>[0-9a-f]{4})(?P<restored>[0-9a-f]{8})(?P<attempt>[0-9a-f]{4})[0-9a-f]{4}"
)
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DraftOwner:
    """Whose drafts: one attempt of a subtask of a sink.

    ``owner``: 12 hex digits of the job and the operator.  ``restored``: the checkpoint that it began with, from 1; 0:
        none.
    """

    owner: str
    subtask: int
    restored: int
    attempt: int

    @classmethod
    def of(cls, job_id: str, operator_id: bytes, subtask: int, restored: int | None, attempt: int) -> Self:
        """The attempt of a subtask."""
        owner = hashlib.blake2b(job_id.encode() + operator_id, digest_size=6).hexdigest()
        return cls(owner, subtask & 0xFFFF, 0 if restored is None else (restored + 1) & 0xFFFFFFFF, attempt & 0xFFFF)

    def draft_name(self, name: str) -> str:
        """A new name for a draft of the part file ``name``."""
        run = f"{self.subtask:04x}{self.restored:08x}{self.attempt:04x}"
        return f".{name}.inprogress.{self.owner}{run}{secrets.token_hex(2)}"

    def is_left_by_a_former_one(self, file_name: str) -> bool:
        """Whether a file is the draft of an attempt of the same subtask that ended before this one began."""
        found = _DRAFT.fullmatch(file_name)
        if found is None or found["owner"] != self.owner or int(found["subtask"], 16) != self.subtask:
            return False
        restored = int(found["restored"], 16)
        attempt = int(found["attempt"], 16)
        # Another run of the JobManager may count attempts anew, but goes on from a newer checkpoint.
        return restored < self.restored or (restored == self.restored and attempt < self.attempt)

    def made(self, draft: str) -> bool:
        """Whether a draft is of the same sink in the same job."""
        found = _DRAFT.fullmatch(os.path.basename(draft))
        return found is not None and found["owner"] == self.owner


def make_folder(path: str) -> None:
    """Create a folder, if it is missing."""
    with explained(path, "written"):
        os.makedirs(path, exist_ok=True)


def create_draft(path: str) -> BinaryIO:
    """A new file, opened for writing."""
    with explained(path, "written"):
        return open(path, "xb")


def make_durable(file: BinaryIO, path: str) -> None:
    """Write what waits in memory, and wait for the disk."""
    with explained(path, "written"):
        file.flush()
        os.fsync(file.fileno())


def sync_folders(paths: Iterable[str]) -> None:
    """Make the names in folders durable."""
    for path in sorted(set(paths)):
        with explained(path, "written"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in _CANNOT_SYNC:
                    raise
            finally:
                os.close(descriptor)


def publish(draft: str, path: str) -> None:
    """Give a draft its name; if it has that name already, nothing is left to do.

    Raises:
        FlowletError: there is neither; or the operating system refuses.
    """
    with explained(path, "made visible"):
        try:
            os.replace(draft, path)
        except FileNotFoundError:
            if not os.path.exists(path):
                raise FlowletError(
                    f"part file {path} cannot be made visible: neither it nor {draft} exists; was the file removed, or "
                    "is a mount missing? "
                    "Put it back"
                ) from None


def copy_beginning(source: str, target: str, num_bytes: int) -> BinaryIO:
    """A new file with the first bytes of another one, which a former attempt may still append to.

    Raises:
        FlowletError: the other one is missing, or is shorter.
    """
    with explained(source, "read"):
        old = open(source, "rb", buffering=0)  # noqa: SIM115 - closed below; only the call itself is explained
    with old:
        file = create_draft(target)
        try:
            rest = num_bytes
            while rest:
                with explained(source, "read"):
                    block = old.read(min(rest, _COPY_BYTES))
                if not block:
                    raise FlowletError(
                        f"part file {source} has lost its end: {num_bytes - rest} of the {num_bytes} bytes of the "
                        "checkpoint are left; "
                        "put the original back"
                    )
                with explained(target, "written"):
                    file.write(block)
                rest -= len(block)
        except BaseException:
            file.close()
            remove(target)
            raise
    return file


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with explained(path, "removed"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def leftovers(base_path: str, attempt: DraftOwner) -> Iterator[str]:
    """The drafts that former attempts of a subtask have left below a folder."""
    for folder, _, names in os.walk(base_path):
        for name in names:
            if attempt.is_left_by_a_former_one(name):
                yield os.path.join(folder, name)
