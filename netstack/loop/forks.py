"""Forked children: they keep no sockets of the parent, and do none of its work.

An inherited descriptor would keep its connection open after the parent's death, and the peer would wait for ever.  A
child that goes on with the work of a thread of ours would do it a second time, and then wait for threads that it does
not have.

Side:       shared.
Invariants: the child closes descriptors and does nothing else with them.  It never destroys a loop or transport of the
            parent: parent and child share the selector in the kernel, and the destructor would remove the parent's
            sockets from it.  A descriptor that belongs to another file by now is not closed.
Absent:     ``subprocess``: executed programs inherit no descriptor (all are close-on-exec).  The exit handler of libuv,
            which would join threads that a child does not have: ``UvLoop`` sees to it that libuv starts none.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Final, NoReturn

# After this long a child ends without having written its output: a thread of its parent held the file's lock.
_FLUSH_S: Final = 2


class ClosedInChildren:
    """Closes a descriptor in every child that this process forks, until ``release``.

    Threading: any thread.

    Args:
        descriptor: of a socket or pipe.
        owner: the object that uses it; kept alive in the child, so that its destructor does not run.
    """

    def __init__(self, descriptor: int, owner: object) -> None:
        self._descriptor = descriptor
        self._identity = _identity(descriptor)
        self._owner = owner
        _guarded.add(self)

    def __repr__(self) -> str:
        return f"<ClosedInChildren {self._descriptor} of {self._owner!r}>"

    @property
    def is_intact(self) -> bool:
        """Whether the descriptor still is the socket that it was."""
        try:
            return _identity(self._descriptor) == self._identity
        except OSError:
            return False

    def release(self) -> None:
        """Forget the descriptor, which is or will be closed; a second call does nothing."""
        _guarded.discard(self)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            # Other code of the parent may have closed it: its number then means a file that the child needs.
            if _identity(self._descriptor) == self._identity:
                os.close(self._descriptor)


class PortClosedInChildren:
    """Closes every connected or listening socket with this port at either end, in every child that this process forks,
    until ``release``.

    For sockets that a library makes.  Threading: any thread.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        _ports.add(self)

    def __repr__(self) -> str:
        return f"<PortClosedInChildren {self.port}>"

    def release(self) -> None:
        """Forget the sockets, which are or will be closed; a second call does nothing."""
        _ports.discard(self)


@contextlib.contextmanager
def serving_thread(loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
    """Mark the calling thread as one that works for this process alone: ``end_stranded_child`` ends a child that was
    forked on it.

    ``loop``: what the thread runs; in the child it gets no further than to its next pass.
    """
    ident = threading.get_ident()
    _serving[ident] = loop
    try:
        yield
    finally:
        _serving.pop(ident, None)


def end_stranded_child() -> None:
    """End this process if a user's function forked it on a ``serving_thread`` and has returned or raised.

    Call it where work begins or ends, and before waiting.  The child's exit code is that of ``sys.exit`` if the
    function called it, else 1; standard error says why it ended.
    """
    if _stranded is not None and _stranded == threading.get_ident():
        _end(sys.exception())


def _end(error: BaseException | None) -> NoReturn:
    code, text = 1, ""
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        text = f"{error.code}\n" if isinstance(error.code, str) else ""
    else:
        with contextlib.suppress(BaseException):  # the text of a user's exception is the user's code
            text = "".join(traceback.format_exception(error)) if error is not None else ""
        text += (
            f"process {os.getpid()}, which a user's function forked, did not end in that function; it ends now "
            "(call os._exit there)\n"
        )
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_FLUSH_S)
        sys.stdout.flush()
    finally:
        os._exit(code)


def keep_in_children(owner: object) -> None:
    """Keep ``owner``, a loop, alive in every child that this process forks, until ``forget_in_children``."""
    _kept[id(owner)] = owner


def forget_in_children(owner: object) -> None:
    """Undo ``keep_in_children``: ``owner`` was closed."""
    _kept.pop(id(owner), None)


def _identity(descriptor: int) -> tuple[int, int]:
    """Return device and inode, which are unique to an open socket or pipe."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


# Used by any thread: each operation on them is one atomic call of the set or list.  A child has one thread.
_guarded: Final[set[ClosedInChildren]] = set()
_kept: Final[dict[int, object]] = {}
_inherited: Final[list[object]] = []  # in a child: the objects of its parents, kept alive
_ports: Final[set[PortClosedInChildren]] = set()
_serving: Final[dict[int, asyncio.AbstractEventLoop | None]] = {}  # by id of a thread: the loop that it runs, if any
_stranded: int | None = None  # in a child that was forked on a serving thread: the id of its only thread


def _after_fork() -> None:
    global _stranded
    for each in _guarded:
        each._close()
    if _ports:
        _close_ports({each.port for each in _ports})
        _ports.clear()
    ident = threading.get_ident()
    if ident in _serving:
        _stranded = ident
        # A signal to the child must not look like one to its parent, whose loop reads the other end.
        signal.set_wakeup_fd(-1)
        if (loop := _serving[ident]) is not None:
            loop.call_soon(end_stranded_child)
    _serving.clear()
    # Before the sets are emptied: a destructor here would take the parent's sockets out of the shared selector.
    _inherited.extend([*_guarded, *_kept.values()])
    _guarded.clear()
    _kept.clear()


def _close_ports(ports: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # on another system, where there is none, the child keeps these sockets
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=int(name))
            ends = [found.getsockname()]
            with contextlib.suppress(OSError):  # it listens
                ends.append(found.getpeername())
            if any(isinstance(end, tuple) and end[1] in ports for end in ends):
                found.close()
            else:
                found.detach()


os.register_at_fork(after_in_child=_after_fork)
