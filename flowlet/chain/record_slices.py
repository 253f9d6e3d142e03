"""``RecordSlices``: elements that wait in front of a chain, and go into it in pieces.

Side:       task.
Why:        a chunk may hold thousands of records.  If each takes a function 10 ms, a mail or a barrier would wait for the whole chunk.
            Flink looks for mails after every record.  Here the loop of a chain is left between two records when a mail comes, and the
            rest of the chunk waits here.  An operator that takes whole chunks cannot be left: it gets as many records as took 10 ms last
            time.
Invariants: elements come out in the order in which they went in.  What waits here counts as in front of the chain: no barrier passes it,
            a snapshot of what is behind does not hold its effects, and nothing is read before it has gone in.
Units:      nanoseconds of a clock that stands still while the task waits for room in its outputs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from flowlet.records import Chunk, StreamElement

Origin = TypeVar("Origin")

BUDGET_NS: Final = 10_000_000  # a tenth of what a checkpoint under back pressure may take; not measured otherwise
_FIRST_RECORDS: Final = 1  # of the first slice, before anything is known; a function may take a second for each
_RECORDS_AFTER_ONE: Final = 64  # once records have come one by one and were not measured
_MAX_GROWTH: Final = 8
_MAX_RECORDS: Final = 1 << 20


class RecordSlices(Generic[Origin]):
    """The elements that were read and not processed, each with its origin: a channel, or a split; task thread only.

    ``clock_ns`` is read twice per slice.  ``cuts``: whether chunks may be cut at all; a function of batches gets them as they came.
    """

    def __init__(self, clock_ns: Callable[[], int], *, cuts: bool = True) -> None:
        self._clock_ns = clock_ns
        self._cuts = cuts
        self._waiting: deque[tuple[Origin, StreamElement]] = deque()
        self._num_records = _FIRST_RECORDS if cuts else _MAX_RECORDS  # of the next slice

    def __repr__(self) -> str:
        return f"<RecordSlices of {self._num_records} records, {len(self._waiting)} elements waiting>"

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[tuple[Origin, StreamElement]]:
        return iter(self._waiting)

    def is_needless_for(self, element: StreamElement) -> bool:
        """Whether the element can be processed without being kept here: it is one record, and nothing waits in front of it.

        Nobody measures what it takes, so the next slice is a short one.
        """
        if self._waiting or type(element) is not Chunk or len(element) != 1:
            return False
        if self._cuts and self._num_records > _RECORDS_AFTER_ONE:
            self._num_records = _RECORDS_AFTER_ONE
        return True

    def add(self, origin: Origin, elements: Sequence[StreamElement]) -> None:
        """Elements of an origin, behind all others."""
        for element in elements:
            self._waiting.append((origin, element))

    def of_origin(self, origin: Origin) -> Iterator[StreamElement]:
        """The waiting elements of an origin, in order."""
        return (element for each, element in self._waiting if each == origin)

    def clear(self) -> None:
        """Drop all."""
        self._waiting.clear()

    def process(
        self,
        process_some: Callable[[Origin, Chunk], int],
        process_control: Callable[[Origin, StreamElement], None],
        should_stop: Callable[[], bool],
    ) -> bool:
        """Give elements on until nothing waits, or ``should_stop`` says so after one; returns whether nothing waits.

        ``process_some`` returns how many records it has processed, at least one; the others are given again.
        """
        waiting = self._waiting
        while waiting:
            origin, element = waiting.popleft()
            if type(element) is Chunk:
                self._process_slice(origin, element, process_some)
            else:
                process_control(origin, element)
            if waiting and should_stop():
                return False
        return True

    def _process_slice(self, origin: Origin, chunk: Chunk, process_some: Callable[[Origin, Chunk], int]) -> None:
        whole, size = chunk, len(chunk)
        num_records = min(size, self._num_records)
        if num_records < size:
            # Before the call: an operator that waits in it may run the mail of a checkpoint, which must find the rest here.
            self._waiting.appendleft((origin, whole.slice(num_records, size)))
            chunk = whole.slice(0, num_records)
        started_ns = self._clock_ns()
        num_done = process_some(origin, chunk)
        if num_done < num_records:
            if num_records < size:
                self._waiting.popleft()
            self._waiting.appendleft((origin, whole.slice(num_done, size)))
        if self._cuts and num_records:
            taken_ns = max(1, self._clock_ns() - started_ns)
            fitting = max(1, num_done * BUDGET_NS // taken_ns)
            self._num_records = min(fitting, self._num_records * _MAX_GROWTH, _MAX_RECORDS)
