"""Closes the sockets of a process in its forked children.

An inherited descriptor would keep its connection open after the parent's death, and the peer would wait for ever.

Side:       shared.
Invariants: the child closes descriptors and does nothing else with them.  It never destroys a loop or transport of the parent: parent and
            child share the selector in the kernel, and the destructor would remove the parent's sockets from it.
            A descriptor that belongs to another file by now is not closed.
Absent:     ``subprocess``: executed programs inherit no descriptor (all are close-on-exec).  Children that end by ``os._exit``, as those of
            ``multiprocessing``, end well; in others libuv's exit handler may crash, because it joins threads that the child does not have.
"""

import contextlib
import os
from typing import Final


class ClosedInChildren:
    """Closes a descriptor in every child that this process forks, until ``release``.

    Threading: any thread.

    Args:
        descriptor: of a socket.
        owner: the object that uses it; kept alive in the child, so that its destructor does not run.
    """

    __slots__ = ("_descriptor", "_identity", "_owner")

    def __init__(self, descriptor: int, owner: object) -> None:
        self._descriptor = descriptor
        self._identity = _identity(descriptor)
        self._owner = owner
        _guarded.add(self)

    def __repr__(self) -> str:
        return f"<ClosedInChildren {self._descriptor} of {self._owner!r}>"

    def release(self) -> None:
        """Forget the descriptor, which is or will be closed; a second call does nothing."""
        _guarded.discard(self)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if _identity(self._descriptor) == self._identity:
                os.close(self._descriptor)


def keep_in_children(owner: object) -> None:
    """Keep ``owner``, a loop, alive in every child that this process forks, until ``forget_in_children``."""
    _kept[id(owner)] = owner


def forget_in_children(owner: object) -> None:
    """``owner`` was closed."""
    _kept.pop(id(owner), None)


def _identity(descriptor: int) -> tuple[int, int]:
    """Device and inode, which are unique to an open socket."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


# Used by any thread: each operation on them is one atomic call of the set or list.  A child has one thread.
_guarded: Final[set[ClosedInChildren]] = set()
_kept: Final[dict[int, object]] = {}
_inherited: Final[list[object]] = []  # in a child: the objects of its parents, kept alive


def _after_fork() -> None:
    for each in _guarded:
        each._close()
    _inherited.extend([*_guarded, *_kept.values()])
    _guarded.clear()
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork)
