"""The reader's end of a pipelined subpartition.

Side:       shared.  One thread polls, the event loop's or the consuming task's; anybody releases.
Hot path:   none of its own: readers take ``poller`` and ``run_poller``, which are methods of the subpartition.
Lock order: ``PipelinedSubpartition._lock`` is never held while its own lock is taken, nor the other way round, but for
            the approximate subpartition, which retires a view under its lock.
Source:     Flink ``PipelinedSubpartitionView``.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from netstack.errors import ProducerFailedError
from netstack.partition.result_subpartition import SubpartitionState
from netstack.partition.result_subpartition_view import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    ResultSubpartitionView,
    SegmentRun,
)

if TYPE_CHECKING:
    from netstack.partition.pipelined_subpartition import PipelinedSubpartition

_RELEASED: Final = SubpartitionState.RELEASED  # a lookup in the enum would cost more than the comparison


class PipelinedSubpartitionView(ResultSubpartitionView):
    """The reader's end of a subpartition.

    Threading: one thread polls; ``release`` and the properties from any thread.
    """

    __slots__ = ("_is_view_released", "_lock", "_subpartition", "listener", "takes_contents")

    def __init__(self, subpartition: "PipelinedSubpartition", listener: BufferAvailabilityListener) -> None:
        self._subpartition = subpartition
        self.listener = listener
        self.takes_contents = getattr(listener, "takes_contents", False)
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.

    def __repr__(self) -> str:
        return f"<PipelinedSubpartitionView {'released' if self.is_released else 'open'} of {self._subpartition!r}>"

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return self._subpartition.poll()

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """``next_buffer`` without a detour."""
        return self._subpartition.poll

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """``poll_run``; a compressor looks at each buffer."""
        return None if self._subpartition.is_compressing else self._subpartition.poll_run

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """``next_buffer``, if all there is to poll is one data buffer of at most so many bytes."""
        return self._subpartition.poll_little(max_bytes)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers; one lock round."""
        return self._subpartition.availability(is_credit_available)

    @property
    def backlog(self) -> int:
        """How many data buffers can be polled now."""
        return self._subpartition.backlog

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued."""
        return self._subpartition.num_queued_buffers

    def peek_next_subpartition(self) -> int:
        """The one subpartition that it reads."""
        return self._subpartition.index

    def resume_consumption(self) -> None:
        """Go on after a blocking event."""
        self._subpartition.resume_consumption()

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes`` from the next one on."""
        self._subpartition.set_buffer_size(size_bytes)

    def send_empty_buffers(self) -> None:
        """Hand out finished buffers without unread bytes too."""
        self._subpartition.send_empty_buffers()

    @property
    def is_released(self) -> bool:
        """Whether reader or producer ended it."""
        return self._is_view_released or self._subpartition.state is _RELEASED

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before everything was consumed."""
        return self._subpartition.parent.failure_cause

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        self._subpartition.parent.on_all_data_processed(self._subpartition.index)

    def retire(self) -> bool:
        """Mark the view as released, and nothing else; False if it was."""
        with self._lock:
            was_open = not self._is_view_released
            self._is_view_released = True
        return was_open

    def hand_back(self) -> None:
        """End a view that nothing was polled from: another one may take its place, and finds everything."""
        if self.retire():
            self._subpartition.take_back(self)

    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""
        if self.retire():
            self._subpartition.release_by_view()
