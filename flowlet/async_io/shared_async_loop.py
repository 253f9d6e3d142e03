"""The event loop on which users' coroutines run.

Side:       shared.  Any thread may acquire and release it.
Invariants: one loop per process at a time, on a thread of its own, so that users' coroutines can never stall the network; it exists exactly
            while somebody holds it.
Source:     no counterpart in Flink, whose users bring thread pools of their own; PyFlink runs one loop per operator.
"""

import threading
from collections.abc import Callable
from typing import Final

from flowlet.errors import FlowletError
from netstack.errors import ResourceBrokenError
from netstack.eventloop import EventLoopThread

LOOP_NAME: Final = "flowlet async functions"


class SharedAsyncLoop:
    """Starts an event loop for the first who needs one, ends it after the last.

    Threading: any thread, but ``release`` not on the loop itself.
    Life cycle: any number of times from idle to running and back.
    """

    def __init__(self, start: Callable[[str], EventLoopThread] = EventLoopThread.start) -> None:
        self._start = start
        # Held while a loop starts (about a millisecond): whoever comes second needs that very loop.
        self._lock = threading.Lock()
        self._loop: EventLoopThread | None = None  # Guarded by _lock.
        self._num_holders = 0  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<SharedAsyncLoop {'idle' if self._loop is None else 'running'}, {self._num_holders} holders>"

    @property
    def num_holders(self) -> int:
        """How many acquired and did not release it; at once outdated."""
        return self._num_holders

    def acquire(self) -> EventLoopThread:
        """The running loop, started if there was none; ``release`` it once."""
        with self._lock:
            if self._loop is None:
                self._loop = self._start(LOOP_NAME)
            self._num_holders += 1
            return self._loop

    def release(self) -> None:
        """Give it back; the last one ends the loop and waits for that.

        Raises:
            FlowletError: the loop did not end: a coroutine blocks it.  It is no longer used by anybody.
        """
        with self._lock:
            assert self._num_holders > 0, "released more often than acquired"
            self._num_holders -= 1
            if self._num_holders:
                return
            loop, self._loop = self._loop, None
        assert loop is not None, "somebody held it"
        try:
            loop.close()
        except ResourceBrokenError as error:
            raise FlowletError("the loop of the async functions does not end: one of them blocks it, such as by time.sleep()") from error


# One per process: tasks of the same TaskManager share it.
PROCESS_ASYNC_LOOP: Final = SharedAsyncLoop()
