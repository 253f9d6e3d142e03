"""``RecordSlices``: elements that wait to be processed in pieces, so that a barrier can overtake those of a slow function.

Side:       task.
Why:        a chunk may hold thousands of records.  If each takes a function 10 ms, a barrier would wait for the whole chunk, and an
            unaligned checkpoint would be no quicker than an aligned one.  Flink looks for mails after every record.
Invariants: elements come out in the order in which they went in; nothing waits longer than about ``_BUDGET_NS`` for the end of a slice,
            once the speed of the chain is known.
Units:      nanoseconds of a monotonic clock.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flowlet.records import Chunk, StreamElement

_BUDGET_NS: Final = 10_000_000  # a tenth of what a checkpoint under back pressure may take; not measured otherwise
_FIRST_RECORDS: Final = 16  # of the first slice, before anything is known; a function may take 100 ms for each
_MAX_GROWTH: Final = 8
_MAX_RECORDS: Final = 1 << 20


class RecordSlices:
    """The elements that were read and not processed, by channel; task thread only.  ``clock_ns`` is read twice per slice."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._waiting: deque[tuple[int, StreamElement]] = deque()
        self._num_records = _FIRST_RECORDS  # of the next slice

    def __repr__(self) -> str:
        return f"<RecordSlices of {self._num_records} records, {len(self._waiting)} elements waiting>"

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, channel: int, elements: Sequence[StreamElement]) -> None:
        """Elements of a channel, behind all others."""
        self._waiting.extend((channel, element) for element in elements)

    def of_channel(self, channel: int) -> Iterator[StreamElement]:
        """The waiting elements of a channel, in order."""
        return (element for each, element in self._waiting if each == channel)

    def clear(self) -> None:
        """Drop all."""
        self._waiting.clear()

    def process(self, call: Callable[[int, StreamElement], None], should_stop: Callable[[], bool]) -> bool:
        """Give slices to ``call`` until nothing waits, or ``should_stop`` says so after one; returns whether nothing waits."""
        waiting = self._waiting
        while waiting:
            channel, element = waiting.popleft()
            if isinstance(element, Chunk):
                self._process_slice(channel, element, call)
            else:
                call(channel, element)
            if waiting and should_stop():
                return False
        return True

    def _process_slice(self, channel: int, chunk: Chunk, call: Callable[[int, StreamElement], None]) -> None:
        num_records = len(chunk)
        if num_records > self._num_records:
            num_records = self._num_records
            self._waiting.appendleft((channel, chunk.slice(num_records, len(chunk))))
            chunk = chunk.slice(0, num_records)
        started_ns = self._clock_ns()
        call(channel, chunk)
        taken_ns = max(1, self._clock_ns() - started_ns)
        fitting = max(1, num_records * _BUDGET_NS // taken_ns)
        self._num_records = min(fitting, self._num_records * _MAX_GROWTH, _MAX_RECORDS)
