"""A pipelined subpartition that outlives its consumer, for approximate recovery.

Side:       shared.
Invariants: one view at a time; a new one takes the place of the last, starts at a whole record and with sequence number 0.
Source:     Flink ``PipelinedApproximateSubpartition`` and its view.
Absent:     recovery of channel state, as in Flink: approximate recovery and unaligned checkpoints exclude each other.
"""

from collections.abc import Callable

from netstack.partition.pipelined import PipelinedSubpartition, PipelinedSubpartitionView
from netstack.partition.view import BufferAndBacklog, BufferAvailabilityListener, SegmentRun


class PipelinedApproximateSubpartition(PipelinedSubpartition):
    """A subpartition that a new consumer may go on reading when the last one failed: some records are lost then, but none is torn.

    Life cycle: released by its partition only; a view that goes leaves everything queued.
    """

    __slots__ = ()

    def _new_view_locked(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView:
        former = self._view
        if former is not None:
            former.retire()
            self._skips_partial_record = True
            self._is_blocked = False
            self._sequence_number = 0
        return PipelinedApproximateSubpartitionView(self, listener)


class PipelinedApproximateSubpartitionView(PipelinedSubpartitionView):
    """One of the readers that follow each other."""

    __slots__ = ()

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return None if self._is_view_released else super().next_buffer()

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """``next_buffer``: a reader that has retired must find nothing."""
        return self.next_buffer

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """None: a reader that has retired must find nothing."""
        return None

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled, by this reader."""
        return not self._is_view_released and super().has_data(num_credits_available)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, by this reader, and how many data buffers."""
        return (False, 0) if self._is_view_released else super().availability(is_credit_available)

    def resume_consumption(self) -> None:
        """Go on after a blocking event, if this reader is the one that was blocked."""
        if not self._is_view_released:
            super().resume_consumption()

    def release(self) -> None:
        """Read no more; what is queued is the next reader's."""
        self.retire()
