"""One pass over a subpartition that lies in a file.

Side:       shared.  One thread polls; anybody releases.
Units:      backlog in data buffers.
Lock order: ``BoundedBlockingSubpartitionReader._lock`` is a leaf: files, listeners and the subpartition are called
    after it.
Source:     Flink ``BoundedBlockingSubpartitionReader``.  Readers learn at once of a release; they keep the file, but
            get nothing more.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.partition.bounded_data import BoundedData
from netstack.partition.buffer_availability_listener import BufferAvailabilityListener
from netstack.partition.result_subpartition import SubpartitionState
from netstack.partition.result_subpartition_view import BufferAndBacklog, SegmentRun
from netstack.wire.messages import DataType

if TYPE_CHECKING:
    from netstack.partition.bounded_blocking_subpartition import BoundedBlockingSubpartition

_RELEASED: Final = SubpartitionState.RELEASED


class BoundedBlockingSubpartitionReader:
    """One pass over a subpartition.

    Threading: one thread polls; everything else from any thread.  Who releases it meanwhile leaves the end to the
               thread that polls, so
    that nobody reads from a file that is closed.
    """

    def __init__(
        self, subpartition: "BoundedBlockingSubpartition", data: BoundedData, listener: BufferAvailabilityListener
    ) -> None:
        self.listener = listener
        self._subpartition = subpartition
        self._reader = data.create_reader(self._on_room)
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.
        self._is_polling = False  # Guarded by _lock.
        # Written by the polling thread; read anywhere, one pass stale is fine.
        self._backlog = subpartition.num_data_buffers
        self._sequence_number = 0

    def __repr__(self) -> str:
        state = "released" if self.is_released else "open"
        return (
            f"<BoundedBlockingSubpartitionReader {state}, {self._backlog} data buffers left of {self._subpartition!r}>"
        )

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None at the end, without room to read it, or when it was
        released.

        Raises:
            ResourceBrokenError: the file cannot be read.
        """
        with self._lock:
            if self.is_released:
                return None
            self._is_polling = True
        try:
            return self._poll()
        finally:
            with self._lock:
                self._is_polling = False
                is_late = self._is_view_released
            if is_late:
                self._end()

    def _poll(self) -> BufferAndBacklog | None:
        buffer = self._reader.next_buffer()
        if buffer is None:
            return None
        if buffer.is_buffer:
            self._backlog -= 1
        following = self._reader.next
        next_data_type = following.data_type if following is not None and self._reader.has_room else DataType.NONE
        sequence_number = self._sequence_number
        self._sequence_number += 1
        return BufferAndBacklog(buffer, self._backlog, next_data_type, sequence_number)

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """``next_buffer``."""
        return self.next_buffer

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """None: every buffer is a part of the file."""
        return None

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """None: files are the loop's business."""
        return None

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled: with credit anything, without only an event."""
        return self.availability(num_credits_available > 0)[0]

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers are left."""
        following = self._reader.next
        if following is None or self.is_released or not self._reader.has_room:
            return False, self._backlog
        return is_credit_available or not following.data_type.is_buffer, self._backlog

    def _on_room(self) -> None:
        if not self._is_view_released:
            self.listener.notify_data_available()

    @property
    def backlog(self) -> int:
        """How many data buffers are left."""
        return self._backlog

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are left, the end included."""
        return self._backlog + (self._reader.next is not None)

    def peek_next_subpartition(self) -> int:
        """The one subpartition that it reads."""
        return self._subpartition.index

    def resume_consumption(self) -> None:
        """Not here: nothing blocks a bounded result.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"blocking subpartition {self._subpartition.index} is resumed, but not blocked")

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Nothing: all buffers are written already."""

    def send_empty_buffers(self) -> None:
        """Nothing: empty buffers are never written."""

    def notify_required_segment_id(self, subpartition: int, segment_id: int) -> None:
        """Nothing: it has no segments."""

    @property
    def is_released(self) -> bool:
        """Whether reader or producer ended it."""
        return self._is_view_released or self._subpartition.state is _RELEASED

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before it was released as a whole."""
        return self._subpartition.parent.failure_cause

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        self._subpartition.parent.on_all_data_processed(self._subpartition.index)

    def hand_back(self) -> None:
        """``release``: others may come in any case."""
        self.release()

    def release(self) -> None:
        """Read no more; the second call does nothing."""
        with self._lock:
            if self._is_view_released:
                return
            self._is_view_released = True
            is_polling = self._is_polling
        if not is_polling:
            self._end()

    def _end(self) -> None:
        has_read_all = self._reader.next is None
        self._reader.close()
        self._subpartition.on_reader_released(self, has_read_all=has_read_all)
