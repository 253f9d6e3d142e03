"""A pipelined subpartition that outlives its consumer, for approximate recovery, and its readers, which follow each
other.

Side:       shared.  One thread polls; whoever makes the next reader retires this one.
Invariants: one view at a time; a new one takes the place of the last, starts at a whole record and with sequence number
            0; from then on the last one finds and takes nothing more, whatever it was about to do.
Lock order: ``_reader_lock``, then ``PipelinedSubpartition._lock``, then that of the view.  A partition that compresses
            gives a buffer back to its pool under the first one; no job makes such a partition.
Source:     Flink ``PipelinedApproximateSubpartition`` and its view.  Unlike there, the rest of a record is skipped also
            if the first reader had read all of its beginning before that buffer was finished.
Absent:     recovery of channel state, as in Flink: approximate recovery and unaligned checkpoints exclude each other.
"""

import threading
from collections.abc import Callable, Sequence

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.partition.channel_state import InFlightData
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_subpartition import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    PipelinedSubpartitionView,
    SegmentRun,
    SubpartitionParent,
)


class PipelinedApproximateSubpartitionView(PipelinedSubpartitionView):
    """One of the readers that follow each other."""

    __slots__ = ("_readers",)

    def __init__(self, subpartition: "PipelinedApproximateSubpartition", listener: BufferAvailabilityListener) -> None:
        super().__init__(subpartition, listener)
        self._readers = subpartition

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return None if self._is_view_released else self._readers.poll_as(self)

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """``next_buffer``: a reader that has retired must find nothing."""
        return self.next_buffer

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """None: a reader that has retired must find nothing."""
        return None

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """None: a reader that has retired must find nothing."""
        return None

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, by this reader, and how many data buffers."""
        return (False, 0) if self._is_view_released else super().availability(is_credit_available)

    def resume_consumption(self) -> None:
        """Go on after a blocking event, if this reader is the one that was blocked."""
        if not self._is_view_released:
            self._readers.resume_consumption(self)

    def release(self) -> None:
        """Read no more; what is queued is the next reader's."""
        self.retire()


class PipelinedApproximateSubpartition(PipelinedSubpartition):
    """A subpartition that a new consumer may go on reading when the last one failed: some records are lost then, but
    none is torn.

    Life cycle: released by its partition only; a view that goes leaves everything queued.
    """

    def __init__(
        self,
        index: int,
        parent: SubpartitionParent,
        *,
        sends_empty_buffers: bool = False,
        partition_index: int = 0,
        compressor: BufferCompressor | None = None,
    ) -> None:
        super().__init__(
            index,
            parent,
            sends_empty_buffers=sends_empty_buffers,
            partition_index=partition_index,
            compressor=compressor,
        )
        self._reader_lock = threading.Lock()
        self._postponed: list[tuple[Sequence[BufferConsumer], InFlightData | None]] = []  # Guarded by _reader_lock.

    @property
    def takes_contents(self) -> bool:
        """Never: the reader that comes next may be elsewhere."""
        return False

    def poll_as(self, reader: PipelinedSubpartitionView) -> BufferAndBacklog | None:
        """``poll``, but None for a reader whose place another one has taken."""
        with self._reader_lock:
            found = self.poll() if reader is self._view else None
            postponed, self._postponed = self._postponed, []
        for consumed, in_flight in postponed:
            super()._after_poll(consumed, in_flight)
        return found

    def _after_poll(self, consumed: Sequence[BufferConsumer], in_flight: InFlightData | None) -> None:
        self._postponed.append((consumed, in_flight))

    def _create_view(
        self, listener: BufferAvailabilityListener
    ) -> tuple[PipelinedSubpartitionView | None, list[Callable[[], object]]]:
        with self._reader_lock:
            return super()._create_view(listener)

    def _new_view_locked(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView:
        former = self._view
        if former is not None:
            former.retire()
            self._skips_partial_record = True
            self._is_blocked = False
            self._sequence_number = 0
        return PipelinedApproximateSubpartitionView(self, listener)
