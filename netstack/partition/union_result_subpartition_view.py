"""Several subpartitions read as one.

Side:       shared.
Invariants: buffers of one subpartition keep their order; buffers that may hold parts of one record follow each other,
            so the next subpartition has its turn only after an event or a buffer that ends with a record; each
            subpartition that was told of is read or stands in line.  Once the producer released one of them nothing can
            be polled any more, and the listener was told.
Units:      backlog in data buffers.
Lock order: ``UnionResultSubpartitionView._lock`` is a leaf: views are polled, and the listener is called, outside it.
            One thread at a time looks ahead; whoever finds another one doing so goes by what is there, and is told
            afterwards.
Source:     Flink ``UnionResultSubpartitionView``, ``RoundRobinSubpartitionSelector``.  What was told before all views
            existed is kept and passed on by ``start``.  A range that cannot be had consumes nothing; in Flink it
            consumes the subpartitions that it got.
"""

import threading
from collections import deque
from enum import Enum, unique
from typing import Final

from netstack.availability import run_all
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.late import dataclass
from netstack.partition.result_subpartition import BufferAndBacklog, BufferAvailabilityListener, ResultSubpartitionView
from netstack.wire.messages import DataType

CACHE_CAPACITY: Final = 10  # Flink's; looking ahead tells the next data type and the backlog


@unique
class UnionViewState(Enum):
    """The life of a union.

    What was told while it is ``OPENING`` is passed on by ``start``; from ``DROPPED`` on nothing can be polled::

        OPENING -- start --> STARTED -- the producer released a subpartition --> DROPPED -- release --> RELEASED
          |                     `---------------------- release ---------------------------------------^
          `-- as STARTED
    """

    OPENING = "opening"
    STARTED = "open"
    DROPPED = "dropped"
    RELEASED = "released"


_CAN_BE_READ: Final = (UnionViewState.OPENING, UnionViewState.STARTED)


@dataclass(slots=True, eq=False)
class _ListenerOfOne:
    """Tells the union which of its views was told."""

    union: "UnionResultSubpartitionView"
    index: int

    def notify_data_available(self) -> None:
        """The subpartition became readable, or was released."""
        self.union.on_data_available(self.index)

    def notify_priority_event(self, sequence_number: int) -> None:
        """The subpartition has a priority event at its head; in a union it has no priority over the other
        subpartitions.
        """
        self.union.on_data_available(self.index)


