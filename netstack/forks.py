"""What a forked child gives up at once: the sockets of its parent's connections.

A descriptor that a child inherits keeps its connection open after the parent's death, and whoever is at the other end would wait for
somebody who does not exist.

Side:       shared.
Invariants: the child closes descriptors and nothing else: it says nothing over them, and leaves the parent's loop, whose kernel objects
            both share, as it is.  That is why no loop or transport of the parent is ever destroyed in the child: its destructor would
            take the parent's sockets out of the parent's selector.
            A number that belongs to another file by now is not closed.
Absent:     ``subprocess``: programs that are executed inherit no descriptor (they are all close-on-exec).  A child that ends by
            ``os._exit``, as those of ``multiprocessing`` do, ends well; libuv's own exit handler may crash in any other one (it joins
            threads that the child does not have).
"""

import contextlib
import os
from typing import Final


class ClosedInChildren:
    """Has a descriptor closed in every child that this process forks, until ``release``.

    Threading: any thread.

    Args:
        descriptor: of a socket.
        owner: what would use the descriptor in the child; it lives as long as the child does.
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
        """The descriptor is about to be closed, or was; a second call does nothing."""
        _guarded.discard(self)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if _identity(self._descriptor) == self._identity:
                os.close(self._descriptor)


def keep_in_children(owner: object) -> None:
    """Let ``owner``, a loop, live in every child that this process forks; until ``forget_in_children``."""
    _kept[id(owner)] = owner


def forget_in_children(owner: object) -> None:
    """``owner`` was closed."""
    _kept.pop(id(owner), None)


def _identity(descriptor: int) -> tuple[int, int]:
    """The file behind it: no two sockets have the same."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


# Any thread; each operation on them is one call in C, and a child has one thread.
_guarded: Final[set[ClosedInChildren]] = set()
_kept: Final[dict[int, object]] = {}
_inherited: Final[list[object]] = []  # in a child: what belongs to its parents


def _after_fork() -> None:
    for each in _guarded:
        each._close()
    _inherited.extend([*_guarded, *_kept.values()])
    _guarded.clear()
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork)
