"""A pipelined subpartition that outlives its consumer, for approximate recovery, and its readers, which follow each
other.

Side:       shared.  One thread polls; whoever makes the next reader retires this one.
Invariants: one view at a time; a new one takes the place of the last, starts at a whole record and with sequence number
            0; from then on the last one finds and takes nothing more, whatever it was about to do: it says who it is
            when it polls and resumes, and ``PipelinedSubpartition`` compares under its lock.
Lock order: ``PipelinedSubpartition._lock``, then that of the view which retires.
Source:     Flink ``PipelinedApproximateSubpartition`` and its view.  Unlike there, the rest of a record is skipped also
            if the first reader had read all of its beginning before that buffer was finished.
Absent:     recovery of channel state, as in Flink: approximate recovery and unaligned checkpoints exclude each other.
"""

from collections.abc import Callable

from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_subpartition import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    PipelinedSubpartitionView,
    SegmentRun,
)


class PipelinedApproximateSubpartitionView(PipelinedSubpartitionView):
    """One of the readers that follow each other."""

    __slots__ = ()

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return None if self._is_view_released else self._subpartition.poll(self)

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
            self._subpartition.resume_consumption(self)

    def release(self) -> None:
        """Read no more; what is queued is the next reader's."""
        self.retire()


class PipelinedApproximateSubpartition(PipelinedSubpartition):
    """A subpartition that a new consumer may go on reading when the last one failed: some records are lost then, but
    none is torn.

    Life cycle: released by its partition only; a view that goes leaves everything queued.
    """

    @property
    def takes_contents(self) -> bool:
        """Never: the reader that comes next may be elsewhere."""
        return False

    def _new_view_locked(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView:
        former = self._view
        if former is not None:
            former.retire()
            self._skips_partial_record = True
            self._is_blocked = False
            self._sequence_number = 0
        return PipelinedApproximateSubpartitionView(self, listener)
