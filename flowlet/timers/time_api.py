"""The clock and the timers as operators see them.

``TimerQueue``: timers in the order in which they fire.

Side:       task.  Protocols and values; the task that runs the operator provides the implementations.
Invariants: callbacks run on the task's thread, never for a timer that was cancelled or deleted before it fired.
            The heap of a queue holds all live timers, and hardly more deleted ones.
Units:      timestamps and delays in milliseconds, processing time since the epoch.
Source:     Flink ``ProcessingTimeService``, ``InternalTimer``, ``Triggerable``, ``KeyContext``.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Protocol

from flowlet.keys.exact_keys import exact_key, key_group
from flowlet.records import Watermark, WatermarkStatus
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY  # None would not do: it is a valid key


class KeyContext:
    """Holds the key of the record or timer that is being processed, ``NO_KEY`` if the stream has none; task thread
    only.
    """

    __slots__ = ("current_key",)

    def __init__(self) -> None:
        self.current_key: Any = NO_KEY

    def __repr__(self) -> str:
        return f"<KeyContext at {self.current_key!r}>"


class ProcessingTimeService(Protocol):
    """The clock of a task, and timers that fire as mails of the operator that registered them."""

    def current_time_ms(self) -> int:
        """The time of the wall clock."""

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], None]) -> Cancellable:
        """Call ``callback(timestamp_ms)`` once the clock shows more than ``timestamp_ms``."""

    def schedule_with_fixed_delay(
        self, callback: Callable[[int], None], *, initial_delay_ms: int, period_ms: int
    ) -> Cancellable:
        """Call ``callback(now)`` repeatedly, each time ``period_ms`` after the end of the last call."""

    def relative_time_ns(self) -> int:
        """Nanoseconds of a monotonic clock that stands still while consumers hold the task back; for idleness."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one key; ``namespace`` is hashable, for example a window, or None."""

    timestamp: int
    key: Any
    namespace: Any


# A smaller heap is not worth a search for deleted timers.  Not measured.
_MIN_COMPACTION: Final = 64

_Identity = tuple[int, Any, Any]


class TimerQueue:
    """A heap of timers without duplicates; timers of the same timestamp come out in the order in
    which they were added.
    """

    __slots__ = ("_heap", "_live", "_order")

    def __init__(self) -> None:
        self._live: dict[_Identity, Timer] = {}
        self._heap: list[tuple[int, int, _Identity, Timer]] = []
        self._order = count()

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)}, next {self.next_timestamp()}>"

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Timer]:
        return iter(list(self._live.values()))

    def add(self, timer: Timer) -> bool:
        """Add a timer; False if it was there already.

        Raises KeyTypeError if its key is of a type that cannot be a key.
        """
        identity = (timer.timestamp, exact_key(timer.key), timer.namespace)
        if identity in self._live:
            return False
        self._live[identity] = timer
        # The number decides between equal timestamps: identities need not be comparable.
        heappush(self._heap, (timer.timestamp, next(self._order), identity, timer))
        return True

    def remove(self, timer: Timer) -> bool:
        """Remove a timer; False if it was not there."""
        if self._live.pop((timer.timestamp, exact_key(timer.key), timer.namespace), None) is None:
            return False
        if len(self._heap) > 2 * len(self._live) + _MIN_COMPACTION:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
            heapify(self._heap)
        return True

    def next_timestamp(self) -> int | None:
        """The timestamp of the next timer; None if there is none."""
        heap = self._heap
        while heap:
            timestamp, _, identity, timer = heap[0]
            if self._live.get(identity) is timer:
                return timestamp
            heappop(heap)
        return None

    def pop_until(self, timestamp: int) -> Timer | None:
        """Remove and return the next timer if its timestamp is at most ``timestamp``."""
        due = self.next_timestamp()
        if due is None or due > timestamp:
            return None
        _, _, identity, timer = heappop(self._heap)
        del self._live[identity]
        return timer

    def by_key_group(self, max_parallelism: int) -> dict[int, list[Timer]]:
        """All timers by the key group of their key."""
        groups: dict[int, list[Timer]] = {}
        for timer in self._live.values():
            groups.setdefault(key_group(timer.key, max_parallelism), []).append(timer)
        return groups

    def extend(self, timers: Iterable[Timer]) -> None:
        """Add all timers."""
        for timer in timers:
            self.add(timer)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        live = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
        assert len(live) == len(self._live), "a live timer is not in the heap"
        assert len(self._heap) <= 2 * len(self._live) + _MIN_COMPACTION + 1, "too many deleted timers in the heap"


class Triggerable(Protocol):
    """Is called when timers fire; the current key is then the timer's."""

    def on_event_time(self, timer: Timer) -> None:
        """The watermark reached the timer."""

    def on_processing_time(self, timer: Timer) -> None:
        """The clock reached the timer."""


class WatermarkOutput(Protocol):
    """The part of an operator's output that watermarks need."""

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Pass a watermark or a status to every consumer."""
