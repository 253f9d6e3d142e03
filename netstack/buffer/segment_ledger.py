"""Who holds which piece of memory, and how he came to it: the books of ``NETSTACK_DEBUG=1``.

Side:       shared.  Used only in debug mode; nothing of it exists otherwise.
Invariants: a segment is either at home or out, never out twice (FLINK-20654: the same memory in two hands is silent
            corruption).
Lock order: ``SegmentLedger._lock`` is a leaf.
"""

import sys
import threading
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Final

from netstack.errors import BufferOwnershipError

Frame = tuple[str, int, str]  # file, line, function
_MAX_STEPS: Final = 32  # of one lease; a buffer that many readers share keeps the last ones
_MAX_FRAMES: Final = 4
_OWN_FILES: Final = tuple(
    f"/netstack/buffer/{name}.py"
    for name in ("network_buffer", "segment_ledger", "buffer_builder", "buffer_consumer", "segment_consumer")
)


def callers() -> tuple[Frame, ...]:
    """File, line and function of the innermost callers outside the buffer classes; cheap enough for each step of a
    buffer.
    """
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.endswith(_OWN_FILES):
            found.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return tuple(found)


def describe(frames: Sequence[Frame]) -> str:
    """The callers as text, innermost first."""
    return " < ".join(f"{function} ({name.rpartition('/')[2]}:{line})" for name, line, function in frames)


class Trail:
    """The last steps of one lease.  Any thread: ``deque.append`` is atomic."""

    __slots__ = ("_steps",)

    def __init__(self, what: str) -> None:
        self._steps: deque[tuple[str, str, tuple[Frame, ...]]] = deque(maxlen=_MAX_STEPS)
        self.add(what)

    def add(self, what: str) -> None:
        """Note that ``what`` happened here and now, on this thread."""
        self._steps.append((what, threading.current_thread().name, callers()))

    def __str__(self) -> str:
        return "".join(f"\n  {what} on {thread} by {describe(frames)}" for what, thread, frames in self._steps)


class SegmentLedger:
    """Which segments of one network pool are out, and who took them.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._out: dict[int, tuple[str, tuple[Frame, ...]]] = {}
        self._last_return: dict[int, tuple[Frame, ...]] = {}
        # Appended by the garbage collector, at any time on any thread, so without the lock; append and list() are
        # atomic.
        self._lost: deque[str] = deque()

    def take(self, index: int, owner: str) -> None:
        """``owner`` gets segment ``index``.

        Raises:
            BufferOwnershipError: another owner has it.
        """
        frames = callers()
        with self._lock:
            before = self._out.get(index)
            if before is not None:
                raise BufferOwnershipError(
                    f"segment {index} is given to {owner}, but {before[0]} has it, by {describe(before[1])}"
                )
            self._out[index] = (owner, frames)

    def give_back(self, index: int) -> None:
        """Segment ``index`` comes home.

        Raises:
            BufferOwnershipError: it is home.
        """
        frames = callers()
        with self._lock:
            if self._out.pop(index, None) is None:
                last = self._last_return.get(index, ())
                raise BufferOwnershipError(
                    f"segment {index} is recycled twice: now by {describe(frames)}, before by {describe(last)}"
                )
            self._last_return[index] = frames

    def lose(self, index: int, trail: Trail) -> None:
        """Segment ``index`` can never come home: its last holder forgot it."""
        self._lost.append(f"segment {index}:{trail}")

    def check_lost(self) -> None:
        """Complain about segments that were dropped instead of recycled.

        Raises:
            BufferOwnershipError: there are some; the text tells who held them.
        """
        if self._lost:
            raise BufferOwnershipError("dropped without being recycled: " + "; ".join(list(self._lost)))

    def describe_out(self) -> list[str]:
        """One line for each segment that is out: who took it, and where."""
        with self._lock:
            out = sorted(self._out.items())
        return [f"segment {index} of {owner}, taken by {describe(frames)}" for index, (owner, frames) in out]
