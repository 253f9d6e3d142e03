"""The event loop on which users' coroutines run.

Side:       shared.  Any thread may acquire and release it.
Invariants: one loop per process, on its own thread, so that users' coroutines cannot stall the network.  It runs
            exactly while someone holds it.
Source:     none in Flink, whose users bring their own thread pools; PyFlink runs one loop per operator.
"""

import threading
from collections.abc import Callable
from typing import Final

from flowlet.errors import FlowletError
from netstack.errors import ResourceBrokenError
from netstack.eventloop import EventLoopThread

LOOP_NAME: Final = "flowlet async functions"


class SharedAsyncLoop:
    """Starts an event loop for the first holder and ends it after the last, any number of times.

    Threading: any thread, but ``release`` not on the loop itself.
    """

    def __init__(self, start: Callable[[str], EventLoopThread] = EventLoopThread.start) -> None:
        self._start = start
        # Held while a loop starts (about a millisecond): a second holder needs that very loop.
        self._lock = threading.Lock()
        self._loop: EventLoopThread | None = None  # Guarded by _lock.
        self._num_holders = 0  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<SharedAsyncLoop {'idle' if self._loop is None else 'running'}, {self._num_holders} holders>"

    @property
    def num_holders(self) -> int:
        """The number of holders; at once outdated."""
        return self._num_holders

    def acquire(self) -> EventLoopThread:
        """The running loop, started if there is none; call ``release`` once."""
        with self._lock:
            if self._loop is None:
                self._loop = self._start(LOOP_NAME)
            self._num_holders += 1
            return self._loop

    def release(self) -> None:
        """Give the loop back.  The last holder ends it and waits for its end.

        Raises:
            FlowletError: the loop did not end, because a coroutine blocks it.  It is not used again.
        """
        with self._lock:
            assert self._num_holders > 0, "released more often than acquired"
            self._num_holders -= 1
            if self._num_holders:
                return
            loop, self._loop = self._loop, None
        assert loop is not None, "the caller holds the loop"
        try:
            loop.close()
        except ResourceBrokenError as error:
            raise FlowletError(
                "the event loop does not end: an async function blocks it; use asyncio.sleep(), not time.sleep()"
            ) from error


# One per process: tasks of the same TaskManager share it.
PROCESS_ASYNC_LOOP: Final = SharedAsyncLoop()
