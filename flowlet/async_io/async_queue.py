"""Keeps records until their results are there, together with the control elements between them: watermarks, statuses
and marks.

Side:       pure.  Driven by its operator.
Invariants: at most ``capacity`` elements have a place; the others wait for one, in order of arrival.  A record leaves
            once, after ``complete``.  In both orders, control elements leave after all records that came before them,
            and before all that came after.
Source:     Flink ``StreamElementQueue``, ``OrderedStreamElementQueue``, ``UnorderedStreamElementQueue`` with its
            segments, where control elements take a place, too.  Results leave in chunks; snapshots keep the order of
            arrival.  In Flink, an element that finds no place stays outside, and the task waits; here it waits in the
            queue, so that the task need not.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final

from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus

# As in other operators: chunks of 1,000-2,000 records are best.
MAX_CHUNK_RECORDS: Final = 2_000

Control = Watermark | WatermarkStatus | CompletionMark


class PendingRecord:
    """A record in a queue; ``results`` is None until its call completed."""

    __slots__ = ("results", "segment", "timestamp", "value")

    def __init__(self, value: Any, timestamp: int | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.results: list[Any] | None = None
        self.segment: _Segment | None = None  # only in an unordered queue

    def __repr__(self) -> str:
        return f"<PendingRecord {'running' if self.results is None else 'complete'}>"


class AsyncQueue(ABC):
    """The base class of both orders; ``capacity`` (at least 1) counts the places, for records and control elements."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, f"a queue of {capacity} places"
        self.capacity = capacity
        self.num_left = 0  # elements that have left
        self._num_placed = 0
        self._waiting: deque[PendingRecord | Control] = deque()  # elements without a place

    def __len__(self) -> int:
        return self._num_placed + len(self._waiting)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._num_placed}/{self.capacity}, {len(self._waiting)} waiting>"

    @property
    def num_waiting(self) -> int:
        """The number of elements that wait for a place."""
        return len(self._waiting)

    def put_records(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> list[PendingRecord]:
        """Add records, in this order; returns those that have a place, so that their calls can start."""
        if timestamps is None:
            records = [PendingRecord(value, None) for value in values]
        else:
            records = [PendingRecord(value, timestamp) for value, timestamp in zip(values, timestamps, strict=True)]
        num_free = 0 if self._waiting else self.capacity - self._num_placed
        if len(records) > num_free:
            self._waiting.extend(records[num_free:])
            del records[num_free:]
        self._append_records(records)
        self._num_placed += len(records)
        return records

    def put_control(self, control: Control) -> None:
        """Add a control element."""
        if self._waiting or self._num_placed == self.capacity:
            self._waiting.append(control)
            return
        self._append_control(control)
        self._num_placed += 1

    def fill_places(self) -> list[PendingRecord]:
        """Give free places to the elements that wait for one; returns the records among them, so that their calls can
        start.
        """
        started: list[PendingRecord] = []
        waiting = self._waiting
        while waiting and self._num_placed < self.capacity:
            element = waiting.popleft()
            if isinstance(element, PendingRecord):
                self._append_records([element])
                started.append(element)
            else:
                self._append_control(element)
            self._num_placed += 1
        return started

    def complete(self, record: PendingRecord, results: list[Any]) -> None:
        """Set the results of a record, once; may be empty."""
        assert record.results is None, "a record is completed once"
        record.results = results
        self._note_complete(record)

    def next_element(self) -> Chunk | Control | None:
        """Remove and return what may leave now: about ``MAX_CHUNK_RECORDS`` results, or one control element; None if
        nothing may leave.
        """
        while True:
            control = self._pop_control()
            if control is not None:
                self._count_left(1)
                return control
            records = self._pop_complete()
            if not records:
                return None
            self._count_left(len(records))
            if chunk := _results_of(records):
                return chunk

    def _count_left(self, num_elements: int) -> None:
        self._num_placed -= num_elements
        self.num_left += num_elements

    def elements(self) -> list[Chunk | Control]:
        """Copy all elements, in order of arrival, for a snapshot; without completion marks, whose numbers start again
        with the job.
        """
        found: list[Chunk | Control] = []
        kept = (each for each in chain(self._in_order(), self._waiting) if not isinstance(each, CompletionMark))
        for _, elements in groupby(kept, _kind_of):
            run = list(elements)
            records = [each for each in run if isinstance(each, PendingRecord)]
            found += [_inputs_of(records)] if records else [each for each in run if not isinstance(each, PendingRecord)]
        return found

    def check_invariants(self) -> None:
        """Assert the invariants that are visible from outside."""
        assert 0 <= self._num_placed <= self.capacity, f"{self!r} is overfull"
        assert self._num_placed == sum(1 for _ in self._in_order()), f"{self!r} has lost count"
        assert not any(isinstance(each, PendingRecord) and each.results is not None for each in self._waiting), (
            "results without a call"
        )

    @abstractmethod
    def _append_records(self, records: list[PendingRecord]) -> None: ...

    @abstractmethod
    def _append_control(self, control: Control) -> None: ...

    @abstractmethod
    def _note_complete(self, record: PendingRecord) -> None: ...

    @abstractmethod
    def _pop_control(self) -> Control | None:
        """Remove the control element at the head, if everything before it has left."""

    @abstractmethod
    def _pop_complete(self) -> list[PendingRecord]:
        """Remove complete records that may leave together: all with timestamps, or all without."""

    @abstractmethod
    def _in_order(self) -> Iterator[PendingRecord | Control]:
        """All elements that have a place, in order of arrival."""


class OrderedAsyncQueue(AsyncQueue):
    """Results leave in the order of their records."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._elements: deque[PendingRecord | Control] = deque()

    def _append_records(self, records: list[PendingRecord]) -> None:
        self._elements.extend(records)

    def _append_control(self, control: Control) -> None:
        self._elements.append(control)

    def _note_complete(self, record: PendingRecord) -> None:
        return

    def _pop_control(self) -> Control | None:
        if not self._elements or isinstance(self._elements[0], PendingRecord):
            return None
        control = self._elements.popleft()
        assert not isinstance(control, PendingRecord), "the branch above handles records"
        return control

    def _pop_complete(self) -> list[PendingRecord]:
        def complete_head() -> Iterator[PendingRecord]:
            elements = self._elements
            while elements and isinstance(head := elements[0], PendingRecord) and head.results is not None:
                yield head
                elements.popleft()

        return _take_run(complete_head())

    def _in_order(self) -> Iterator[PendingRecord | Control]:
        return iter(self._elements)


class _Segment:
    """The records between two control elements; ``barrier`` is the one behind them, None for the last segment."""

    __slots__ = ("barrier", "complete", "records")

    def __init__(self) -> None:
        self.records: dict[PendingRecord, None] = {}  # those that have not left, in order of arrival
        self.complete: deque[PendingRecord] = deque()  # those of them that may leave, in order of completion
        self.barrier: Control | None = None


class UnorderedAsyncQueue(AsyncQueue):
    """Results leave when they are complete, but never across a watermark or status."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._segments: deque[_Segment] = deque([_Segment()])

    def _append_records(self, records: list[PendingRecord]) -> None:
        segment = self._segments[-1]
        for record in records:
            record.segment = segment
            segment.records[record] = None

    def _append_control(self, control: Control) -> None:
        self._segments[-1].barrier = control
        self._segments.append(_Segment())

    def _note_complete(self, record: PendingRecord) -> None:
        assert record.segment is not None, "the record is in a queue"
        record.segment.complete.append(record)

    def _pop_control(self) -> Control | None:
        segment = self._segments[0]
        if segment.records or segment.barrier is None:
            return None
        self._segments.popleft()
        return segment.barrier

    def _pop_complete(self) -> list[PendingRecord]:
        segment = self._segments[0]

        def complete() -> Iterator[PendingRecord]:
            while segment.complete:
                yield segment.complete[0]
                del segment.records[segment.complete.popleft()]

        return _take_run(complete())

    def _in_order(self) -> Iterator[PendingRecord | Control]:
        for segment in self._segments:
            yield from segment.records
            if segment.barrier is not None:
                yield segment.barrier


def create_async_queue(capacity: int, *, is_ordered: bool) -> AsyncQueue:
    """An empty queue."""
    return OrderedAsyncQueue(capacity) if is_ordered else UnorderedAsyncQueue(capacity)


def _take_run(complete: Iterator[PendingRecord]) -> list[PendingRecord]:
    """Records that fit into one chunk; advancing the iterator removes the record before."""
    run: list[PendingRecord] = []
    num_results = 0
    for record in complete:
        if run and (num_results >= MAX_CHUNK_RECORDS or (run[-1].timestamp is None) is not (record.timestamp is None)):
            break
        run.append(record)
        num_results += len(record.results or ())
    return run


def _results_of(records: list[PendingRecord]) -> Chunk | None:
    """The results with the timestamps of their records; None if there are no results."""
    values = [result for record in records for result in record.results or ()]
    if not values:
        return None
    if records[0].timestamp is None:
        return Chunk(values)
    return Chunk(values, [stamp for record in records for stamp in [_stamp(record)] * len(record.results or ())])


def _kind_of(element: PendingRecord | Control) -> bool | None:
    """Whether a record has a timestamp; None: the element is no record."""
    return element.timestamp is not None if isinstance(element, PendingRecord) else None


def _inputs_of(records: list[PendingRecord]) -> Chunk:
    values = [record.value for record in records]
    return Chunk(values) if records[0].timestamp is None else Chunk(values, [_stamp(record) for record in records])


def _stamp(record: PendingRecord) -> int:
    assert record.timestamp is not None, "records with and without a timestamp never share a chunk"
    return record.timestamp