class UnionResultSubpartitionView(ResultSubpartitionView):
    """The reader's end of a range of subpartitions.

    Threading: one thread polls; everything else from any thread.
    Life cycle: ``UnionViewState``.  Made; a view added for each subpartition, under the listener made for it; ``start``
        or ``hand_back``; ``release``.
    """

    def __init__(self, listener: BufferAvailabilityListener, subpartitions: range) -> None:
        self.listener = listener
        self._subpartitions = subpartitions
        self._views: dict[int, ResultSubpartitionView] = {}  # Complete before ``start``.
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._ready: dict[int, None] = {}  # who was told and is not being read: an ordered set
        self._cache: deque[tuple[BufferAndBacklog, int]] = deque()
        self._unfinished: int | None = None  # whose record may go on in its next buffer
        self._sequence_number = 0
        self._is_looking_ahead = False
        self._was_missed = False  # another thread came meanwhile
        self._state = UnionViewState.OPENING  # A bare read may be one pass stale.

    def __repr__(self) -> str:
        return (
            f"<UnionResultSubpartitionView {self._subpartitions} {self._state.value}, {len(self._cache)} buffers ahead>"
        )

    def listener_of(self, subpartition: int) -> BufferAvailabilityListener:
        """Who is to be told about ``subpartition``."""
        return _ListenerOfOne(self, subpartition)

    def add_view(self, subpartition: int, view: ResultSubpartitionView) -> None:
        """Read ``view`` as ``subpartition``; it may have told already."""
        self._views[subpartition] = view

    def start(self) -> None:
        """All views are there: pass on what was told meanwhile."""
        is_gone = any(view.is_released for view in self._views.values())
        with self._lock:
            cached = self._drop_locked() if is_gone else []
            if self._state is UnionViewState.OPENING:
                self._state = UnionViewState.STARTED
            is_ready = bool(self._ready)
            is_told = is_ready or is_gone
        self._recycle_and_tell(cached, is_told=is_told)

    def on_data_available(self, subpartition: int) -> None:
        """For the listeners of the single views."""
        view = self._views.get(subpartition)
        is_gone = view is not None and view.is_released
        cached: list[NetworkBuffer] = []
        with self._lock:
            if self._state not in _CAN_BE_READ:
                return
            is_told = self._state is UnionViewState.STARTED
            if is_gone:  # told even if it stands in line, where the reader may not look again
                cached = self._drop_locked()
            elif subpartition in self._ready:
                return
            self._ready[subpartition] = None
        self._recycle_and_tell(cached, is_told=is_told)

    def _drop_locked(self) -> list[NetworkBuffer]:
        """Nothing is polled any more; returns what to recycle outside the lock."""
        self._state = UnionViewState.DROPPED
        cached = [found.buffer for found, _ in self._cache]
        self._cache.clear()
        return cached

    def _recycle_and_tell(self, cached: list[NetworkBuffer], *, is_told: bool) -> None:
        run_all([*(buffer.recycle for buffer in cached), *([self.listener.notify_data_available] if is_told else [])])

    # ---------------------------------------------------------------- reading

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        self._look_ahead()
        with self._lock:
            if not self._cache:
                return None
            found, _ = self._cache.popleft()
            next_data_type = self._cache[0][0].buffer.data_type if self._cache else DataType.NONE
            sequence_number = self._sequence_number
            self._sequence_number += 1
            return BufferAndBacklog(found.buffer, self._backlog_locked(), next_data_type, sequence_number)

    def peek_next_subpartition(self) -> int:
        """Which subpartition the next element belongs to; -1 if there is none."""
        self._look_ahead()
        with self._lock:
            return self._cache[0][1] if self._cache else -1

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers were looked at ahead."""
        self._look_ahead()
        with self._lock:
            if not self._cache:
                return False, 0
            return is_credit_available or not self._cache[0][0].buffer.is_buffer, self._backlog_locked()

    def _look_ahead(self) -> None:
        with self._lock:
            if self._is_looking_ahead:
                self._was_missed = True
                return
            self._is_looking_ahead = True
        try:
            while (subpartition := self._next_in_line()) is not None:
                found = self._views[subpartition].next_buffer()
                if found is not None:  # else it will tell when there is something
                    self._keep(found, subpartition)
        finally:
            with self._lock:
                self._is_looking_ahead = False
                was_missed, self._was_missed = self._was_missed, False
        if was_missed:
            self.listener.notify_data_available()

    def _next_in_line(self) -> int | None:
        """Whose turn it is; taken out of the line before it is polled, so that nothing it tells meanwhile is lost."""
        with self._lock:
            if self.is_released or len(self._cache) == CACHE_CAPACITY:
                return None
            if self._unfinished is not None:
                subpartition = self._unfinished if self._unfinished in self._ready else None
            else:
                subpartition = next(iter(self._ready), None)
            if subpartition is not None:
                del self._ready[subpartition]
            return subpartition

    def _keep(self, found: BufferAndBacklog, subpartition: int) -> None:
        with self._lock:
            is_late = self.is_released
            if not is_late:
                self._unfinished = subpartition if found.buffer.data_type is DataType.DATA_BUFFER else None
                self._cache.append((found, subpartition))
                if found.next_data_type is not DataType.NONE:
                    self._ready[subpartition] = None
        if is_late:
            found.buffer.recycle()

    def _backlog_locked(self) -> int:
        return sum(found.buffer.is_buffer for found, _ in self._cache)

    # ---------------------------------------------------------------- for the producer, and the end

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued."""
        return len(self._cache) + sum(view.num_queued_buffers for view in self._views.values())

    def resume_consumption(self) -> None:
        """Not for several subpartitions: nobody could say which of them is meant.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"subpartitions {self._subpartitions} are read as one, and cannot be resumed")

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes``, in every subpartition."""
        for view in self._views.values():
            view.notify_new_buffer_size(size_bytes)

    def send_empty_buffers(self) -> None:
        """Hand out empty buffers too, of every subpartition."""
        for view in self._views.values():
            view.send_empty_buffers()

    def notify_required_segment_id(self, subpartition: int, segment_id: int) -> None:
        """Pass it on to the view of ``subpartition``."""
        view = self._views.get(subpartition)
        if view is not None:
            view.notify_required_segment_id(subpartition, segment_id)

    @property
    def is_released(self) -> bool:
        """Whether the reader ended it, or the producer any of its subpartitions."""
        return self._state not in _CAN_BE_READ

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before everything was consumed."""
        return next((view.failure_cause for view in self._views.values() if view.failure_cause is not None), None)

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed, in every subpartition."""
        run_all([view.acknowledge_all_data_processed for view in self._views.values()])

    def hand_back(self) -> None:
        """End a union that was not started: not all of its subpartitions can be had, and others may read those that it
        has.
        """
        run_all([view.hand_back for view in self._views.values()])

    def release(self) -> None:
        """Mark every subpartition consumed, and drop what is left; the second call does nothing."""
        with self._lock:
            if self._state is UnionViewState.RELEASED:
                return
            cached = self._drop_locked()
            self._state = UnionViewState.RELEASED
        run_all([*(buffer.recycle for buffer in cached), *(view.release for view in self._views.values())])
