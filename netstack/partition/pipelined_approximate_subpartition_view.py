"""One of the readers of an approximate subpartition, which follow each other.

Side:       shared.  One thread polls; whoever makes the next reader retires this one.
Invariants: a reader that has retired finds nothing.
Source:     Flink ``PipelinedApproximateSubpartitionView``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from netstack.partition.buffer_availability_listener import BufferAvailabilityListener
from netstack.partition.pipelined_subpartition_view import PipelinedSubpartitionView
from netstack.partition.result_subpartition_view import BufferAndBacklog, SegmentRun

if TYPE_CHECKING:
    from netstack.partition.pipelined_approximate_subpartition import PipelinedApproximateSubpartition


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

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled, by this reader."""
        return not self._is_view_released and super().has_data(num_credits_available)

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
