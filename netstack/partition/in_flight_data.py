"""The buffers before a barrier, once it is known which they are.

Side:       shared.
Invariants: completed or failed once; every callback is called once, outside the lock; its buffers have one owner,
            whoever ``take``s them.
Source:     the ``CompletableFuture<List<Buffer>>`` of Flink's ``PipelinedSubpartition`` for barriers that can time out.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.wakeups import run_all


class InFlightData:
    """A result that comes when the barrier is consumed (nothing was in flight), times out, or its checkpoint ends.

    Threading: any thread.
    Ownership: it holds the buffers until they are taken; untaken ones of a failed checkpoint are its completer's to
               recycle.
    """

    __slots__ = ("_buffers", "_callbacks", "_error", "_is_done", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._is_done = False
        self._buffers: list[NetworkBuffer] = []
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[InFlightData], None]] = []

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self._is_done else "pending"
        return f"<InFlightData {state}, {len(self._buffers)} buffers>"

    @property
    def is_done(self) -> bool:
        """Whether it was completed or failed."""
        return self._is_done

    @property
    def error(self) -> BaseException | None:
        """Why there will be no buffers, if so."""
        return self._error

    def complete(self, buffers: Sequence[NetworkBuffer]) -> None:
        """Hand over ``buffers``; a second end changes nothing and recycles them."""
        if not self._end(list(buffers), None):
            for buffer in buffers:
                buffer.recycle()

    def fail(self, error: BaseException) -> None:
        """Say that the checkpoint got no buffers, and why; a second end changes nothing."""
        self._end([], error)

    def take(self) -> list[NetworkBuffer]:
        """The buffers, which the caller recycles; empty for everybody but the first, and after a failure."""
        with self._lock:
            buffers, self._buffers = self._buffers, []
        return buffers

    def on_done(self, callback: "Callable[[InFlightData], None]") -> None:
        """Call ``callback`` once it is done, at once if it is; on the thread that completes it, outside every lock."""
        with self._lock:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def _end(self, buffers: list[NetworkBuffer], error: BaseException | None) -> bool:
        with self._lock:
            if self._is_done:
                return False
            self._is_done = True
            self._buffers, self._error = buffers, error
            callbacks, self._callbacks = self._callbacks, []
        run_all([partial(callback, self) for callback in callbacks])
        return True
