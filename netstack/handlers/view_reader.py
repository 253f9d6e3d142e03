"""Reads one subpartition, or a range of them, for one remote receiver.

Side:       loop, except ``notify_data_available`` and ``notify_priority_event``, which any thread calls.  Hot path.
            A thread that polls, spends credit or takes credit back holds the turn of the connection (``DirectWriter``).
Invariants: data buffers polled never exceed the credit granted.  A receiver without exclusive buffers (initial credit
            0) has no credit after ``resume_consumption``: it released its floating buffers while the subpartition was
            blocked.
Units:      credit and backlog in buffers.
Source:     Flink ``CreditBasedSequenceNumberingViewReader``; sequence numbers come from the subpartition (Flink 1.20
            and later).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from netstack.flow.credit import SenderCredit
from netstack.late import dataclass
from netstack.log_lines import shown_state
from netstack.partition.result_subpartition import BufferAndBacklog, ResultSubpartitionView, SegmentRun
from netstack.wire.messages import DataType, PartitionRequest

if TYPE_CHECKING:
    from netstack.handlers.partition_request_queue import PartitionRequestQueue

SEVERAL = -1
"""``subpartition`` of a reader of a range: each element names its own."""


@dataclass(frozen=True, slots=True)
class ViewReaderStatistics:
    """The state of one reader, for a dump."""

    receiver: str
    state: str
    """``waiting`` for its partition, ``open``, or ``released``."""
    num_credits_available: int
    num_credits_granted: int
    num_buffers_sent: int
    backlog: int
    """Data buffers that could be sent with enough credit."""
    num_queued_buffers: int
    is_blocked: bool
    """Whether a blocking event was sent and the receiver has not resumed."""
    is_queued: bool
    """Whether it waits for its turn."""
    last_sequence_number: int
    """Of the last element sent; -1 before the first."""


class CreditBasedSequenceNumberingViewReader:
    """The reader of one receiver: its credit and its view.

    Life cycle: made by a ``PartitionRequest``; gets its view when the partition is registered; ends with ``release``.
    """

    def __init__(self, request: PartitionRequest, queue: "PartitionRequestQueue") -> None:
        self.request = request
        self.receiver = request.receiver
        self.credit = SenderCredit(request.credit)
        self.is_released = False
        self.is_blocked = False
        self.last_sequence_number = -1
        self.on_release: Callable[[], None] | None = None  # stops the wait for an unregistered partition
        self._initial_credit = request.credit
        first = request.first_subpartition
        last = request.last_subpartition
        self.subpartition = first if first == last else SEVERAL
        self._num_unended = last - first + 1  # subpartitions whose end was not sent
        self._view: ResultSubpartitionView | None = None
        self._poll_run: Callable[[int], SegmentRun | None] | None = None
        self.notify_data_available = partial(queue.notify_reader_non_empty_threadsafe, self)
        """Hear that the subpartition became readable; any thread."""

    def __repr__(self) -> str:
        return f"<ViewReader {self.receiver.hex()[:8]} {self._state}, {self.credit!r}>"

    @property
    def _state(self) -> str:
        return shown_state("open", released=self.is_released, waiting=self._view is None)

    # ---------------------------------------------------------------- the producer's side

    def notify_priority_event(self, sequence_number: int) -> None:
        """Hear that the head of the subpartition is a priority event; any thread."""
        self.notify_data_available()

    def set_view(self, view: ResultSubpartitionView) -> None:
        """Start reading ``view``; for a receiver without exclusive buffers the view must send empty buffers, too."""
        assert self._view is None, "a reader has one view"
        # The receiver keeps room for each buffer of the backlog; for a skipped one it would keep that room for ever.
        if self._initial_credit == 0:
            view.send_empty_buffers()
        self._poll_run = view.poll_run
        self._view = view  # last: the producer may notify already, and the loop polls a reader as soon as it has a view

    # ---------------------------------------------------------------- the queue

    def availability(self) -> tuple[bool, int]:
        """Whether the next element may be sent (credit is available, or it is an event or a
        failure), and the backlog.
        """
        view = self._view
        if view is None:
            return False, 0
        is_available, backlog = view.availability(self.credit.available > 0)
        # A released view counts as available: the pass that polls it finds the failure, and tells the receiver.
        return is_available or view.is_released, backlog

    @property
    def needs_backlog_announcement(self) -> bool:
        """Whether the receiver must be told of the backlog before it grants credit."""
        return self._initial_credit == 0 and self.credit.available == 0

    def next_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """Return the next element if it is the only one, a data buffer of at most ``max_bytes``, and paid for; else
        None.

        The caller holds the turn.
        """
        view, credit = self._view, self.credit
        # Before the poll: a buffer that was taken out cannot be put back.
        if view is None or self.is_released or credit.spent >= credit.granted:
            return None
        found = view.poll_little(max_bytes)
        if found is not None:
            credit.spent += 1
        return found

    def peek_next_subpartition(self) -> int:
        """Return the subpartition of the next element of a reader of a range."""
        assert self._view is not None, "an available reader has a view"
        return self._view.peek_next_subpartition()

    def next_buffer(self) -> BufferAndBacklog | None:
        """Return the next element, or None; a data buffer spends one credit."""
        assert self._view is not None, "an available reader has a view"
        next_one = self._view.next_buffer()
        if next_one is None:
            return None
        buffer = next_one[0]
        if buffer.is_buffer:
            credit = self.credit
            # A bug of ours; the segment must go home before the error ends this reader.
            if credit.spent >= credit.granted:
                buffer.recycle()
                credit.spend()  # raises
            credit.spent += 1
        elif buffer.data_type.is_blocking_upstream:
            self.is_blocked = True
        elif buffer.data_type is DataType.END_OF_PARTITION:
            self._num_unended -= 1
        return next_one

    def next_run(self, max_segments: int) -> SegmentRun | None:
        """Return up to ``max_segments`` whole segments, each of which spends one credit; None: use ``next_buffer``."""
        poll_run, credit = self._poll_run, self.credit
        num_credits = credit.granted - credit.spent
        if poll_run is None or num_credits <= 0:
            return None
        # Each segment spends a credit: a receiver that gets more than it granted has no room, and ends the channel.
        run = poll_run(min(max_segments, num_credits))
        if run is not None:
            credit.spent += len(run[0])
        return run

    @property
    def failure_cause(self) -> BaseException | None:
        """The producer's failure that released the view, or None."""
        view = self._view
        return view.failure_cause if view is not None and view.is_released else None

    # ---------------------------------------------------------------- orders of the receiver

    @property
    def has_ended(self) -> bool:
        """Whether the end of every subpartition of this reader was sent."""
        return self._num_unended <= 0

    @property
    def has_view(self) -> bool:
        """Whether the reader's partition was registered."""
        return self._view is not None

    def resume_consumption(self) -> None:
        """Go on: the receiver is ready for data after a blocking event.

        Raises:
            LocalProtocolError: the subpartition is not blocked; nothing changes.
        """
        if self._view is None:
            return
        # First: it raises if the subpartition is not blocked, and then nothing else may change.
        self._view.resume_consumption()
        self.is_blocked = False
        # The receiver gave its floating buffers back at the blocking event: no buffer is behind the credit of before.
        if self._initial_credit == 0:
            self.credit.reset()

    @property
    def open_view(self) -> ResultSubpartitionView | None:
        """The reader's view, from the registration of the partition until the release."""
        return None if self.is_released else self._view

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that the receiver has processed every record before its end of data."""
        if self._view is not None:
            self._view.acknowledge_all_data_processed()

    # ---------------------------------------------------------------- end and numbers

    def release(self) -> None:
        """Give the subpartition back; the second call does nothing."""
        if self.is_released:
            return
        self.is_released = True
        if self.on_release is not None:
            self.on_release()
        if self._view is not None:
            self._view.release()

    def statistics(self, *, is_queued: bool) -> ViewReaderStatistics:
        """Return the state now; ``is_queued``: whether the caller has queued this reader."""
        view = self.open_view
        return ViewReaderStatistics(
            receiver=self.receiver.hex(),
            state=self._state,
            num_credits_available=self.credit.available,
            num_credits_granted=self.credit.granted,
            num_buffers_sent=self.credit.spent,
            backlog=0 if view is None else view.backlog,
            num_queued_buffers=0 if view is None else view.num_queued_buffers,
            is_blocked=self.is_blocked,
            is_queued=is_queued,
            last_sequence_number=self.last_sequence_number,
        )
