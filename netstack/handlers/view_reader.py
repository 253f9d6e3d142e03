"""The server's reader of one subpartition on behalf of one remote receiver.

Side:   loop, except ``notify_data_available``, which any thread calls.
Source: Flink ``CreditBasedSequenceNumberingViewReader``; sequence numbers come from the subpartition (Flink 1.20 and later).
Absent: backlog announcements, ``ResumeConsumption``, ``NewBufferSize``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from netstack.flow.credit import SenderCredit
from netstack.ids import InputChannelID
from netstack.partition.view import BufferAndBacklog, ResultSubpartitionView

if TYPE_CHECKING:
    from netstack.handlers.request_queue import PartitionRequestQueue


class CreditBasedSequenceNumberingViewReader:
    """Credit, view and place in the queue of one receiver.

    Life cycle: made when a ``PartitionRequest`` arrives; gets its view at once or when the partition is registered; ends with ``release``.
    """

    __slots__ = ("_notify", "_view", "credit", "is_released", "on_release", "queue", "receiver")

    def __init__(self, receiver: InputChannelID, initial_credit: int, queue: "PartitionRequestQueue") -> None:
        self.receiver = receiver
        self.credit = SenderCredit(initial_credit)
        self.queue = queue
        self.is_released = False
        self.on_release: Callable[[], None] | None = None  # stops waiting for a partition that is not there yet
        self._view: ResultSubpartitionView | None = None
        self._notify = queue.notify_reader_non_empty_threadsafe

    def __repr__(self) -> str:
        state = "released" if self.is_released else "waiting for its partition" if self._view is None else "open"
        return f"<ViewReader {self.receiver.hex()[:8]} {state}, {self.credit!r}>"

    def notify_data_available(self) -> None:
        """The subpartition became readable; any thread."""
        self._notify(self)

    def notify_priority_event(self, sequence_number: int) -> None:
        """The head of the subpartition is a priority event; any thread."""
        self._notify(self)

    def set_view(self, view: ResultSubpartitionView) -> None:
        """Start reading ``view``."""
        assert self._view is None, "a reader has one view"
        self._view = view

    def is_available(self) -> bool:
        """Whether the next element may be sent: there is credit, or it is an event, or the producer's failure is to be told."""
        view = self._view
        return view is not None and (view.has_data(self.credit.available) or view.is_released)

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, paid for if it is a data buffer; None if there is none."""
        assert self._view is not None, "an available reader has a view"
        next_one = self._view.next_buffer()
        if next_one is not None and next_one.buffer.is_buffer:
            self.credit.spend()
        return next_one

    @property
    def failure_cause(self) -> BaseException | None:
        """Why the producer released the view, if it did so."""
        view = self._view
        return view.failure_cause if view is not None and view.is_released else None

    def acknowledge_all_data_processed(self) -> None:
        """The receiver has processed everything up to the end of data."""
        if self._view is not None:
            self._view.acknowledge_all_data_processed()

    def release(self) -> None:
        """Give the subpartition back; the second call does nothing."""
        if self.is_released:
            return
        self.is_released = True
        if self.on_release is not None:
            self.on_release()
        if self._view is not None:
            self._view.release()
