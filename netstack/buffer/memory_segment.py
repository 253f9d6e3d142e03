"""Pieces of network memory: who takes them back, and the books of debug mode.

Side:       shared.  Whoever holds a segment reads and writes it; who that is, leases and pools say.  With
            ``NETSTACK_DEBUG=1`` a ``SegmentLedger`` remembers who holds which segment, and how he came to it; otherwise
            nothing of it exists.
Invariants: a segment is either at home or out, never out twice (FLINK-20654: the same memory in two hands is silent
            corruption).
Units:      sizes in bytes.
Lock order: ``SegmentLedger._lock`` is a leaf.
Source:     Flink ``MemorySegment``, ``BufferRecycler``, ``FreeingBufferRecycler``.
"""

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Final

from netstack.availability import run_all
from netstack.errors import BufferOwnershipError

Frame = tuple[str, int, str]  # file, line, function
_MAX_STEPS: Final = 32  # of one lease; a buffer that many readers share keeps the last ones
_MAX_FRAMES: Final = 4
_OWN_FILES: Final = tuple(
    f"/netstack/buffer/{name}.py" for name in ("network_buffer", "memory_segment", "buffer_builder", "content_consumer")
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


class MemorySegment:
    """One fixed-size piece of memory; ``index`` is its number in the arena, -1 outside of one."""

    __slots__ = ("index", "ledger", "view")

    def __init__(self, view: memoryview, index: int = -1, ledger: SegmentLedger | None = None) -> None:
        self.view = view
        self.index = index
        self.ledger = ledger  # of its pool, in debug mode

    def __repr__(self) -> str:
        return f"<MemorySegment {self.index}>"


class BufferRecycler(ABC):
    """Takes back the segments of buffers that nobody uses any more; any thread.

    Several recyclers may bring segments to one ``home``, each those of its ``subpartition`` (-1: of none).
    """

    __slots__ = ()
    subpartition = -1

    @property
    def home(self) -> "BufferRecycler":
        """The recycler that takes the segments of several recyclers back at once."""
        return self

    @abstractmethod
    def recycle(self, segment: MemorySegment) -> None:
        """Take ``segment`` back."""

    def recycle_run(self, segments: Sequence[MemorySegment]) -> None:
        """Take back several segments at once, if it can, with one wake-up for who waits."""
        run_all([partial(self.recycle, segment) for segment in segments])

    def recycle_runs(self, runs: Sequence[tuple[int, Sequence[MemorySegment]]]) -> None:
        """Take back the segments of several subpartitions at once, of the recyclers that name this one as their
        ``home``.
        """
        run_all([partial(self.recycle_run, segments) for _, segments in runs])


class FreeingBufferRecycler(BufferRecycler):
    """Leaves the memory to the interpreter: for buffers that came from no pool."""

    __slots__ = ()

    def recycle(self, segment: MemorySegment) -> None:
        """Forget the segment."""


FREEING_RECYCLER: Final = FreeingBufferRecycler()
