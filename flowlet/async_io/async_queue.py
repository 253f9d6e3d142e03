"""Keeps records until their results arrive, together with the control elements between them: watermarks, statuses and
marks.

Side:       pure.  Driven by its operator.
Invariants: at most ``capacity`` elements have a place; the others wait for one, in order of arrival.  A record leaves
            once, after ``complete``.  In both orders, control elements leave after all records that came before them,
            and before all that came after.
Source:     Flink ``StreamElementQueue``, ``OrderedStreamElementQueue``, ``UnorderedStreamElementQueue`` with its
            segments, where control elements take a place, too.  Results leave in chunks; snapshots keep the order of
            arrival.  In Flink, an element that finds no place stays outside, and the task waits; here it waits in the
            queue, so that the task need not.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final

from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus
from netstack.late import dataclass

# As in other operators: chunks of 1,000-2,000 records are best.
MAX_CHUNK_RECORDS: Final = 2_000

Control = Watermark | WatermarkStatus | CompletionMark


@dataclass(eq=False, repr=False, slots=True)
class PendingRecord:
    """A record in a queue, through all attempts of its call; ``results`` is None until it completed."""

    value: Any
    timestamp: int | None
    results: list[Any] | None = None
    segment: "_Segment | None" = None  # set when it has a place
    num_attempts: int = 0
    is_timed_out: bool = False  # then the running call, if any, is that of ``timeout``
    call: Any = None  # the call whose outcome counts
    timer: Any = None  # set while it waits for its next attempt
    deadline: Any = None  # that of all attempts together, while there are no results

    def __repr__(self) -> str:
        return f"<PendingRecord {'running' if self.results is None else 'complete'}>"


class _Segment:
    """The records between two control elements; ``barrier`` is the one behind them; None: the last segment."""

    __slots__ = ("barrier", "complete", "records", "running")

    def __init__(self) -> None:
        self.complete: deque[PendingRecord] = deque()  # the records that may leave, in the order in which they leave
        self.running: deque[PendingRecord] = deque()  # ordered queues only: the other records
        self.records: dict[PendingRecord, None] = {}  # unordered ones only: all that have not left, in order of arrival
        self.barrier: Control | None = None


class AsyncQueue:
    """The records and control elements of one operator.

    Args:
        capacity: the places, at least 1, for records and control elements.
        is_ordered: results leave in the order of their records; otherwise when they are complete, but never across a
            control element.
    """

    def __init__(self, capacity: int, *, is_ordered: bool) -> None:
        assert capacity > 0, f"a queue of {capacity} places"
        self.capacity = capacity
        self.num_left = 0  # elements that have left
        self._is_ordered = is_ordered
        self._num_placed = 0
        self._segments: deque[_Segment] = deque([_Segment()])
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
        """Set the results of a record, once; the list may be empty."""
        assert record.results is None, "a record is completed once"
        record.results = results
        segment = record.segment
        assert segment is not None, "the record is in a queue"
        if not self._is_ordered:
            segment.complete.append(record)
            return
        running = segment.running
        while running and running[0].results is not None:
            segment.complete.append(running.popleft())

    def next_element(self) -> Chunk | Control | None:
        """Remove and return the next elements that may leave: about ``MAX_CHUNK_RECORDS`` results, or one control
        element; None if no element may leave.
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
        """Copy all elements but the completion marks, in order of arrival, for a snapshot; the numbers of marks start
        again with the job.
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

    def _append_records(self, records: list[PendingRecord]) -> None:
        segment = self._segments[-1]
        for record in records:
            record.segment = segment
        if self._is_ordered:
            segment.running.extend(records)
        else:
            segment.records.update(dict.fromkeys(records))

    def _append_control(self, control: Control) -> None:
        self._segments[-1].barrier = control
        self._segments.append(_Segment())

    def _pop_control(self) -> Control | None:
        """Remove the control element at the head, if all records before it have left."""
        segment = self._segments[0]
        if segment.barrier is None or segment.records or segment.running or segment.complete:
            return None
        self._segments.popleft()
        return segment.barrier

    def _pop_complete(self) -> list[PendingRecord]:
        """Remove complete records that may leave together: all with timestamps, or all without."""
        segment = self._segments[0]

        def complete() -> Iterator[PendingRecord]:
            while segment.complete:
                yield segment.complete[0]
                record = segment.complete.popleft()
                if not self._is_ordered:
                    del segment.records[record]

        return _take_run(complete())

    def _in_order(self) -> Iterator[PendingRecord | Control]:
        """All elements that have a place, in order of arrival."""
        for segment in self._segments:
            yield from segment.records or chain(segment.complete, segment.running)
            if segment.barrier is not None:
                yield segment.barrier


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
